"""Experiments: a trace replayed against the production kernel in virtual time, and its figures.

    attained    first token within 1 s of arrival
    stalled     some token came later than its reader's deadline by more than 0.5 s
    good        attained, finished, not stalled; refused requests are failures
    TTFT        over the requests that got a first token

The reader needs the first token whenever it comes and then one every 1/rate seconds; a late token
shifts those behind it. Requests whose prompt and output exceed 0.9 of the pool are left out.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tokenix.bench.filling import filling
from tokenix.bench.metrics import percentile
from tokenix.bench.traces import Request, Trace, Window, cut, drop_too_long
from tokenix.syscalls.simulation import GB, VOCAB, Ended, SimMachine, SimOptions

TARGET_S = 1.0
STALL_S = 0.5
UNREAD = ("batch", "idle")
"""Classes that nobody reads along: no token of theirs is late."""
DRAIN_S = 1500.0
"""After the last arrival a run goes on for at most this long."""

Watch = Callable[[float], None]
"""Told the share of the run that is done, now and then."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One run."""

    machine: SimOptions = field(default_factory=SimOptions)
    window: Window = field(default_factory=Window)
    reader: float = 10.0
    """Tokens per second that every reader reads, and declares to read."""
    declared: float | None = None
    """What readers declare, if it is not what they do."""
    classes: tuple[str, ...] = ("stream",)
    """Service classes, dealt to the requests in turn."""
    tenants: bool = False
    """Processes belong to the trace's clients; otherwise all to one."""
    template_tokens: int = 0
    """Tokens that every prompt begins with (a chat template); only with the prefix cache they
    matter."""
    hidden: bool = False
    """Readers begin after the hidden tokens (reasoning) of the trace; the kernel is not told."""
    warmup_s: float = 0.0
    """Requests that arrive before this fill the machine and are not counted."""
    fill: bool = False
    """The machine is filled during the warm-up with the streams that would be under way when the
    window begins (filling.py)."""
    drain_s: float = DRAIN_S
    fits_pages: int | None = None
    """Requests too long for a pool of so many pages are left out, though this one is larger: runs
    on several pools have the same requests."""
    keep_times: bool = False
    """Outcomes have the times of all their tokens."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. Times from the start of the run."""

    request: Request
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    late_s: float = 0.0
    """The worst lateness of a token behind its reader's deadline."""
    finished: bool = False
    refused: bool = False
    preemptions: int = 0
    work_tokens: int = 0
    """Prompt and output that were delivered while requests arrived (after the warm-up)."""
    visible_s: float | None = None
    """The first token behind the hidden ones."""
    qos: str = "stream"
    times_s: tuple[float, ...] = ()
    """Of all tokens, if they were kept."""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.request.arrival_s

    @property
    def visible_ttft_s(self) -> float | None:
        return None if self.visible_s is None else self.visible_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None below two tokens."""
        if self.first_s is None or self.last_s is None or self.tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)

    @property
    def attained(self) -> bool:
        return self.ttft_s is not None and self.ttft_s <= TARGET_S

    @property
    def stalled(self) -> bool:
        return self.late_s > STALL_S

    @property
    def good(self) -> bool:
        return self.attained and self.finished and not self.stalled


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one run, and what they were made from."""

    policy: str
    rate_scale: float
    kv_gb: float
    reader: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    visible_stall_rate: float
    """Of the streams that began, the share with a visible stall."""
    goodput: float
    """Share of all requests."""
    output_tokens_per_s: float
    """Over the time from the first arrival to the last token."""
    rejected: int
    """Requests that were refused, at arrival or after a wait."""
    wasted_tokens: int
    """Tokens whose KV was computed more than once."""
    swap_gb: float
    """Both directions."""
    digest: str
    """Of the kernel's trace: equal runs have equal digests."""
    visible_p50_s: float | None
    """TTFT of the first token that is not hidden; the others count any token."""
    visible_p95_s: float | None
    attained: float
    requests: int
    left_out: int
    """Requests too long for the pool, not counted anywhere."""
    kv_pages: int
    makespan_s: float
    useful_tokens_per_s: float
    """Prompt and output that finished requests were delivered while requests arrived, per second
    of that time: what the machine does for good under this load."""
    miss_rate: float
    """Tokens whose KV was loaded or computed again, per token of output."""
    preemptions: int
    steps: int
    outcomes: tuple[Outcome, ...]

    def as_json(self) -> dict[str, object]:
        """The keys that `tokenix sim --json` prints."""
        return {name: getattr(self, name) for name in JSON_FIELDS}


JSON_FIELDS = (
    "policy", "rate_scale", "kv_gb", "reader", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s",
    "visible_stall_rate", "goodput", "output_tokens_per_s", "rejected", "wasted_tokens", "swap_gb",
    "digest",
)  # fmt: skip


def lateness_s(times_s: Sequence[float], rate: float) -> float:
    """The worst lateness of a token. Deadline k: max(deadline k-1, delivery k-1) + 1/rate."""
    if not times_s:
        return 0.0
    period_s = 1.0 / rate
    due_s = times_s[0] + period_s
    worst_s = 0.0
    for time_s in times_s[1:]:
        if time_s > due_s:
            worst_s = max(worst_s, time_s - due_s)
            due_s = time_s
        due_s += period_s
    return worst_s


def run(trace: Trace, setup: Setup, watch: Watch | None = None) -> Result:
    """Replay `trace` once. ValueError: what cannot be simulated. Equal arguments, equal result."""
    machine = SimMachine(setup.machine)
    pool_tokens = (setup.fits_pages or machine.kv_pages) * machine.roofline.page_tokens
    arriving = cut(trace, setup.window)
    if setup.fill:
        roofline, pages = machine.roofline, machine.kv_pages
        arriving += filling(trace, setup.window, roofline, pages, setup.warmup_s)
        arriving.sort(key=lambda request: request.arrival_s)
    requests, left_out = drop_too_long(arriving, pool_tokens)
    if not requests or requests[-1].arrival_s < setup.warmup_s:
        raise ValueError(f"no request of {trace.name} is in the window and fits into the pool")
    outcomes = [
        Outcome(request, refused=True, qos=_class_of(setup, index))
        for index, request in enumerate(requests)
    ]
    indices: dict[int, int] = {}
    prompts = Prompts(trace.block_tokens, setup.template_tokens)
    declared = setup.declared or setup.reader
    last_s = requests[-1].arrival_s

    def note() -> None:
        for end in machine.take_ended():
            index = indices.pop(end.pid)
            outcomes[index] = _outcome(outcomes[index], end, setup, last_s)

    for index, request in enumerate(requests):
        machine.advance(request.arrival_s)
        pid = machine.spawn(
            prompts.tokens(index, request),
            request.output_tokens,
            reader_tokens_per_s=declared,
            qos=_class_of(setup, index),
            tenant=request.tenant if setup.tenants else "default",
        )
        if pid is not None:
            indices[pid] = index
            outcomes[index] = replace(outcomes[index], refused=False)
        note()
        if watch is not None and index % 64 == 0:
            watch(0.9 * index / len(requests))
    most = max(1, len(indices))
    end_s = last_s + setup.drain_s
    while indices and machine.now_s < end_s and machine.advance(min(end_s, machine.now_s + 10.0)):
        note()
        if watch is not None:
            watch(0.9 + 0.1 * max(0.0, 1 - len(indices) / most))
    machine.terminate()
    note()
    if watch is not None:
        watch(1.0)
    return _summarise(setup, machine, outcomes, left_out)


def _class_of(setup: Setup, index: int) -> str:
    return setup.classes[index % len(setup.classes)]


def _outcome(begun: Outcome, end: Ended, setup: Setup, last_s: float) -> Outcome:
    request, times_s = begun.request, end.times_s
    seen_s = times_s[request.hidden_tokens :]
    read_s = seen_s if setup.hidden else times_s
    if begun.qos in UNREAD:
        read_s = ()
    work = bisect_right(times_s, last_s) - bisect_left(times_s, setup.warmup_s)
    if times_s and setup.warmup_s <= times_s[0] <= last_s:
        work += request.prompt_tokens
    return replace(
        begun,
        first_s=times_s[0] if times_s else None,
        last_s=times_s[-1] if times_s else None,
        tokens=len(times_s),
        visible_s=seen_s[0] if seen_s else None,
        late_s=lateness_s(read_s, setup.reader),
        finished=end.complete,
        refused=end.refused,
        preemptions=end.preemptions,
        work_tokens=work,
        times_s=times_s if setup.keep_times else (),
    )


class Prompts:
    """Prompt tokens for requests: blocks with equal ids are equal, and the first
    `template_tokens` of requests without ids; everything else is unique."""

    def __init__(self, block_tokens: int, template_tokens: int = 0) -> None:
        self._block_tokens = block_tokens
        self._template = tuple(i % VOCAB for i in range(template_tokens))
        self._filler = tuple(range(block_tokens))

    def tokens(self, index: int, request: Request) -> tuple[int, ...]:
        """A page is named by all that is before it, so it is enough that the first tokens of a
        block tell it apart."""
        count = request.prompt_tokens
        if not request.blocks:
            if len(self._filler) < count:
                self._filler = tuple(i % VOCAB for i in range(count))
            return (self._template + _mark(index + 1) + self._filler)[:count]
        rest = self._filler[: max(0, self._block_tokens - 3)]
        parts: list[int] = []
        for block in request.blocks:
            parts += _mark(-1 - block)
            parts += rest
        missing = count - len(parts)
        if missing > 0:
            parts += _mark(index + 1) + tuple(i % VOCAB for i in range(missing))
        return tuple(parts[:count])


def _mark(number: int) -> tuple[int, int, int]:
    """Three tokens that tell numbers apart; negative ones are blocks."""
    size = abs(number)
    side = VOCAB // 2 if number < 0 else 0
    return (size % VOCAB, size // VOCAB % VOCAB, size // VOCAB**2 % (VOCAB // 2) + side)


def _summarise(setup: Setup, machine: SimMachine, every: list[Outcome], left_out: int) -> Result:
    useful = sum(o.work_tokens for o in every if o.finished)
    arrivals_s = every[-1].request.arrival_s - setup.warmup_s
    outcomes = [o for o in every if o.request.arrival_s >= setup.warmup_s]
    ttfts = [o.ttft_s for o in outcomes if o.ttft_s is not None]
    visible = [o.visible_ttft_s for o in outcomes if o.visible_ttft_s is not None]
    stats = machine.vmstat()
    missed = stats["recomputed_tokens"]
    missed += stats["swap.pages_in"] * machine.roofline.page_tokens
    first_s = outcomes[0].request.arrival_s
    makespan_s = max([o.last_s for o in outcomes if o.last_s is not None], default=0.0) - first_s
    return Result(
        policy=setup.machine.policy,
        rate_scale=setup.window.rate_scale,
        kv_gb=machine.kv_pages * machine.roofline.page_bytes / GB,
        reader=setup.reader,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p95_s=percentile(ttfts, 95),
        ttft_p99_s=percentile(ttfts, 99),
        visible_stall_rate=sum(o.stalled for o in outcomes) / max(1, len(ttfts)),
        goodput=sum(o.good for o in outcomes) / len(outcomes),
        output_tokens_per_s=sum(o.tokens for o in outcomes) / makespan_s if makespan_s else 0.0,
        rejected=sum(o.refused for o in outcomes),
        wasted_tokens=int(stats["recomputed_tokens"]),
        swap_gb=stats["swap.bytes"] / GB,
        digest=machine.digest(),
        visible_p50_s=percentile(visible, 50),
        visible_p95_s=percentile(visible, 95),
        attained=sum(o.attained for o in outcomes) / len(outcomes),
        requests=len(outcomes),
        left_out=left_out,
        kv_pages=machine.kv_pages,
        makespan_s=makespan_s,
        useful_tokens_per_s=useful / arrivals_s if arrivals_s else 0.0,
        miss_rate=missed / max(1.0, stats["output_tokens"]),
        preemptions=int(stats["preemptions"]),
        steps=machine.steps,
        outcomes=tuple(outcomes),
    )
