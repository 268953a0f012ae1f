"""Plays a workload against a machine and writes down what every client saw.

Open loop: requests arrive when the workload says, whether or not earlier ones are answered.
Delivery times are the kernel's (`Output.time_s`); arrivals are put on the same clock.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tokenix.bench.reader import count_stalls
from tokenix.bench.workload import Arrival
from tokenix.syscalls.types import ExitReason, Pid, ProcessStat, Rusage, Syscalls, TraceEvent

SAMPLE_S = 0.25
"""Between two looks at the process table."""

TRACE_EVENTS = 1 << 20
"""Asked for at once; the kernel's ring is smaller."""


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are seconds since the start of the run."""

    arrival: Arrival
    pid: Pid | None = None
    refused: str = ""
    """Why it was turned away, at arrival or in the queue; "" if it was not."""
    error: str = ""
    reason: ExitReason | None = None
    tokens: tuple[int, ...] = ()
    times_s: tuple[float, ...] = ()
    rusage: Rusage = field(default_factory=Rusage)

    @property
    def finished(self) -> bool:
        return self.reason in (ExitReason.STOP, ExitReason.LENGTH)

    @property
    def ttft_s(self) -> float | None:
        """From the scheduled arrival to the first token; None if there was none."""
        return self.times_s[0] - self.arrival.at_s if self.times_s else None

    @property
    def stalls(self) -> int:
        return count_stalls(self.times_s, self.arrival.tokens_per_s)

    def good(self, target_s: float) -> bool:
        """Answered within the target, finished, and its reader never had to wait."""
        ttft_s = self.ttft_s
        return self.finished and ttft_s is not None and ttft_s <= target_s and not self.stalls


@dataclass(frozen=True, slots=True)
class Sample:
    """The process table at one moment, for those who watch."""

    time_s: float
    processes: tuple[tuple[str, ProcessStat], ...]
    """(name of the request, its snapshot); finished ones are gone."""
    held_pages: int
    finished: int
    refused: int


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's run of a workload."""

    policy: str
    outcomes: tuple[Outcome, ...]
    """In order of arrival."""
    counters: dict[str, float]
    """Counters of vmstat that grew during the run, by how much."""
    events: tuple[TraceEvent, ...]
    start_s: float
    """Start of the run on the kernel's clock, which the times of `events` are on."""
    paces: tuple[float, ...] = ()
    """Decode steps per second of the idle machine, before and after the run."""


Watch = Callable[[Sample], None]


def drive(
    k: Syscalls,
    arrivals: Iterable[Arrival],
    policy: str,
    watch: Watch | None = None,
    limit_s: float = 180.0,
) -> Run:
    """Run a workload to its end. TimeoutError after `limit_s`."""
    return _Driver(k, arrivals, watch).run(policy, limit_s)


class _Driver:
    def __init__(self, k: Syscalls, arrivals: Iterable[Arrival], watch: Watch | None) -> None:
        self._k = k
        self._watch = watch
        self._outcomes = [Outcome(arrival) for arrival in sorted(arrivals, key=lambda a: a.at_s)]
        self._pending = deque(self._outcomes)
        self._living: dict[Pid, Outcome] = {}
        self._start_s = 0.0
        """Of the run, on the kernel's clock."""
        self._origin_s = 0.0
        """The same moment on ours."""

    def run(self, policy: str, limit_s: float) -> Run:
        before = self._synchronize()
        last_event = max((event.seq for event in self._k.trace(limit=TRACE_EVENTS)), default=0)
        next_sample_s = 0.0
        while self._pending or self._living:
            while self._pending and self._pending[0].arrival.at_s <= self._now_s():
                self._spawn(self._pending.popleft())
            if self._now_s() >= next_sample_s:
                self._look()
                next_sample_s = self._now_s() + SAMPLE_S
            if self._now_s() > limit_s:
                raise TimeoutError(f"the workload did not end within {limit_s:.0f} s")
            wake_s = next_sample_s
            if self._pending:
                wake_s = min(wake_s, self._pending[0].arrival.at_s)
            time.sleep(max(0.0, wake_s - self._now_s()))
        after = self._k.vmstat()
        events = self._k.trace(since=last_event, limit=TRACE_EVENTS)
        grown = {name: after[name] - before.get(name, 0.0) for name in after}
        return Run(policy, tuple(self._outcomes), grown, events, self._start_s)

    def _synchronize(self) -> dict[str, float]:
        """Tie our clock to the kernel's; both count the same seconds."""
        sent_s = time.monotonic()
        stats = self._k.vmstat()
        self._origin_s = (sent_s + time.monotonic()) / 2
        self._start_s = stats["time_s"]
        return stats

    def _now_s(self) -> float:
        return time.monotonic() - self._origin_s

    def _spawn(self, outcome: Outcome) -> None:
        arrival = outcome.arrival
        try:
            outcome.pid = self._k.spawn(
                arrival.prompt, max_tokens=arrival.output_tokens, ignore_eos=True,
                qos=arrival.qos, reader="paced", tokens_per_s=arrival.tokens_per_s,
                name=arrival.name,
            )  # fmt: skip
        except BlockingIOError as refusal:
            outcome.refused = refusal.strerror or str(refusal)
            return
        self._living[outcome.pid] = outcome

    def _look(self) -> None:
        """Take what is finished out of the machine, and show the rest to whoever watches."""
        table = self._k.ps()
        for stat in table:
            if stat.state == "zombie" and stat.pid in self._living:
                self._collect(self._living.pop(stat.pid))
        if self._watch is None:
            return
        shown = tuple(
            (self._living[stat.pid].arrival.name, stat)
            for stat in table
            if stat.pid in self._living
        )
        held = sum(stat.resident_pages for _, stat in shown)
        refused = sum(bool(outcome.refused) for outcome in self._outcomes)
        ended = len(self._outcomes) - len(self._pending) - len(self._living) - refused
        self._watch(Sample(self._now_s(), shown, held, ended, refused))

    def _collect(self, outcome: Outcome) -> None:
        pid = outcome.pid
        assert pid is not None
        result = self._k.read(pid)
        while not result.eof:
            rest = self._k.read(pid)
            result = type(rest)(
                result.outputs + rest.outputs, rest.turn_ended, rest.eof, rest.reason, rest.error
            )
        outcome.tokens = tuple(output.token for output in result.outputs)
        outcome.times_s = tuple(output.time_s - self._start_s for output in result.outputs)
        ended = self._k.wait(pid)
        outcome.reason, outcome.rusage = ended.reason, ended.rusage
        if ended.reason is ExitReason.REFUSED:
            outcome.refused = ended.error
        elif ended.error:
            outcome.error = ended.error
