"""What was before: samples of the last minutes, and rates from how counters have grown."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tokenix.syscalls.types import Distribution, Pid
from tokenix.tui.snapshot import Snapshot

SAMPLES: Final = 1024
"""Kept of each series: more than the widest graph shows."""
WINDOW_S: Final = 60.0
"""Latencies and hit rates are those of so long."""
LATELY_S: Final = 5.0
"""What moves comes in bursts: its rates are those of so long."""
PACE_S: Final = 2.0
"""A process's tokens per second are those of so long."""

SERIES: Final = (
    "out_per_s", "in_per_s", "ttft_p95_s", "device_share", "running", "waiting", "paused",
)  # fmt: skip
"""Tokens written and prompt tokens computed; P95 of time to first token over the window; share of
the frames that are in use; processes by what they do."""

WATCHED: Final = ("interactive", "stream")
"""Classes of which somebody waits for the first token."""
PAUSED: Final = ("swapping-out", "swapped", "fetching", "swapping-in")


@dataclass(slots=True)
class _Counts:
    """Of first tokens per class, of prompts, pauses and pages that moved, since boot."""

    time_s: float
    ttft: dict[str, list[int]] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stalls: int = 0
    pauses: int = 0
    pages_out: float = 0.0
    pages_in: float = 0.0


@dataclass(slots=True)
class History:
    """Fed with every look, in order; forgets all when the machine is another one. The same look
    again tells nothing: a recording that has ended or is held keeps its last figures."""

    series: dict[str, deque[float]] = field(
        default_factory=lambda: {name: deque(maxlen=SAMPLES) for name in SERIES}
    )
    bounds: tuple[float, ...] = ()
    """Of the buckets of times to first token."""
    last: Snapshot | None = None
    _counts: deque[_Counts] = field(default_factory=deque)
    _outputs: deque[tuple[float, dict[Pid, int]]] = field(default_factory=deque)
    """Time -> tokens written by each process."""

    def take(self, look: Snapshot) -> None:
        """The next look."""
        before = self.last
        if before is not None and look.time_s == before.time_s:
            return
        if before is not None and look.time_s < before.time_s:
            self._forget()
            before = None
        self.last = look
        self.bounds = look.metrics.bounds.get("ttft_s", ())
        self._note_counts(look)
        self._note_outputs(look)
        figures = look.figures
        grown = _growth(look, before)
        self._add(
            out_per_s=grown("output_tokens"),
            in_per_s=max(0.0, grown("computed_tokens") - grown("output_tokens")),
            ttft_p95_s=self.first_token_s(0.95, *WATCHED) or 0.0,
            device_share=1 - _unused(figures) / max(1.0, figures.get("frames.total", 0.0)),
            running=figures.get("processes.running", 0.0) + figures.get("processes.ready", 0.0),
            waiting=figures.get("processes.new", 0.0),
            paused=sum(figures.get(f"processes.{state}", 0.0) for state in PAUSED),
        )

    def now(self, name: str) -> float:
        """The newest sample of a series."""
        samples = self.series[name]
        return samples[-1] if samples else 0.0

    def tokens_per_s(self, pid: Pid) -> float:
        """What a process has written in the last seconds."""
        if len(self._outputs) < 2:
            return 0.0
        (then_s, then), (now_s, now) = self._outputs[0], self._outputs[-1]
        return max(0, now.get(pid, 0) - then.get(pid, 0)) / max(now_s - then_s, 1e-9)

    def first_token_s(self, part: float, *classes: str) -> float | None:
        """A quantile of the times to first token of the window, of those classes together or of
        all; None: there were none."""
        new, old = self._ends()
        if new is None or old is None:
            return None
        counts = [0] * (len(self.bounds) + 1)
        for name in classes or new.ttft:
            since = old.ttft.get(name, [0] * len(counts))
            for at, number in enumerate(new.ttft.get(name, ())):
                counts[at] += number - since[at]
        return quantile(self.bounds, counts, part)

    def hit_rate(self) -> float | None:
        """Share of the prompts' tokens of the window whose KV was there; None: no prompts."""
        new, old = self._ends()
        if new is None or old is None or new.prompt_tokens == old.prompt_tokens:
            return None
        return (new.cached_tokens - old.cached_tokens) / (new.prompt_tokens - old.prompt_tokens)

    def stalls(self) -> int:
        """Tokens of the window that came visibly late."""
        new, old = self._ends()
        return 0 if new is None or old is None else new.stalls - old.stalls

    def pauses(self) -> int:
        """How often somebody was paused in the window."""
        new, old = self._ends()
        return 0 if new is None or old is None else new.pauses - old.pauses

    def moved_per_s(self) -> tuple[float, float]:
        """Pages to and from the host tier, lately."""
        new, old = self._ends(LATELY_S)
        if new is None or old is None or new.time_s <= old.time_s:
            return 0.0, 0.0
        passed_s = new.time_s - old.time_s
        return (
            max(0.0, new.pages_out - old.pages_out) / passed_s,
            max(0.0, new.pages_in - old.pages_in) / passed_s,
        )

    # ---- notes ----

    def _add(self, **samples: float) -> None:
        for name, value in samples.items():
            self.series[name].append(value)

    def _note_counts(self, look: Snapshot) -> None:
        self._counts.append(_counts_of(look))
        while look.time_s - self._counts[0].time_s > WINDOW_S:
            self._counts.popleft()

    def _note_outputs(self, look: Snapshot) -> None:
        counts = {process.pid: process.output_tokens for process in look.processes}
        self._outputs.append((look.time_s, counts))
        while len(self._outputs) > 2 and look.time_s - self._outputs[1][0] >= PACE_S:
            self._outputs.popleft()

    def _ends(self, window_s: float = WINDOW_S) -> tuple[_Counts | None, _Counts | None]:
        """The newest and the oldest of a window; of a machine that is younger: its boot."""
        if not self._counts:
            return None, None
        new = self._counts[-1]
        if new.time_s < window_s:
            return new, _Counts(0.0)
        return new, next(each for each in self._counts if new.time_s - each.time_s <= window_s)

    def _forget(self) -> None:
        for samples in self.series.values():
            samples.clear()
        self._counts.clear()
        self._outputs.clear()


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """A quantile of a distribution in buckets, linear within its bucket; of the last one, which has
    no end, its beginning. None: it is empty."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below, seen = part * total, 0.0, 0
    for bound, number in zip(bounds, counts, strict=False):
        if number and seen + number >= wanted:
            return below + (bound - below) * (wanted - seen) / number
        seen += number
        below = bound
    return below


def _counts_of(look: Snapshot) -> _Counts:
    figures = look.figures
    ttft: dict[str, list[int]] = {}
    sums = dict.fromkeys(("prompt_tokens", "cached_tokens", "stalls"), 0)
    for series in look.metrics.series:
        _sum_into(ttft, series.qos, series.spans.get("ttft_s"))
        for name in sums:
            sums[name] += series.counts.get(name, 0)
    return _Counts(
        look.time_s,
        ttft,
        pauses=int(figures.get("preemptions", 0)),
        pages_out=figures.get("swap.pages_out", 0.0),
        pages_in=figures.get("swap.pages_in", 0.0),
        **sums,
    )


def _sum_into(sums: dict[str, list[int]], name: str, found: Distribution | None) -> None:
    if found is None:
        return
    mine = sums.setdefault(name, [0] * len(found.counts))
    for at, number in enumerate(found.counts):
        mine[at] += number


def _growth(look: Snapshot, before: Snapshot | None) -> Callable[[str], float]:
    """How much a counter grew per second since an earlier look, by its name."""

    def of(name: str) -> float:
        if before is None:
            return 0.0
        grown = look.figures.get(name, 0.0) - before.figures.get(name, 0.0)
        return max(0.0, grown / (look.time_s - before.time_s))

    return of


def _unused(figures: Mapping[str, float]) -> float:
    return figures.get("frames.free", 0.0) + figures.get("frames.cached", 0.0)
