"""The kernel's meters and gauges as Prometheus reads them: names, labels, help.

    render(await k.metrics(), await k.vmstat(), model, ...) -> body, content type

Names are `tokenix_*`, with units; what is counted per class and tenant has the labels `class` and
`tenant`. `compat="vllm"` adds the names of vLLM, summed over both, for dashboards and routers that
know those.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tokenix.gateway.traffic import Traffic
from tokenix.syscalls.types import Distribution, MetricsReport

Vmstat = Mapping[str, float]

SPANS: Final = {
    "ttft_s": (
        "tokenix_time_to_first_token_seconds",
        "From a request to its first token, pauses and waiting included.",
    ),
    "itl_s": (
        "tokenix_inter_token_latency_seconds",
        "From one token to the next, pauses in between included.",
    ),
    "e2e_s": (
        "tokenix_e2e_request_latency_seconds",
        "From a request to the end of its output, whyever it ended.",
    ),
    "queue_s": ("tokenix_request_queue_time_seconds", "From a request to its first KV pages."),
    "prefill_s": (
        "tokenix_request_prefill_time_seconds",
        "Time of a request on the device before its first token.",
    ),
    "decode_s": (
        "tokenix_request_decode_time_seconds",
        "Time of a request on the device after its first token.",
    ),
    "paused_s": (
        "tokenix_request_paused_time_seconds",
        "Time of a request without its KV pages on the device, after it had them once.",
    ),
    "pause_s": ("tokenix_preemption_pause_seconds", "Length of one preemption."),
}
"""Distributions of `MetricsReport`: name and help."""

COUNTS: Final = {
    "prompt_tokens": ("tokenix_prompt_tokens", "Prompt tokens of requests that were begun."),
    "output_tokens": ("tokenix_generation_tokens", "Tokens generated and delivered."),
    "recomputed_tokens": ("tokenix_recomputed_tokens", "Tokens whose KV was computed again."),
    "stalls": (
        "tokenix_visible_stalls",
        "Tokens that came later than their reader needed them, by more than the tolerance.",
    ),
    "preemptions": ("tokenix_preemptions", "Pauses that took the KV pages of a request away."),
    "refused": ("tokenix_requests_refused", "Requests turned away because of overload."),
}
"""Counters of `MetricsReport`: name without `_total`, and help."""

PREFIX_QUERIES: Final = ("tokenix_prefix_cache_queries", "Prompt tokens looked up by content.")
PREFIX_HITS: Final = ("tokenix_prefix_cache_hits", "Prompt tokens whose KV was found.")

GAUGES: Final = {
    "time_s": ("tokenix_uptime_seconds", "The kernel's clock: seconds since it began."),
    "frames.page_bytes": ("tokenix_kv_page_bytes", "Size of a KV page."),
    "prefix.pages": ("tokenix_prefix_pages", "Pages that can be found by content."),
    "prefix.idle": ("tokenix_prefix_idle_pages", "Of those, pages that no request uses."),
    "controller.eta": (
        "tokenix_working_set_bound_ratio",
        "Controller: bound of the working set as a share of the device's pages.",
    ),
    "controller.working_set_pages": (
        "tokenix_working_set_pages", "Pages that all requests need at their readers' pace.",
    ),
    "controller.pressure": (
        "tokenix_memory_pressure", "1 if a plan of the present period found no room."
    ),
    "controller.new_token_ratio": (
        "tokenix_new_token_ratio", "Policy retract: share of outputs that admission reserves."
    ),
    "images.count": ("tokenix_images", "Images of suspended and idle processes."),
    "images.bytes": ("tokenix_image_bytes", "Size of all images."),
}  # fmt: skip
"""Gauges of `vmstat`."""

TOTALS: Final = {
    "calls": ("tokenix_system_calls", "System calls."),
    "spawned": ("tokenix_processes_spawned", "Processes begun."),
    "steps": ("tokenix_forward_passes", "Forward passes of the device."),
    "computed_tokens": ("tokenix_computed_tokens", "Tokens whose KV was computed."),
    "plan_misses": ("tokenix_plan_misses", "Parts of plans that memory could not back."),
    "copies_failed": ("tokenix_copies_failed", "Copies between tiers that failed."),
    "device_faults": ("tokenix_device_faults", "Forward passes that failed."),
    "swap.bytes": ("tokenix_swap_bytes", "Bytes copied between tiers."),
    "swap.pages_lost": ("tokenix_kv_pages_lost", "Pages lost on the way, and computed again."),
}
"""Counters of `vmstat`."""

GROUPS: Final = {
    "processes.": ("tokenix_processes", "Processes by state.", "state"),
    "queues.": ("tokenix_queue_length", "Processes in the scheduler's queues.", "queue"),
    "waiting.": ("tokenix_waiting_requests", "Requests without KV pages yet.", "class"),
}
"""Gauges of `vmstat` that have a label, by how their names begin."""

REASONS: Final = {"stop": "stop", "length": "length", "pages": "length", "error": "error"}
"""vLLM's word for why a request has ended; `abort` for all others."""


def render(
    report: MetricsReport,
    vmstat: Vmstat,
    model: str,
    compat: str = "",
    http: Traffic | None = None,
    accept: str = "",
) -> tuple[bytes, str]:
    """Body and content type of /metrics: OpenMetrics if `accept` asks for it, else Prometheus'
    text format. `compat`: "" or "vllm" (then always the latter). `http`: the gateway's counters."""
    # OpenMetrics would make an underscore of the colon in vLLM's names.
    encode, content_type = choose_encoder("" if compat else accept)
    families = [*_of_meters(report), *_of_vmstat(vmstat), *(http.collect() if http else ())]
    families.append(_gauge("tokenix_model_info", "What is served.", [({"model": model}, 1)]))
    if compat == "vllm":
        families += _as_vllm(report, vmstat, model)
    return encode(_Families(families)), content_type


class _Families(Collector):
    """Metric families that are there already, as an encoder wants them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


Sample = tuple[dict[str, str], float]


def _gauge(name: str, text: str, samples: Sequence[Sample]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_labels(samples))
    for labels, value in samples:
        family.add_metric(tuple(labels.values()), value)
    return family


def _counter(name: str, text: str, samples: Sequence[Sample]) -> Metric:
    family = CounterMetricFamily(name, text, labels=_labels(samples))
    for labels, value in samples:
        family.add_metric(tuple(labels.values()), value)
    return family


def _labels(samples: Sequence[Sample]) -> tuple[str, ...]:
    return tuple(samples[0][0]) if samples else ()


def _histogram(
    name: str,
    text: str,
    bounds: Sequence[float],
    samples: Sequence[tuple[dict[str, str], Sequence[int], float]],
) -> Metric:
    """`samples`: labels, counts per bucket, sum."""
    labels = tuple(samples[0][0]) if samples else ()
    family = HistogramMetricFamily(name, text, labels=labels)
    edges = [*(str(float(bound)) for bound in bounds), "+Inf"]
    for key, counts, total in samples:
        below = 0
        buckets = []
        for edge, count in zip(edges, counts, strict=True):
            below += count
            buckets.append((edge, below))
        family.add_metric(tuple(key.values()), buckets, total)
    return family


# ---- our names ----


def _of_meters(report: MetricsReport) -> Iterator[Metric]:
    keyed = [({"class": s.qos, "tenant": s.tenant}, s) for s in report.series]
    for name, (title, text) in SPANS.items():
        spans = [(key, s.spans[name].counts, s.spans[name].sum) for key, s in keyed]
        yield _histogram(title, text, report.bounds[name], spans)
    for name, (title, text) in COUNTS.items():
        yield _counter(title, text, [(key, s.counts[name]) for key, s in keyed])
    yield _counter(*PREFIX_QUERIES, [(key, s.counts["prompt_tokens"]) for key, s in keyed])
    yield _counter(*PREFIX_HITS, [(key, s.counts["cached_tokens"]) for key, s in keyed])
    yield _counter(
        "tokenix_requests_finished", "Requests that have ended, by why.",
        [
            ({**key, "finished_reason": reason}, count)
            for key, s in keyed for reason, count in sorted(s.ends.items())
        ],
    )  # fmt: skip


def _of_vmstat(vmstat: Vmstat) -> Iterator[Metric]:
    for name, (title, text) in GAUGES.items():
        yield _gauge(title, text, [({}, vmstat[name])])
    for name, (title, text) in TOTALS.items():
        yield _counter(title, text, [({}, vmstat[name])])
    for start, (title, text, label) in GROUPS.items():
        own = [name for name in vmstat if name.startswith(start) and not name.endswith("_s")]
        yield _gauge(title, text, [({label: name[len(start) :]}, vmstat[name]) for name in own])
    yield _gauge(
        "tokenix_oldest_wait_seconds", "How long the oldest of a class waits for its first pages.",
        [
            ({"class": name[len("waiting.") : -len("_oldest_s")]}, value)
            for name, value in vmstat.items() if name.endswith("_oldest_s")
        ],
    )  # fmt: skip
    yield from _of_memory(vmstat)
    yield _gauge(
        "tokenix_reader_lead_seconds", "How far streams are ahead of their readers.", _leads(vmstat)
    )
    yield _counter(
        "tokenix_process_exits", "Processes that have ended, by why.",
        [
            ({"reason": name[len("exits.") :]}, value)
            for name, value in vmstat.items() if name.startswith("exits.")
        ],
    )  # fmt: skip
    yield _counter(
        "tokenix_image_events", "What happened to images.",
        [
            ({"event": event}, vmstat[f"images.{event}"])
            for event in ("saved", "resumed", "failed", "refused")
        ],
    )  # fmt: skip


def _of_memory(vmstat: Vmstat) -> Iterator[Metric]:
    tiers = {"device": ("frames", ("free", "held", "cached", "in_transfer"))}
    tiers |= {tier: (tier, ("free", "writing", "valid", "doomed")) for tier in ("host", "disk")}
    yield _gauge(
        "tokenix_kv_pages", "Places for KV pages by tier and state.",
        [
            ({"tier": tier, "state": state}, vmstat[f"{name}.{state}"])
            for tier, (name, states) in tiers.items() for state in states
        ],
    )  # fmt: skip
    held = vmstat["frames.held"] + vmstat["frames.in_transfer"]
    yield _gauge(
        "tokenix_kv_cache_usage_ratio", "Share of the device's pages that requests hold.",
        [({}, held / vmstat["frames.total"])],
    )  # fmt: skip
    yield _counter(
        "tokenix_tier_pages", "Pages written to a tier, read back, or given up unread.",
        [
            ({"tier": tier, "event": event}, vmstat[f"{tier}.{event}"])
            for tier in ("host", "disk") for event in ("written", "returned", "dropped")
        ],
    )  # fmt: skip
    lanes = ("out", "in", "store", "fetch")
    yield _counter(
        "tokenix_swapped_pages",
        "Pages copied: device to host (out) and back (in), host to disk (store) and back (fetch).",
        [({"lane": lane}, vmstat[f"swap.pages_{lane}"]) for lane in lanes],
    )
    yield _gauge(
        "tokenix_swap_seconds_per_page", "Measured time of one page on a lane.",
        [({"lane": lane}, vmstat[f"swap.{lane}_s_per_page"]) for lane in lanes],
    )  # fmt: skip


def _leads(vmstat: Vmstat) -> list[Sample]:
    found: list[Sample] = []
    for name, value in vmstat.items():
        if name.startswith("lead."):
            streams, _, which = name[len("lead.") : -len("_s")].partition("_")
            found.append(({"streams": streams, "stat": which}, value))
    return found


# ---- the names of vLLM ----


def _as_vllm(report: MetricsReport, vmstat: Vmstat, model: str) -> Iterator[Metric]:
    own = {"model_name": model}

    def count(name: str) -> list[Sample]:
        return [(own, sum(series.counts[name] for series in report.series))]

    for name, title in (
        ("ttft_s", "time_to_first_token"), ("itl_s", "inter_token_latency"),
        ("e2e_s", "e2e_request_latency"), ("queue_s", "request_queue_time"),
        ("prefill_s", "request_prefill_time"), ("decode_s", "request_decode_time"),
    ):  # fmt: skip
        bounds = report.bounds[name]
        counts, total = _sum([series.spans[name] for series in report.series], len(bounds) + 1)
        text = f"As {SPANS[name][0]}, of all."
        yield _histogram(f"vllm:{title}_seconds", text, bounds, [(own, counts, total)])
    waiting = sum(vmstat[f"queues.{queue}"] for queue in ("waiting", "paused", "moving"))
    held = vmstat["frames.held"] + vmstat["frames.in_transfer"]
    for title, text, value in (
        ("num_requests_running", "Requests with their KV pages.", vmstat["queues.ready"]),
        ("num_requests_waiting", "Requests without them: new or preempted.", waiting),
        ("kv_cache_usage_perc", "Share of KV pages in use; 1 is all.",
         held / vmstat["frames.total"]),
    ):  # fmt: skip
        yield _gauge(f"vllm:{title}", text, [(own, value)])
    yield _counter("vllm:prompt_tokens", "Prompt tokens.", count("prompt_tokens"))
    yield _counter("vllm:generation_tokens", "Generated tokens.", count("output_tokens"))
    yield _counter("vllm:prefix_cache_queries", PREFIX_QUERIES[1], count("prompt_tokens"))
    yield _counter("vllm:prefix_cache_hits", PREFIX_HITS[1], count("cached_tokens"))
    yield _counter("vllm:num_preemptions", "Preemptions.", count("preemptions"))
    ends = dict.fromkeys(("stop", "length", "abort", "error"), 0)
    for series in report.series:
        for reason, number in series.ends.items():
            ends[REASONS.get(reason, "abort")] += number
    finished: list[Sample] = [({**own, "finished_reason": r}, n) for r, n in ends.items()]
    yield _counter("vllm:request_success", "Finished requests by why.", finished)


def _sum(spans: Iterable[Distribution], buckets: int) -> tuple[list[int], float]:
    counts, total = [0] * buckets, 0.0
    for span in spans:
        counts = [a + b for a, b in zip(counts, span.counts, strict=True)]
        total += span.sum
    return counts, total
