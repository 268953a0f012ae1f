"""A machine in virtual time: the production kernel on a simulated device, for experiments.

    machine = SimMachine(SimOptions(device="h100", model="llama-3.1-8b", policy="progress"))
    pid = machine.spawn(prompt_tokens, max_tokens=200, reader_tokens_per_s=10.0)
    machine.advance(60.0)                       # one minute passes
    for ended in machine.take_ended(): ...      # with the time of every token

Nothing waits and nothing sleeps: a run is a function of its calls. Output stays in the pipes (they
have no bound here) until a process ends, then it is read and waited for by the usual calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tokenix.drivers.sim.catalog import Catalog, builtin, load_presets
from tokenix.drivers.sim.fast import VOCAB, FastDevice
from tokenix.drivers.sim.presets import Gpu, Llm
from tokenix.drivers.sim.roofline import GB, Roofline
from tokenix.kernel.answers import ReadResult, WaitResult
from tokenix.kernel.boot import make_kernel
from tokenix.kernel.calls import (
    KernelError,
    Kill,
    Principal,
    Read,
    Request,
    Signal,
    Spawn,
    Swapon,
    Sysctl,
    Wait,
)
from tokenix.kernel.event import Call, Event, Reply
from tokenix.kernel.params import Params
from tokenix.kernel.snapshot import vmstat
from tokenix.kernel.swapfile import FileState
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader
from tokenix.sched.plan import PauseMode
from tokenix.sched.policies import POLICIES
from tokenix.sched.tunables import Tunables, retune
from tokenix.syscalls.policyfile import find_policy

__all__ = [
    "GB", "VOCAB", "Catalog", "Ended", "Gpu", "Llm", "Roofline", "SimMachine", "SimOptions",
    "builtin", "load_presets", "policies",
]  # fmt: skip

UNBOUNDED = 1 << 60
MAX_IDLE_STEPS = 64
"""Steps in a row at one moment without an event: more is a kernel that spins."""


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What to simulate."""

    device: str = "h100"
    model: str = "llama-3.1-8b"
    policy: str = "progress"
    """A shipped one's name, or FILE.py:NAME (`policyfile.py`)."""
    tp: int = 1
    kv_pages: int | None = None
    """Pages of 16 tokens; None: `kv_gb`, or what fits beside the weights."""
    kv_gb: float | None = None
    link_gb_per_s: float | None = None
    """Each direction; None: the device's own."""
    copy_contention: float | None = None
    """Share by which a step is slower while copies run one way; None: the device's own."""
    host_pools: float = 4.0
    """Size of the host tier in device pools; policies that never swap get none."""
    file_pools: float = 0.0
    """Size of the swap file below it, likewise; 0: there is none."""
    prefix_cache: bool = False
    tunables: Mapping[str, float] = field(default_factory=dict)
    """Overrides of scheduler constants, by name."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of tenants; 1 for those that are not named."""
    catalog: Catalog = field(default_factory=builtin)
    cover_loads: bool = True
    """Prompts are computed while what is before them is loaded (of one GPU, as its driver does)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that is over."""

    pid: Pid
    refused: bool
    """It was let go because it could not be served in time (EAGAIN after a wait)."""
    complete: bool
    """It produced all its output."""
    times_s: tuple[float, ...]
    """When each token was delivered."""
    preemptions: int
    recomputed_tokens: int
    cached_tokens: int
    """Of its prompt, found to be computed already; of those ..."""
    cached_host_tokens: int
    """... in the host tier ..."""
    cached_file_tokens: int
    """... and in the swap file."""


def policies() -> tuple[str, ...]:
    """Names of all policies, the default first."""
    return tuple(POLICIES)


class SimMachine:
    """One kernel and its device. ValueError: an option that cannot be."""

    def __init__(self, options: SimOptions) -> None:
        policy = find_policy(options.policy)
        self.roofline = roofline_of(options)
        self.kv_pages = _pool(options, self.roofline)
        swaps = POLICIES[policy].pause_mode is PauseMode.SWAP
        host_pages = int(options.host_pools * self.kv_pages) if swaps else 0
        if host_pages < 0:
            raise ValueError(f"host_pools must not be negative ({options.host_pools:g})")
        self._device = FastDevice(
            self.roofline,
            frames=self.kv_pages,
            host_slots=host_pages,
            page_tokens=self.roofline.page_tokens,
            page_bytes=int(self.roofline.page_bytes),
            prefill_tokens_per_s=self.roofline.prefill_tokens_per_s(),
            max_context_tokens=max(
                self.roofline.model.max_context_tokens, self.kv_pages * self.roofline.page_tokens
            ),
            name=f"{options.tp} x {self.roofline.gpu.name}",
            copy_contention=self.roofline.copy_contention,
            covers_loads=options.cover_loads and options.tp == 1,
        )
        params = Params(pipe_tokens=UNBOUNDED, prefix_cache=options.prefix_cache)
        if not swaps:  # as the engines that these policies model: cached until it is overwritten
            params = replace(params, reclaim_low_share=0.0, reclaim_high_share=0.0)
        self._kernel = make_kernel(
            self._device, policy, params, retune(Tunables(), options.tunables)
        )
        self.now_s = 0.0
        self.steps = 0
        self._calls: list[Event] = []
        self._asked: dict[int, Pid] = {}
        """Call -> the process that it reads or waits for."""
        self._read: dict[Pid, ReadResult] = {}
        self._ended: list[Ended] = []
        self._call_ids = 0
        self._idle_steps = 0
        if options.file_pools < 0:
            raise ValueError(f"file_pools must not be negative ({options.file_pools:g})")
        if options.file_pools and host_pages:
            self._open_swap_file(int(options.file_pools * self.kv_pages))
        for tenant, weight in sorted(options.weights.items()):
            self._call(Principal(root=True), Sysctl(f"weights.{tenant}", weight))

    def spawn(
        self,
        tokens: tuple[int, ...],
        max_tokens: int,
        reader_tokens_per_s: float = 10.0,
        qos: str = "stream",
        tenant: str = "default",
    ) -> Pid | None:
        """A process now; None if it is refused at once (EAGAIN). ValueError for other errors."""
        request = Spawn(
            tokens,
            max_tokens=max_tokens,
            ignore_eos=True,
            qos=Qos[qos.upper()],
            reader=Reader(tokens_per_s=reader_tokens_per_s),
        )
        reply = self._call(Principal(tenant), request)
        if reply.error is not None:
            return None
        assert isinstance(reply.value, int)
        return Pid(reply.value)

    def advance(self, until_s: float) -> bool:
        """Let virtual time pass. False if nothing is left that would ever happen."""
        while True:
            next_s = self._next_s()
            if next_s is None or next_s > until_s:
                self.now_s = max(self.now_s, until_s)
                self._idle_steps = 0
                return next_s is not None
            if next_s > self.now_s:
                self.now_s = next_s
                self._idle_steps = 0
            self._step(list(self._device.poll(self.now_s)))

    def terminate(self) -> None:
        """End all that live (SIGTERM); what they had delivered counts."""
        calls: list[Event] = []
        for pid in sorted(self._kernel.processes):
            self._call_ids += 1
            calls.append(Call(self._call_ids, Principal(root=True), Kill(pid, Signal.TERM)))
        self._step(calls)
        while self._calls:
            self._step([])

    def take_ended(self) -> list[Ended]:
        """The processes that have ended since it was last asked."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def living(self) -> int:
        """Processes that have not ended."""
        return len(self._kernel.processes)

    @property
    def busy_s(self) -> float:
        """Seconds that the device has computed."""
        return self._device.busy_s

    def vmstat(self) -> dict[str, float]:
        return vmstat(self._kernel)

    def digest(self) -> str:
        """Of everything that happened: equal for equal runs."""
        return self._kernel.trace.digest()

    # ---- inside ----

    def _open_swap_file(self, pages: int) -> None:
        """Its rates are those of the device's preset."""
        self._call_ids += 1
        request = Swapon("/", pages * self._kernel.info.frame_bytes)
        self._step([Call(self._call_ids, Principal(root=True), request)])
        self._step(list(self._device.poll(self.now_s)))
        assert self._kernel.swapfile.state is FileState.ON, "a simulated disk has room"

    def _call(self, who: Principal, request: Request) -> Reply:
        """Its answer, which may be EAGAIN. ValueError for other errors."""
        self._call_ids += 1
        reply = self._step([Call(self._call_ids, who, request)])[self._call_ids]
        if reply.error is not None and reply.error.retry_after_s is None:
            raise ValueError(reply.error.message)
        return reply

    def _next_s(self) -> float | None:
        if self._calls:
            return self.now_s
        times = (self._device.next_completion_s(), self._kernel.next_wake_s())
        known = [time for time in times if time is not None]
        return max(self.now_s, min(known)) if known else None

    def _step(self, inbox: list[Event]) -> dict[int, Reply]:
        if self._calls:
            inbox = [*self._calls, *inbox]
            self._calls = []
        self._idle_steps = 0 if inbox else self._idle_steps + 1
        assert self._idle_steps <= MAX_IDLE_STEPS, f"the kernel spins at {self.now_s:.6f} s"
        self.steps += 1
        replies: dict[int, Reply] = {}
        for command in self._kernel.step(self.now_s, inbox):
            if isinstance(command, Reply):
                replies[command.call_id] = command
            else:
                self._device.submit(command, self.now_s)
        for call_id, reply in replies.items():
            if call_id in self._asked:
                self._answered(self._asked.pop(call_id), reply)
        if self._kernel.zombies:
            self._collect()
        return replies

    def _collect(self) -> None:
        """Ask for the output and the end of those that have ended."""
        asked = set(self._asked.values())
        for pid, process in self._kernel.zombies.items():
            if pid in asked:
                continue
            who = Principal(process.tenant)
            for request in (Read(pid), Wait(pid)):
                self._call_ids += 1
                self._asked[self._call_ids] = pid
                self._calls.append(Call(self._call_ids, who, request))

    def _answered(self, pid: Pid, reply: Reply) -> None:
        assert not isinstance(reply.error, KernelError), f"a zombie can be read: {reply.error}"
        if isinstance(reply.value, ReadResult):
            self._read[pid] = reply.value
            return
        assert isinstance(reply.value, WaitResult)
        times_s = tuple(output.time_s for output in self._read.pop(pid).outputs)
        usage, reason = reply.value.rusage, reply.value.reason.value
        self._ended.append(
            Ended(
                pid, reason == "refused", reason == "length", times_s,
                usage.preemptions, usage.recomputed_tokens, usage.cached_tokens,
                usage.cached_host_tokens, usage.cached_file_tokens,
            )
        )  # fmt: skip


def roofline_of(options: SimOptions) -> Roofline:
    """The device and model that `options` name. ValueError."""
    catalog = options.catalog
    return Roofline(
        catalog.gpu(options.device),
        catalog.model(options.model),
        options.tp,
        link_gb_per_s=options.link_gb_per_s,
        contention=options.copy_contention,
    )


def memory_pages(options: SimOptions) -> int:
    """KV pages that fit beside the weights. ValueError: the model does not fit."""
    return roofline_of(options).memory_pages()


def _pool(options: SimOptions, roofline: Roofline) -> int:
    if options.kv_pages is not None:
        pages = options.kv_pages
    elif options.kv_gb is not None:
        pages = int(options.kv_gb * GB / roofline.page_bytes)
    else:
        return roofline.memory_pages()
    if pages < 2:
        raise ValueError(f"a KV pool of {pages} pages holds no process; give it at least 2")
    return pages
