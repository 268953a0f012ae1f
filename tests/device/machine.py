"""What the conformance tests drive: one device, its clock, and processes as a test sees them."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenix.drivers.device import Device
from tokenix.drivers.ops import (
    Command,
    Completion,
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    Fetch,
    Forward,
    ForwardDone,
    PageFetch,
    PageIn,
    PageOut,
    PageStore,
    Poison,
    Row,
    RowFault,
    Sampled,
    SampleSpec,
    SamplingParams,
    Store,
    SwapChanged,
    SwapOff,
    SwapOn,
    TableDelta,
    TokenMask,
)
from tokenix.mm.ids import Block, Pfn, Pid, Slot, Ticket

GREEDY = SamplingParams(logprobs=2)
"""Greedy with log probabilities: a wrong read that leaves the token alone is still seen."""
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Harness:
    """What a driver contributes to run the suite. `page_tokens` is a size that it supports."""

    name: str
    vocab: int
    page_tokens: int
    make: Callable[[int, int, int], Device]
    """(frames, host_slots, page_tokens) -> a new device."""
    virtual: bool = False
    """Whether time passes only as `next_completion_s` says."""
    tolerance: float = 0.0
    """How far log probabilities of the same row may be apart in another batch or chunking."""
    violations: Callable[[Device], list[str]] = lambda device: []
    corrupt: Callable[[Device, int], None] = lambda device, block: None
    """Change a bit of what a block of the swap file holds, behind the driver's back."""


@dataclass
class Proc:
    """A process: its tokens so far, its frames, and how much of both the device has."""

    pid: Pid
    tokens: list[int]
    frames: list[int]
    params: SamplingParams = GREEDY
    prompt: int = 0
    done: int = 0
    """Positions whose K and V are computed."""
    known: int = 0
    """Pages that the device's block table has."""
    banned: tuple[int, ...] = ()
    history: list[int] | None = None
    """What penalties are told instead of `tokens`."""
    grammar: TokenMask | None = None
    drawn: list[Sampled] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt = self.prompt or len(self.tokens)

    def row(self, chunk: int | None = None) -> Row:
        """The next `chunk` tokens (None: all); samples if they reach the end."""
        end = len(self.tokens) if chunk is None else min(len(self.tokens), self.done + chunk)
        spec = None
        if end == len(self.tokens):
            history = self.tokens if self.history is None else self.history
            spec = SampleSpec(self.params, history, self.prompt, self.banned, self.grammar)
        return Row(self.pid, self.done, tuple(self.tokens[self.done : end]), spec)

    def take_delta(self) -> tuple[TableDelta, ...]:
        """What the device must be told of the block table before the next row."""
        if self.known == len(self.frames):
            return ()
        keep, self.known = self.known, len(self.frames)
        return (TableDelta(self.pid, keep, _pfns(self.frames[keep:])),)

    def move(self, frames: Sequence[int], keep: int = 0) -> None:
        """From page `keep` on the pages are elsewhere now."""
        self.frames = [*self.frames[:keep], *frames]
        self.known = min(self.known, keep)


class Machine:
    """One device of `harness` and its time: virtual if the device says so, else the real one."""

    def __init__(self, harness: Harness, frames: int = 32, host_slots: int = 16) -> None:
        self.harness = harness
        self.page_tokens = harness.page_tokens
        self.device = harness.make(frames, host_slots, harness.page_tokens)
        self.expects_breach = False
        """Set by tests that break the contract on purpose."""
        self._woken = threading.Event()
        self.device.set_wake(self._woken.set)
        self._origin_s = time.monotonic()
        self._now_s = 0.0
        self._tickets = 0
        self._pids = 0
        self._done: dict[Ticket, Completion] = {}

    # ---- processes ----

    def proc(
        self,
        prompt: Sequence[int],
        frames: Sequence[int],
        params: SamplingParams = GREEDY,
        done: int = 0,
    ) -> Proc:
        return Proc(self.pid(), list(prompt), list(frames), params, done=done)

    def pid(self) -> Pid:
        """One that was not used before."""
        self._pids += 1
        return Pid(self._pids)

    def step(
        self, *procs: Proc, chunk: int | None = None, drop: tuple[Pid, ...] = ()
    ) -> list[Sampled | RowFault | None]:
        """One forward with a row of each process; sampled tokens are appended."""
        done = self.wait(self.start(*procs, chunk=chunk, drop=drop))
        assert isinstance(done, ForwardDone)
        for proc, result in zip(procs, done.results, strict=True):
            proc.done += min(len(proc.tokens) - proc.done, chunk or 1 << 30)
            if isinstance(result, Sampled):
                proc.tokens.append(result.token)
                proc.drawn.append(result)
        return list(done.results)

    def start(
        self,
        *procs: Proc,
        chunk: int | None = None,
        drop: tuple[Pid, ...] = (),
        beside: Ticket | None = None,
    ) -> Ticket:
        """Submit a forward with a row of each process and do not wait."""
        deltas = tuple(delta for proc in procs for delta in proc.take_delta())
        rows = tuple(proc.row(chunk) for proc in procs)
        return self.submit(Forward(self.ticket(), rows, deltas, drop, beside=beside))

    def decode(self, *procs: Proc, tokens: int) -> None:
        """Forwards of all `procs` together until each has drawn `tokens` more."""
        for _ in range(tokens):
            results = self.step(*procs)
            assert all(isinstance(result, Sampled) for result in results), results

    # ---- commands ----

    def ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def submit(self, command: Command) -> Ticket:
        self.device.submit(command, self._clock())
        return Ticket(0) if isinstance(command, Poison) else command.ticket

    def swap_out(self, *pages: tuple[int, int, int]) -> CopyDone | CopyFailed:
        """Copy (frame, slot, generation)s out."""
        return _copied(self.wait(self.submit(self.copy_out(*pages))))

    def swap_in(self, *pages: tuple[int, int, int]) -> CopyDone | CopyFailed:
        """Copy (slot, generation, frame)s in."""
        return _copied(self.wait(self.submit(self.copy_in(*pages))))

    def load_by_layers(self, *pages: tuple[int, int, int]) -> Ticket:
        """Begin to copy (slot, generation, frame)s in, for forwards beside it."""
        return self.submit(replace(self.copy_in(*pages), by_layers=True))

    def copy_out(self, *pages: tuple[int, int, int]) -> CopyOut:
        return CopyOut(self.ticket(), tuple(PageOut(Pfn(f), Slot(s), g) for f, s, g in pages))

    def copy_in(self, *pages: tuple[int, int, int]) -> CopyIn:
        return CopyIn(self.ticket(), tuple(PageIn(Slot(s), g, Pfn(f)) for s, g, f in pages))

    def swap_on(self, directory: Path, blocks: int) -> SwapChanged:
        return _changed(self.wait(self.submit(SwapOn(self.ticket(), str(directory), blocks))))

    def swap_off(self) -> SwapChanged:
        return _changed(self.wait(self.submit(SwapOff(self.ticket()))))

    def store(self, *pages: tuple[int, int, int, int]) -> CopyDone | CopyFailed:
        """Store (slot, its generation, block, its generation)s."""
        return _copied(self.wait(self.submit(self.to_disk(*pages))))

    def fetch(self, *pages: tuple[int, int, int, int]) -> CopyDone | CopyFailed:
        """Fetch (block, its generation, slot, its generation)s."""
        return _copied(self.wait(self.submit(self.from_disk(*pages))))

    def to_disk(self, *pages: tuple[int, int, int, int]) -> Store:
        made = tuple(PageStore(Slot(s), sg, Block(b), bg) for s, sg, b, bg in pages)
        return Store(self.ticket(), made)

    def from_disk(self, *pages: tuple[int, int, int, int]) -> Fetch:
        made = tuple(PageFetch(Block(b), bg, Slot(s), sg) for b, bg, s, sg in pages)
        return Fetch(self.ticket(), made)

    def copy_frame(self, src: int, dst: int) -> None:
        done = self.wait(self.submit(CopyFrame(self.ticket(), Pfn(src), Pfn(dst))))
        assert isinstance(done, CopyDone)

    def poison(self, *frames: int) -> None:
        self.submit(Poison(_pfns(frames)))

    def wipe(self, *frames: int) -> None:
        """Poison frames and wait for it: it completes nothing, the forward behind it does."""
        self.poison(*frames)
        self.wait(self.submit(Forward(self.ticket(), ())))

    # ---- time ----

    def wait(self, ticket: Ticket) -> Completion:
        """Let time pass until the completion of `ticket` is there, and take it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while ticket not in self._done:
            for completion in self.poll():
                assert completion.ticket not in self._done, "a ticket completes once"
                self._done[completion.ticket] = completion
            if ticket not in self._done:
                self._pass_time()
            assert time.monotonic() < deadline_s, f"ticket {ticket} does not complete"
        return self._done.pop(ticket)

    def drain(self, count: int) -> list[Completion]:
        """The next `count` completions in the order in which the device gives them."""
        taken: list[Completion] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(taken) < count:
            taken += self.poll()
            if len(taken) < count:
                self._pass_time()
            assert time.monotonic() < deadline_s, f"{len(taken)} of {count} completions came"
        return taken

    def poll(self) -> list[Completion]:
        self._woken.clear()
        return self.device.poll(self._clock())

    def close(self) -> None:
        self.device.close()
        if not self.expects_breach:
            assert self.harness.violations(self.device) == []

    def _clock(self) -> float:
        return self._now_s if self.harness.virtual else time.monotonic() - self._origin_s

    def _pass_time(self) -> None:
        next_s = self.device.next_completion_s()
        if self.harness.virtual:
            assert next_s is not None, "nothing is in flight, so nothing will complete"
            self._now_s = max(self._now_s, next_s)
        else:
            assert next_s is None, "a real device wakes"
            assert self._woken.wait(PATIENCE_S), "a real device wakes"


def _copied(completion: Completion) -> CopyDone | CopyFailed:
    assert isinstance(completion, CopyDone | CopyFailed)
    return completion


def _changed(completion: Completion) -> SwapChanged:
    assert isinstance(completion, SwapChanged)
    return completion


def words(count: int, vocab: int, seed: int = 0) -> list[int]:
    """A prompt of `count` tokens."""
    chance = random.Random(seed)
    return [chance.randrange(vocab) for _ in range(count)]


def same(a: Sequence[Sampled], b: Sequence[Sampled], tolerance: float) -> bool:
    """Whether two runs drew the same tokens, with log probabilities as near as they must be."""
    return [x.token for x in a] == [y.token for y in b] and all(
        abs(x.logprob - y.logprob) <= tolerance for x, y in zip(a, b, strict=True)
    )


def _pfns(frames: Sequence[int]) -> tuple[Pfn, ...]:
    return tuple(Pfn(frame) for frame in frames)
