"""What callers feel, counted per service class and tenant as it happens. Written by the kernel.

    begin_turn --> note_admitted --> note_token, note_decoded --> end_turn
                        note_paused --> note_back

A *turn* is what a request is elsewhere: from `spawn` (or new input) to the end of its output. A
pause before the first token counts into the time to first token, one after it into the latency
between two tokens. Only intervals within one process are measured, on the kernel's clock.

Streams in full swing are counted as a band: all that had a token in the pass before and have one
now waited equally long, so that a pass costs as much as there are classes and tenants in it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tokenix.kernel.answers import Distribution, ExitReason, MeterSeries, MetricsReport
from tokenix.sched.entity import Qos

if TYPE_CHECKING:
    from tokenix.kernel.calls import Principal
    from tokenix.kernel.process import Process

OTHERS: Final = "*"
"""The tenant under which those are counted that came when the table was full."""

_SHORT: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
_WAIT: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LONG: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 1200.0)

BOUNDS: Final[dict[str, tuple[float, ...]]] = {
    "ttft_s": _WAIT,
    "itl_s": _SHORT,
    "e2e_s": _LONG,
    "queue_s": _WAIT,
    "prefill_s": _WAIT,
    "decode_s": _LONG,
    "paused_s": _LONG,
    "pause_s": _WAIT,
}
"""What is kept as a distribution, with the upper bounds of its buckets in seconds.

ttft_s, itl_s      to the first token of a turn, and from one token to the next
queue_s            from spawn to the first frames
e2e_s              of a turn; and its time on the device before the first token (prefill_s) and
                   after it (decode_s), and without frames (paused_s)
pause_s            of one preemption, until the process is ready again or has ended
"""

COUNTS: Final = (
    "prompt_tokens", "cached_tokens", "output_tokens", "recomputed_tokens", "stalls", "preemptions",
    "refused",
)  # fmt: skip


class Histogram:
    """How often a value fell between which bounds, and the sum of all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The last is above all bounds."""
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


class Series:
    """The meters of one class of one tenant."""

    __slots__ = (*BOUNDS, *COUNTS, "ends")

    def __init__(self) -> None:
        for name, bounds in BOUNDS.items():
            setattr(self, name, Histogram(bounds))
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.recomputed_tokens = self.stalls = self.preemptions = self.refused = 0
        self.ends: dict[str, int] = {}
        """Turns by why they ended."""

    ttft_s: Histogram
    itl_s: Histogram
    e2e_s: Histogram
    queue_s: Histogram
    prefill_s: Histogram
    decode_s: Histogram
    paused_s: Histogram
    pause_s: Histogram


_NOBODY: "Sequence[Process]" = ()

UNLISTED: Final = Series()
"""Of processes that exist for nobody (they compute segments): never shown."""


class Meters:
    """All series, and the band of streams that decoded in the last pass."""

    def __init__(self, max_tenants: int) -> None:
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        self._series: dict[tuple[str, Qos], Series] = {}
        self._band: list[Process] = []
        self._members: dict[Process, None] = {}
        self._shares: dict[Series, int] = {}
        """Members of the band by series."""
        self._band_s = 0.0
        """When the members had their last token; `Process.token_s` of a member is out of date."""

    def of(self, tenant: str, qos: Qos) -> Series:
        """The series of a class of a tenant. Tenants who come when the table is full share one."""
        if tenant not in self._tenants:
            if len(self._tenants) < self._max_tenants and tenant != OTHERS:
                self._tenants.add(tenant)
            else:
                tenant = OTHERS
        series = self._series.get((tenant, qos))
        if series is None:
            series = self._series[tenant, qos] = Series()
        return series

    def report(self, who: "Principal") -> MetricsReport:
        """All that `who` may see: root everything, a tenant its own."""
        return MetricsReport(
            BOUNDS,
            tuple(
                MeterSeries(
                    tenant,
                    qos.name.lower(),
                    {name: getattr(series, name) for name in COUNTS},
                    dict(series.ends),
                    {name: _frozen(getattr(series, name)) for name in BOUNDS},
                )
                for (tenant, qos), series in sorted(self._series.items())
                if who.root or (tenant == who.tenant and tenant != OTHERS)
            ),
        )

    # ---- as things happen ----

    def enter(self, process: "Process", now_s: float) -> None:
        """A process exists: spawned, forked, or out of an image, perhaps in the midst of a turn."""
        if process.segment is None:
            process.series = self.of(process.tenant, process.entity.qos)
        begun = process.in_turn and process.output_tokens > 0
        self._begin(process, now_s if begun else process.entity.waiting_since_s)
        if begun:
            process.token_s = now_s

    def begin_turn(self, process: "Process", new_tokens: int, now_s: float) -> None:
        """It has been given its next input."""
        process.series.prompt_tokens += new_tokens
        self._begin(process, now_s)

    def _begin(self, process: "Process", since_s: float) -> None:
        usage = process.usage
        process.turn_since_s = since_s
        process.token_s = None
        process.turn_began = (usage.prefill_s, usage.decode_s, usage.paused_s)

    def note_admitted(self, process: "Process") -> None:
        """It has its first frames. A fork has its prompt from its parent."""
        series, usage = process.series, process.usage
        series.queue_s.add(usage.queue_s)
        if not process.parent:
            series.prompt_tokens += usage.prompt_tokens
            series.cached_tokens += usage.cached_tokens

    def note_token(self, process: "Process", now_s: float) -> None:
        """One token of a process that is not in the band of this pass."""
        series = process.series
        if process.token_s is None:
            series.ttft_s.add(now_s - process.turn_since_s)
        else:
            series.itl_s.add(now_s - process.token_s)
        process.token_s = now_s
        series.output_tokens += 1

    def note_decoded(self, streams: "list[Process]", now_s: float) -> None:
        """One more token for each of the streams in full swing; called once in every pass, before
        `note_token` for others. Who stays costs nothing by itself."""
        shares, joined = self._shares, _NOBODY
        if streams != self._band:
            joined = self._gather(streams)
        gap_s = now_s - self._band_s
        for series, count in shares.items():
            series.itl_s.add(gap_s, count)
            series.output_tokens += count
        for process in joined:
            self.note_token(process, now_s)
            shares[process.series] = shares.get(process.series, 0) + 1
        self._band_s = now_s

    def _gather(self, streams: "list[Process]") -> "Sequence[Process]":
        """The band is another one: takes note of who left it; who is new in it."""
        members, shares = dict.fromkeys(streams), self._shares
        for process in self._band:
            if process not in members:
                process.token_s = self._band_s
                shares[process.series] -= 1
        joined = [process for process in streams if process not in self._members]
        self._band, self._members = streams, members
        return joined

    def note_recomputed(self, process: "Process", tokens: int) -> None:
        process.series.recomputed_tokens += tokens

    def note_stalls(self, process: "Process", stalls: int) -> None:
        process.series.stalls += stalls

    def note_refused(self, tenant: str, qos: Qos) -> None:
        """A newcomer was turned away, at the door or later."""
        self.of(tenant, qos).refused += 1

    def note_paused(self, process: "Process") -> None:
        process.series.preemptions += 1

    def note_back(self, process: "Process", paused_s: float) -> None:
        """A pause of so long is over."""
        process.series.pause_s.add(paused_s)

    def end_turn(self, process: "Process", reason: ExitReason, now_s: float) -> None:
        """Its usage is up to date. One that was refused has waited, and that was all: it has no
        latencies."""
        series, usage = process.series, process.usage
        series.ends[reason.value] = series.ends.get(reason.value, 0) + 1
        if reason is ExitReason.REFUSED:
            return
        prefill_s, decode_s, paused_s = process.turn_began
        series.e2e_s.add(now_s - process.turn_since_s)
        series.prefill_s.add(usage.prefill_s - prefill_s)
        series.decode_s.add(usage.decode_s - decode_s)
        series.paused_s.add(usage.paused_s - paused_s)


def _frozen(histogram: Histogram) -> Distribution:
    return Distribution(tuple(histogram.counts), histogram.sum)
