"""The simulated device for big experiments: queues and times as `SimDevice`, but no memory behind.

A token is a hash of (pid, position), so nothing depends on frames, and mistakes of a kernel do not
show. That is what `SimDevice` is for; this one does a handful of Python operations per row, so that
a run is as fast as the kernel that it drives.
"""

import errno
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import (
    Command,
    Completion,
    CopyDone,
    CopyFrame,
    CopyIn,
    CopyOut,
    Fetch,
    Forward,
    ForwardDone,
    ImageDone,
    Poison,
    Sampled,
    Store,
    SwapChanged,
    SwapOff,
    SwapOn,
)
from tokenix.drivers.sim.costs import Costs, beside_s
from tokenix.mm.ids import Ticket

VOCAB = 4096
"""Tokens of prompts and outputs are below this; a power of two."""

_MASK = VOCAB - 1
_DRAWN = tuple(Sampled(token) for token in range(VOCAB))
_PID_STEP = 2_654_435_761
_POSITION_STEP = 40_503


class FastDevice:
    """Keeps `drivers.device.Device`. Times are virtual seconds."""

    def __init__(
        self,
        cost: Costs,
        frames: int,
        host_slots: int,
        page_tokens: int = 16,
        page_bytes: int = 1 << 21,
        prefill_tokens_per_s: float = 1e4,
        max_context_tokens: int = 1 << 20,
        name: str = "sim",
        copy_contention: float = 0.0,
        depth: int = 1,
        covers_loads: bool = False,
    ) -> None:
        """`copy_contention`: a forward takes that share longer while copies run one way, twice that
        while they run both ways. `depth`, `covers_loads`: what `DeviceInfo` says."""
        assert copy_contention >= 0
        assert frames > 0 and host_slots >= 0 and page_tokens > 0
        self._cost = cost
        self._info = DeviceInfo(
            name=name,
            frames=frames,
            page_tokens=page_tokens,
            frame_bytes=page_bytes,
            host_slots=host_slots,
            vocab_tokens=VOCAB,
            max_context_tokens=max_context_tokens,
            step_s=cost.forward_s(0, 1, 0, 0),
            prefill_tokens_per_s=prefill_tokens_per_s,
            copy_in_s_per_page=cost.copy_in_s(16) / 16,
            copy_out_s_per_page=cost.copy_out_s(16) / 16,
            depth=depth,
            covers_loads=covers_loads,
        )
        self._compute_free_s = 0.0
        self._out_free_s = 0.0
        self._in_free_s = 0.0
        self._load_s = 0.0, 0.0
        """Begin and end of the last load by layers."""
        self._store_free_s = 0.0
        self._fetch_free_s = 0.0
        self._ends: list[tuple[float, Ticket, Completion]] = []
        """A heap: when each command's completion is ready."""
        self._contention = copy_contention
        self._forward: tuple[float, tuple[float, Ticket, Completion]] | None = None
        """The last command of the compute queue, if it is a forward: its begin, its entry."""
        self.busy_s = 0.0
        """Seconds that the compute queue has worked."""

    def info(self) -> DeviceInfo:
        return self._info

    def submit(self, command: Command, now_s: float) -> None:
        match command:
            case Forward(ticket=ticket):
                took_s = self._forward_s(command)
                begin_s = max(now_s, self._compute_free_s)
                if self._contention:
                    for free_s in (self._out_free_s, self._in_free_s):
                        took_s += self._contention * min(took_s, max(0.0, free_s - begin_s))
                if command.beside is not None:
                    took_s = beside_s(begin_s, took_s, *self._load_s) - begin_s
                self.busy_s += took_s
                self._compute_free_s = end_s = begin_s + took_s
                done = ForwardDone(ticket, _draw(command))
                self._forward = (begin_s, (end_s, ticket, done))
                heappush(self._ends, self._forward[1])
            case CopyOut(ticket=ticket, pages=pages):
                begin_s = max(now_s, self._out_free_s)
                self._out_free_s = end_s = begin_s + self._cost.copy_out_s(len(pages))
                self._slow_forward(begin_s, end_s)
                heappush(self._ends, (end_s, ticket, CopyDone(ticket)))
            case CopyIn(ticket=ticket, pages=pages, by_layers=by_layers):
                begin_s = max(now_s, self._in_free_s)
                self._in_free_s = end_s = begin_s + self._cost.copy_in_s(len(pages))
                if by_layers:
                    self._load_s = begin_s, end_s
                self._slow_forward(begin_s, end_s)
                heappush(self._ends, (end_s, ticket, CopyDone(ticket)))
            case Store(ticket=ticket, pages=pages):
                end_s = max(now_s, self._store_free_s) + self._cost.store_s(len(pages))
                self._store_free_s = end_s
                heappush(self._ends, (end_s, ticket, CopyDone(ticket)))
            case Fetch(ticket=ticket, pages=pages):
                end_s = max(now_s, self._fetch_free_s) + self._cost.fetch_s(len(pages))
                self._fetch_free_s = end_s
                heappush(self._ends, (end_s, ticket, CopyDone(ticket)))
            case SwapOn() | SwapOff():
                blocks = command.blocks if isinstance(command, SwapOn) else 0
                rates = self._cost.store_s(16) / 16, self._cost.fetch_s(16) / 16
                changed = SwapChanged(command.ticket, blocks, *rates)
                heappush(self._ends, (now_s, command.ticket, changed))
            case CopyFrame(ticket=ticket):
                took_s = self._cost.copy_frame_s()
                self._compute_free_s = end_s = max(now_s, self._compute_free_s) + took_s
                self._forward = None
                heappush(self._ends, (end_s, ticket, CopyDone(ticket)))
            case Poison():
                pass
            case _:
                failed = ImageDone(command.ticket, errno.ENOTSUP, "no images in this simulation")
                heappush(self._ends, (now_s, command.ticket, failed))

    def poll(self, now_s: float) -> list[Completion]:
        ends = self._ends
        done: list[Completion] = []
        while ends and ends[0][0] <= now_s:
            done.append(heappop(ends)[2])
        return done

    def next_completion_s(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Never called: virtual time moves when `poll` says so."""

    def close(self) -> None:
        self._ends.clear()

    def _slow_forward(self, begin_s: float, end_s: float) -> None:
        """A copy begins behind the forward's back: what they share of time takes longer."""
        if not self._contention or self._forward is None:
            return
        since_s, entry = self._forward
        shared_s = min(end_s, entry[0]) - max(begin_s, since_s)
        if shared_s <= 0 or entry not in self._ends:
            return
        self._ends.remove(entry)
        later = (entry[0] + self._contention * shared_s, *entry[1:])
        self._ends.append(later)
        heapify(self._ends)
        self.busy_s += later[0] - entry[0]
        self._forward, self._compute_free_s = (since_s, later), later[0]

    def _forward_s(self, command: Forward) -> float:
        decodes = len(command.decodes.pids)
        kv = sum(command.decodes.starts) + decodes
        tokens, pairs = decodes, kv
        for row in command.rows:
            count = len(row.tokens)
            tokens += count
            kv += row.end
            pairs += count * row.start + count * (count + 1) // 2
            decodes += count == 1
        return self._cost.forward_s(tokens - decodes, decodes, kv, pairs)


def _draw(command: Forward) -> list[Sampled | None]:
    streams = command.decodes
    drawn: list[Sampled | None] = [
        _DRAWN[(pid * _PID_STEP + (start + 1) * _POSITION_STEP) & _MASK]
        for pid, start in zip(streams.pids, streams.starts, strict=True)
    ]
    for row in command.rows:
        token = (row.pid * _PID_STEP + row.end * _POSITION_STEP) & _MASK
        drawn.append(None if row.sample is None else _DRAWN[token])
    return drawn
