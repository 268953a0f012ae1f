"""All orders of events, not samples: every way in which calls and the ends of commands can meet.

    spawn all --> at each moment one of: the next call of a caller
                                         the next command of a queue ends, well or with a fault
                                         time passes the deadline of a copy
              --> nothing is left: outputs, calls and memory are checked

A state that was seen before is not looked at again; the number of ways that lead on from it is
known (`digest.py`). Depth first: a branch is reached by playing its moves again from the start.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from tokenix.drivers.sim.fences import Queue
from tokenix.kernel.calls import Fork, Request, Spawn, Swapon
from tokenix.kernel.event import Call, Reply
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.tunables import Tunables
from tokenix.tests.sim.digest import check_counts, digest
from tokenix.tests.sim.machine import SimMachine
from tokenix.tests.sim.stepwise import StepwiseDevice

MAX_MOVES = 80
"""A way that is longer does not end."""

Move = tuple[str, object]
"""("call", number of the caller), ("ends" | "fails", queue), ("late", None)."""


@dataclass(frozen=True)
class Script:
    """A few processes, who calls what, and what may go wrong how often."""

    spawns: tuple[Spawn, ...]
    callers: tuple[tuple[Request, ...], ...] = ()
    """Each makes its calls in this order; the orders of all are interleaved."""
    fails: tuple[Queue, ...] = ()
    """Where a command may fail."""
    faults: int = 0
    """So many commands fail at most."""
    lates: int = 0
    """So often time passes the deadline of copies at most."""
    frames: int = 4
    host_slots: int = 4
    file_blocks: int = 0
    """Of a swap file that is there from the start."""
    page_tokens: int = 2
    policy: str = "progress"
    params: Params = field(default_factory=lambda: Params(poison=True))
    tunables: Tunables = field(default_factory=Tunables)


class Story:
    """One way through a script, as far as it has gone."""

    def __init__(self, script: Script, moves: tuple[Move, ...] = ()) -> None:
        self.script = script
        self.machine = SimMachine(
            script.frames, script.host_slots, script.policy, script.params, script.tunables,
            audit_every_step=False, make_device=StepwiseDevice, page_tokens=script.page_tokens,
        )  # fmt: skip
        self.device: StepwiseDevice = self.machine.device  # type: ignore[assignment]
        self.spoken = [0] * len(script.callers)
        self.faults = script.faults
        self.lates = script.lates
        self.moves: list[Move] = []
        self._begin()
        for move in moves:
            self.play(move)
        self.machine.audit_every_step = True

    def _begin(self) -> None:
        """The file is opened; then all are spawned at once."""
        if self.script.file_blocks:
            size_bytes = self.script.file_blocks * self.machine.kernel.info.frame_bytes
            self.machine.step([self.machine.make_call(Swapon("/", size_bytes))])
            self.machine.step([self.device.end(Queue.STORE)])
        calls = [self._call(request) for request in self.script.spawns]
        self.machine.step(list(calls))
        assert len(self.machine.asked) == len(calls), "none is refused"
        self._settle()

    def _call(self, request: Request) -> Call:
        return self.machine.make_call(request, then=partial(self._born, request))

    def choices(self) -> list[Move]:
        """What can happen next."""
        found: list[Move] = []
        for number, calls in enumerate(self.script.callers):
            if self.spoken[number] < len(calls):
                found.append(("call", number))
        for queue in Queue:
            if self.device.peek(queue) is not None:
                found.append(("ends", queue))
                if self.faults and queue in self.script.fails:
                    found.append(("fails", queue))
        transfers = self.machine.kernel.memory.copies.transfers
        if self.lates and transfers.next_deadline_s() is not None:
            found.append(("late", None))
        return found

    def play(self, move: Move) -> None:
        kind, what = move
        self.moves.append(move)
        if kind == "call":
            assert isinstance(what, int)
            request = self.script.callers[what][self.spoken[what]]
            self.spoken[what] += 1
            self.machine.step([self._call(request)])
        elif kind == "late":
            self.lates -= 1
            self._wait(self.machine.kernel.memory.copies.transfers.next_deadline_s())
        else:
            assert isinstance(what, Queue)
            self.faults -= kind == "fails"
            self.machine.step([self.device.end(what, kind == "fails")])
        self._settle()

    def _born(self, request: Request, reply: Reply) -> None:
        """Read on; children say what their parent would have said."""
        machine = self.machine
        if reply.error is not None:
            return
        if isinstance(request, Spawn):
            pid = cast(Pid, reply.value)
            machine.asked[pid] = request
            machine.follow(pid)
        elif isinstance(request, Fork):
            parent = machine.process(request.pid)
            for pid in cast(tuple[Pid, ...], reply.value):
                machine.asked[pid] = machine.asked[parent.pid]
                machine.output[pid] = parent.tokens[parent.prompt_tokens :]
                machine.follow(pid)

    def _wait(self, until_s: float | None) -> None:
        assert until_s is not None, f"deadlock after {self.moves}"
        self.machine.now_s = max(self.machine.now_s, until_s)
        self.machine.step([])

    def _settle(self) -> None:
        """Let the kernel have the steps it asks for at this moment; and if nothing else can
        happen, at later ones."""
        kernel = self.machine.kernel
        while kernel.processes:
            wake_s = kernel.next_wake_s()
            if wake_s is not None and wake_s <= self.machine.now_s:
                self.machine.step([])
            elif self.choices():
                return
            else:
                self._wait(wake_s)

    def digest(self) -> bytes:
        """All that what follows depends on."""
        machine, device = self.machine, self.device
        check_counts(machine.kernel)
        told = [(pid, end.reason) for pid, end in machine.ended.items()]
        queued = [[work.command for work in line] for line in device.lines.values()]
        state = digest(
            machine.kernel, machine.now_s, queued, device.memory, device.host, device.disk,
            device.tables, device.fences, self.spoken, self.faults, self.lates, machine.output,
            told,
        )  # fmt: skip
        return hashlib.blake2b(state, digest_size=16).digest()

    def check_end(self) -> None:
        """Everything has ended: all is said, all is answered, all is given back."""
        machine = self.machine
        assert not machine.kernel.processes, "all have ended"
        assert len(machine.ended) == len(machine.asked), "each stream has one end"
        machine.finish()
        assert sorted(machine.replies) == list(range(1, machine.count_calls() + 1))


@dataclass
class Explored:
    states: int = 0
    ways: int = 0
    """Interleavings: ways from the start to an end."""
    longest: int = 0
    """Most moves of a way."""


def explore(script: Script, remember: bool = True) -> Explored:
    """Play every interleaving of `script`; raises at the first that goes wrong, with its moves.
    `remember`: look at each state once, and count the ways that lead on from it."""
    seen: dict[bytes, int] = {}
    found = Explored()

    def count_ways(story: Story) -> int:
        key = story.digest()
        if remember and key in seen:
            return seen[key]
        choices, moves = story.choices(), tuple(story.moves)
        found.longest = max(found.longest, len(moves))
        assert len(moves) <= MAX_MOVES, "it does not end"
        if not choices:
            story.check_end()
            ways = 1
        else:
            ways = sum(_after(script, story if not i else None, moves, move, count_ways)
                       for i, move in enumerate(choices))  # fmt: skip
        seen[key] = ways
        return ways

    found.ways = count_ways(Story(script))
    found.states = len(seen)
    return found


def _after(
    script: Script,
    story: Story | None,
    moves: tuple[Move, ...],
    move: Move,
    count_ways: Callable[[Story], int],
) -> int:
    """Ways that begin with `moves` and `move`. `story` has played `moves` and is used up."""
    story = story or Story(script, moves)
    try:
        story.play(move)
        return count_ways(story)
    except Exception as why:
        if not getattr(why, "told", False):
            why.add_note(f"after {[*moves, move]}")
            why.told = True  # type: ignore[attr-defined]
        raise
