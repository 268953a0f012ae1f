"""A load: sessions of one or more turns, made of groups of clients and a seed.

session   at 3.1 s    turn 1 ....... answer    think 8 s    turn 2 ....... answer
                      prefix + new tokens                   all before + new tokens
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice, repeat
from typing import Literal

from tokenix.bench.load.arrivals import Arrivals
from tokenix.bench.load.clients import Clients
from tokenix.bench.traces import Trace, Window, cut, read_trace

DEFAULT_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session."""

    input_tokens: int
    """New ones, at least 1."""
    output_tokens: int
    wait_s: float = 0.0
    """After the answer before; thinking, or a tool."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads the answers. All take `tokens_per_s`; what they do to their connection differs."""

    tokens_per_s: float = 10.0
    kind: Literal["steady", "stalled", "leaving"] = "steady"
    after_tokens: int = 0
    """Of a turn, when it stalls or leaves."""
    stall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """A dialogue, or a single request. `at_s` counts from the start; closed loops do not use it."""

    name: str
    clients: Clients
    at_s: float
    turns: tuple[Turn, ...]
    reader: Reader
    blocks: tuple[int, ...] = ()
    """The prompt of the first turn begins with these; equal ids are equal tokens."""
    block_tokens: int = 0

    def prompt_tokens(self, turn: int) -> int:
        """New ones, with the prefix that a group's sessions begin with (a trace's blocks are part
        of the length that it tells)."""
        prefixed = turn == 0 and self.clients.trace is None
        before = len(self.blocks) * self.block_tokens if prefixed else 0
        return before + self.turns[turn].input_tokens


@dataclass(frozen=True, slots=True)
class Part:
    """What one group sends. Closed loops are drawn as they go, so that only time ends them."""

    clients: Clients
    sessions: Iterable[Session]
    """By arrival; to be gone through once."""
    expected: int | None
    """Sessions; None: as many as there is time for."""
    trace: Trace | None = None


def make_parts(groups: Iterable[Clients], seed: int) -> tuple[Part, ...]:
    """A function of the groups and the seed. OSError and ValueError for a trace that cannot be
    read, or a group that sends nothing."""
    return tuple(
        _part(clients, random.Random(f"{seed}/{clients.name}"), seed) for clients in groups
    )


def _part(clients: Clients, chance: random.Random, seed: int) -> Part:
    if clients.closed:
        wanted = clients.requests
        if wanted is None and clients.duration_s is None:
            wanted = DEFAULT_REQUESTS
        endless = (_session(clients, number, 0.0, chance) for number in count())
        return Part(clients, islice(endless, wanted), wanted)
    trace = read_trace(clients.trace) if clients.trace is not None else None
    made = tuple(
        _drawn(clients, chance) if trace is None else _traced(clients, trace, chance, seed)
    )
    if not made:
        raise ValueError(f"clients {clients.name!r} send nothing: nobody arrives in their time")
    return Part(clients, made, len(made), trace)


def _drawn(clients: Clients, chance: random.Random) -> Iterator[Session]:
    """Of a group that arrives at a rate, or all at once."""
    times_s: Iterator[float] = repeat(0.0)
    wanted = clients.requests
    if clients.rate is not None:
        arrivals = Arrivals(clients.rate, clients.burstiness, clients.rate_to, clients.ramp_s)
        times_s = arrivals.times_s(random.Random(chance.random()))
    if wanted is None and (clients.duration_s is None or clients.rate is None):
        wanted = DEFAULT_REQUESTS
    end_s = float("inf") if clients.duration_s is None else clients.duration_s
    for number, at_s in enumerate(islice(times_s, wanted)):
        if at_s >= end_s:
            return
        yield _session(clients, number, at_s, chance)


def _traced(clients: Clients, trace: Trace, chance: random.Random, seed: int) -> Iterator[Session]:
    window = Window(clients.rate_scale, duration_s=clients.duration_s, seed=seed)
    for number, request in enumerate(cut(trace, window)[: clients.requests]):
        turn = Turn(request.prompt_tokens, request.output_tokens)
        yield Session(
            f"{clients.name}-{number + 1}", clients, clients.start_s + request.arrival_s, (turn,),
            _reader(clients, request.output_tokens, chance), request.blocks, trace.block_tokens,
        )  # fmt: skip


def _session(clients: Clients, number: int, at_s: float, chance: random.Random) -> Session:
    turns = tuple(
        Turn(
            clients.spread("input_tokens").draw_count(chance),
            clients.spread("output_tokens").draw_count(chance),
            _wait_s(clients, chance) if turn else 0.0,
        )
        for turn in range(clients.spread("turns").draw_count(chance))
    )
    blocks = (chance.randrange(clients.prefix_groups),) if clients.prefix_tokens else ()
    return Session(
        f"{clients.name}-{number + 1}", clients, clients.start_s + at_s, turns,
        _reader(clients, turns[0].output_tokens, chance), blocks, clients.prefix_tokens,
    )  # fmt: skip


def _wait_s(clients: Clients, chance: random.Random) -> float:
    tool = chance.random() < clients.tool_share
    return clients.spread("tool_s" if tool else "think_s").draw(chance)


def _reader(clients: Clients, output_tokens: int, chance: random.Random) -> Reader:
    """Those who stall or leave do it at a random token."""
    lot = chance.random()
    after_tokens = chance.randint(1, max(1, output_tokens - 1))
    pace = clients.reader_tokens_per_s
    if lot < clients.stalled_share:
        return Reader(pace, "stalled", after_tokens, clients.stall_s)
    if lot < clients.stalled_share + clients.leaving_share:
        return Reader(pace, "leaving", after_tokens)
    return Reader(pace)
