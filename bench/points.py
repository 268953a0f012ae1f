"""A point of an experiment, relative to what a machine can do, made into a run.

load      times what `fcfs` sustains with that pool and those very requests (capacity.py)
pool      share of what no preemption needs, or of the device if that is less
window    a stretch of the trace that starts anywhere: some requests in order. In its first
          quarter, which is not counted, the machine is filled (filling.py)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tokenix.bench.capacity import needed_pages, sustained_rate
from tokenix.bench.parallel import Job
from tokenix.bench.simulate import Setup
from tokenix.bench.traces import POOL_SHARE, Request, Trace, Window, turned
from tokenix.syscalls.simulation import SimOptions, memory_pages, roofline_of

WARMUP = 0.25
DRAIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run at a point: `arrivals_s` of arrivals, as far as the bounds allow."""

    arrivals_s: float = 100.0
    few: int = 160
    many: int = 2400
    """Requests."""
    output_tokens: int = 500_000
    """At most, once there are half of `few` requests; it bounds what a point costs."""

    def times(self, factor: float) -> "Size":
        return Size(
            self.arrivals_s * factor, int(self.few * factor), int(self.many * factor),
            int(self.output_tokens * factor),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Point:
    trace: str
    device: str
    load: float
    pool: float
    reader: float
    link: float
    """GB/s each way."""
    seed: int = 1
    """Where in the trace it starts."""
    host: float = 4.0
    """Host tier, in pools."""
    model: str = "llama-3.1-8b"


@dataclass(slots=True)
class Placement:
    """Points of `size` made into runs on `traces`; remembers what is common to points."""

    traces: Mapping[str, Trace]
    size: Size = field(default_factory=Size)
    sizes: Mapping[Point, Size] = field(default_factory=dict)
    """Of points that have another one."""
    _needs: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _windows: dict[Point, tuple[int, Window]] = field(default_factory=dict)

    def job(self, point: Point, policy: str, tunables: Mapping[str, float] | None = None) -> Job:
        """ValueError: nothing of the trace fits into the pool."""
        pages, window = self.place(point)
        assert window.duration_s is not None
        machine = SimOptions(
            device=point.device, model=point.model, policy=policy, kv_pages=pages,
            link_gb_per_s=point.link, host_pools=point.host, tunables=tunables or {},
        )  # fmt: skip
        warmup_s = WARMUP * window.duration_s
        setup = Setup(machine, window, point.reader, warmup_s=warmup_s, fill=True, drain_s=DRAIN_S)
        return Job(point.trace, setup)

    def place(self, point: Point) -> tuple[int, Window]:
        """Pages of the pool, and the window. ValueError."""
        key = replace(point, reader=1.0, link=1.0, host=1.0)
        if key not in self._windows:
            size = self.sizes.get(point, self.size)
            self._windows[key] = self._place(point, size)
        return self._windows[key]

    def pages(self, point: Point) -> int:
        """Of its pool. ValueError: the model does not fit the device."""
        options = SimOptions(device=point.device, model=point.model)
        key = (point.trace, point.device, point.model)
        if key not in self._needs:
            requests = self.traces[point.trace].requests
            self._needs[key] = needed_pages(requests, roofline_of(options).page_tokens)
        return max(2, int(point.pool * min(self._needs[key], memory_pages(options))))

    def _place(self, point: Point, size: Size) -> tuple[int, Window]:
        trace, pages = self.traces[point.trace], self.pages(point)
        roofline = roofline_of(SimOptions(device=point.device, model=point.model))
        longest = POOL_SHARE * pages * roofline.page_tokens
        arrivals = [(at_s, r) for at_s, r in turned(trace, point.seed) if r.tokens <= longest]
        times_s, kept = [at_s for at_s, _ in arrivals], [request for _, request in arrivals]
        if len(kept) < 2:
            raise ValueError(f"no request of {trace.name} fits into {pages} pages")
        count = _count(kept, point.load * sustained_rate(kept, roofline, pages), size)
        rate = point.load * sustained_rate(kept[:count], roofline, pages)
        after = times_s[count] if count < len(kept) else times_s[-1] + 1.0
        start_s, duration_s = times_s[0], count / rate
        scale = max(after - start_s, 1e-3) / duration_s
        return pages, Window(scale, start_s / scale, duration_s, point.seed)


def _count(requests: Sequence[Request], rate: float, size: Size) -> int:
    """How many requests a point has."""
    wanted = min(max(size.few, int(rate * size.arrivals_s)), size.many, len(requests))
    output = 0
    for count, request in enumerate(requests[:wanted], 1):
        output += request.output_tokens
        if output > size.output_tokens and count >= size.few // 2:
            return count
    return wanted
