"""System calls in this process, blocking. `boot` starts a machine; the object it gives is the
syscall API, with the same names that the async twin (`aio.py`) has.

Errors are OSErrors of the class Python uses for their errno: ProcessLookupError for ESRCH,
BlockingIOError (with `retry_after_s`) for EAGAIN, ChildProcessError for ECHILD, and so on.

The kernel itself is imported by `boot`: who only calls one behind a socket never loads it.
"""

import errno
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from msgspec.structs import replace

from tokenix.kernel import calls
from tokenix.kernel.answers import (
    ImageInfo,
    Listing,
    MetricsReport,
    PageMap,
    PlaceMap,
    PlanReport,
    PrefixNode,
    ProcessStat,
    ReadResult,
    WaitResult,
    ends_turn,
)
from tokenix.kernel.calls import Asks, KernelError
from tokenix.kernel.trace import TraceEvent
from tokenix.mm.ids import Pid
from tokenix.syscalls import endings, requests
from tokenix.syscalls.port import Flow, LocalPort, Port
from tokenix.syscalls.requests import Prompt, SpawnOptions
from tokenix.syscalls.texts import (
    Detokenize,
    GetModel,
    ModelInfo,
    ShmText,
    SpawnText,
    TokenBytes,
    Tokenize,
    WriteText,
)
from tokenix.syscalls.unclaimed import Unclaimed

if TYPE_CHECKING:
    import os

    from tokenix.kernel.boot import Machine, Progress
    from tokenix.kernel.params import Params

Answer = TypeVar("Answer")


def boot(
    model: str = "smollm2",
    *,
    device_pages: int | None = None,
    host_pages: int | None = None,
    swap_dir: str | None = None,
    swap_bytes: int | None = None,
    image_dir: str | None = None,
    swap_resume: bool = False,
    policy: str = "progress",
    driver: str = "cpu",
    tensor_parallel: int = 1,
    page_tokens: int = 16,
    kv_dtype: str = "f16",
    weights: str = "auto",
    weight_cache: bool = True,
    threads: int | None = None,
    params: "Params | None" = None,
    tunables: Mapping[str, float] | None = None,
    progress: "Progress | None" = None,
) -> "Syscalls":
    """Load `model` (a name, a .gguf file or a Hugging Face directory) and serve it.

    device_pages: KV pages on the device; host_pages: pages of the host tier (0: none); a page holds
    `page_tokens` tokens in the format `kv_dtype` (`drivers/kvkind.py`); weights: how those of the
    model are kept (`drivers/weightkind.py`); weight_cache: those that the cpu driver has packed are
    kept in the user's cache folder for the next start. swap_dir, swap_bytes: a swap file below
    that, as `swapon` makes. image_dir: where images of processes are kept: those of `suspend`, and
    with Params(image_idle_s=...) those of processes that wait for input so long; swap_resume: the
    latter come back from the last kernel that had the directory. policy: one of those that
    sched/README.md has. tensor_parallel: GPUs that compute the model together (driver "cuda").
    tunables: overrides of scheduler constants, as `sysctl` shows them. Use it as a context manager,
    or call `close`. OSError: ENOENT, EINVAL, ENOEXEC (not a model that can be run), ENODEV (no
    driver), EIO (no swap file can be made there), EBUSY (another kernel has that image_dir), and
    whatever else a directory is refused with.
    """
    from tokenix.kernel.boot import BootOptions
    from tokenix.kernel.boot import boot as boot_machine
    from tokenix.kernel.params import Params

    options = BootOptions(
        model, driver, policy, device_pages, host_pages, page_tokens, kv_dtype, weights, threads,
        params or Params(), tunables or {}, swap_dir, swap_bytes, image_dir, swap_resume,
        tensor_parallel, weight_cache,
    )  # fmt: skip
    return Syscalls(LocalPort(boot_machine(options, progress)))


def check_boot(**options: Any) -> None:
    """Look at the options of `boot`, and load nothing. OSError EINVAL, ENODEV: what of them makes
    no sense, on whatever machine."""
    from tokenix.kernel.boot import BootOptions, check_options

    check_options(BootOptions(**options))


def connect(path: "str | os.PathLike[str] | None" = None) -> "Syscalls":
    """The kernel of a daemon (`tokenix serve`) on this machine, behind the Unix socket `path`; by
    default that of TOKENIX_SOCKET or of the user's runtime directory (`wire/paths.py`).

    What is started over the connection ends with it, unless it was spawned with `detach=True`.
    FileNotFoundError, ConnectionRefusedError: no kernel listens there. OSError EPROTONOSUPPORT: it
    is of another version.
    """
    from tokenix.syscalls.wire import client

    return Syscalls(client.connect(path))


class Syscalls:
    """The system calls of a running machine. Thread-safe."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._unclaimed = Unclaimed(port)

    @property
    def port(self) -> Port:
        """Where the calls go."""
        return self._port

    @property
    def machine(self) -> "Machine":
        """The image, the kernel and its pump; to look at, not to change."""
        assert isinstance(self._port, LocalPort), "the kernel runs in this process"
        return self._port.machine

    def as_tenant(self, tenant: str) -> "Syscalls":
        """The same machine as `tenant` sees it: only its own processes, no root calls."""
        return Syscalls(self._port.as_tenant(requests.check_tenant(tenant)))

    def spawn(self, prompt: Prompt, **options: Unpack[SpawnOptions]) -> Pid:
        """Start generating from `prompt`; its pid. EINVAL, E2BIG, EAGAIN (`retry_after_s`)."""
        return self._call(SpawnText(prompt, dict(options)))

    def read(
        self,
        pid: Pid,
        max_tokens: int = 1 << 30,
        block: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResult:
        """Take output; by default waits until there is some. ESRCH, EPIPE, TimeoutError."""
        return self._call(calls.Read(pid, max_tokens, block), timeout_s)

    def stream(self, pid: Pid) -> Iterator[str]:
        """The text of the present turn, piece by piece as it is generated.

        What it has is yielded first, then OSError if the turn is not complete: EIO (the process
        failed), EAGAIN (refused after all), ECANCELED (killed, terminated or suspended by somebody,
        which may be the caller), ETIMEDOUT (its deadline), EDQUOT (its max_pages).
        """
        for result in self.follow(pid):
            text = endings.text_of(result)
            if text:
                yield text
            if ends_turn(result):
                endings.raise_if_failed(pid, result)

    def follow(self, pid: Pid) -> Iterator[ReadResult]:
        """What reads of the present turn bring, one after another; the last one ends it. Over a
        socket it is pushed, without a call for each. Who leaves it early loses nothing: the next
        read gets what was on the way."""
        request = requests.check(calls.Read(pid))
        while isinstance(flow := self._open(pid, request), ReadResult):
            yield flow
            if ends_turn(flow):
                return
        try:
            while True:
                pushed = flow.take()
                if pushed is None:
                    ready = threading.Event()
                    flow.when_ready(ready.set)
                    ready.wait()
                    continue
                yield pushed
                if ends_turn(pushed):
                    return
        except KernelError as problem:
            raise problem.as_os_error() from None
        finally:
            for rest in flow.stop().result():
                self._unclaimed.keep(request, rest)

    def _open(self, pid: Pid, request: Asks[ReadResult]) -> Flow | ReadResult:
        """A flow of what is not read yet; or else the next result, if one was kept or if reads are
        as good here."""
        kept = self._unclaimed.take(request)
        if kept is not None:
            return cast("ReadResult", kept)
        return self._port.follow(pid) or self.read(pid)

    def write(
        self, pid: Pid, data: str | Sequence[int] = "", eof: bool = False, raw: bool = False
    ) -> int:
        """Give a process that is kept open its next input; `eof` closes it. ESRCH, EPIPE, E2BIG."""
        return self._call(WriteText(pid, data, eof, raw))

    def fork(
        self, pid: Pid, n: int = 1, seeds: Sequence[int] = (), afresh: bool = False
    ) -> tuple[Pid, ...]:
        """Branch a generation into `n` children which share its KV. `afresh`: they share that of
        its prompt, and draw all of their output themselves. ESRCH, EAGAIN, E2BIG."""
        return self._call(calls.Fork(pid, n, requests.check_seeds(seeds), afresh))

    def wait(
        self, pid: Pid | None = None, timeout_s: float | None = None, keep: bool = False
    ) -> WaitResult:
        """Wait for a process to end (None: for any) and forget it. ECHILD, TimeoutError.

        Its unread output is gone then: read first. All who wait for it when it ends are told.
        `keep` only looks: the process stays for whoever it belongs to.
        """
        result = self._call(calls.Wait(pid, keep=keep), timeout_s)
        if not keep:
            self._unclaimed.forget(result.pid)
        return result

    def kill(self, pid: Pid, signal: calls.Signal = calls.Signal.TERM) -> None:
        """Send SIGSTOP, SIGCONT, SIGTERM or SIGKILL. ESRCH, EINVAL."""
        self._call(calls.Kill(pid, requests.check_signal(signal)))

    def nice(self, pid: Pid, nice: int) -> int:
        """Set the nice value, -20 (favoured) to 19; the old one. ESRCH, EPERM, EINVAL."""
        return self._call(calls.Nice(pid, nice))

    def setrlimit(
        self,
        pid: Pid,
        max_tokens: int | None = None,
        max_pages: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Change limits of a living process; None leaves one as it is. ESRCH, EINVAL, E2BIG."""
        self._call(calls.SetRlimit(pid, max_tokens, max_pages, deadline_s))

    def stat(self, pid: Pid) -> ProcessStat:
        """A snapshot of one process. ESRCH."""
        return self._call(calls.Stat(pid))

    def ps(self, pids: Sequence[int] = ()) -> tuple[ProcessStat, ...]:
        """Snapshots of all processes that the caller may see, or of those among `pids`, by pid.
        They are asked for some at a time (`ps_after`), so not all are of one moment. E2BIG."""
        found: list[ProcessStat] = []
        after: int | None = 0
        while after is not None:
            listing = self.ps_after(after, pids)
            found += listing.processes
            after = listing.after
        return tuple(found)

    def ps_after(self, after: int = 0, pids: Sequence[int] = ()) -> Listing:
        """Snapshots of the next processes behind `after`, about a hundred, and how to go on. For
        who looks often: the kernel has done with it in about a millisecond. E2BIG."""
        return self._call(calls.Ps(Pid(after), pids=requests.check_pids(pids)))

    def maps(self, pid: Pid) -> PageMap:
        """Where each page of a process is. ESRCH."""
        part = whole = self._call(calls.Maps(pid))
        while part.codes and len(whole.codes) < part.total:
            part = self._call(calls.Maps(pid, len(whole.codes)))
            whole = replace(part, start=0, codes=whole.codes + part.codes)
        return whole

    def tail(self, pid: Pid, limit: int = 64) -> tuple[int, ...]:
        """The last tokens of its output in this turn; its reader gets them all the same. ESRCH."""
        return self._call(calls.Tail(pid, limit))

    def framemap(self, tier: str = "frames") -> PlaceMap:
        """How each place of a tier (frames, host, disk) stands; only root is told of others'.
        EINVAL."""
        part = whole = self._call(calls.Framemap(tier))
        while part.codes and len(whole.codes) < part.total:
            part = self._call(calls.Framemap(tier, len(whole.codes)))
            whole = replace(part, start=0, codes=whole.codes + part.codes)
        return whole

    def prefixes(self, limit: int = 64) -> tuple[PrefixNode, ...]:
        """What prompts have in common and is found most, as a tree; root sees all. EINVAL."""
        return self._call(calls.Prefixes(limit))

    def plan(self) -> PlanReport:
        """Who runs, who is next, who is due, what was decided lately; a tenant sees its own."""
        return self._call(calls.Plan())

    def vmstat(self) -> dict[str, float]:
        """Counters and gauges of the kernel."""
        return self._call(calls.Vmstat())

    def metrics(self) -> MetricsReport:
        """Latencies, tokens and ends since boot, by class and tenant: root sees all, a tenant its
        own."""
        return self._call(calls.Metrics())

    def sysctl(self, name: str = "", value: float | str | bool | None = None) -> Any:
        """Read all control variables, or one, or set one. ENOENT, EPERM, EINVAL."""
        return self._call(calls.Sysctl(name, value))

    def shm_open(self, name: str, text: Prompt, raw: bool = True) -> int:
        """Keep the KV of a prefix under `name`; the tokens kept. EDQUOT, EEXIST, EINVAL."""
        return self._call(ShmText(name, text, raw))

    def shm_unlink(self, name: str) -> None:
        """Let go of a named prefix. ENOENT."""
        self._call(calls.ShmUnlink(name))

    def swapon(self, directory: str, size_bytes: int) -> int:
        """Open a swap file of that size in `directory`: the tier below the host's. Its size in
        whole pages, in bytes. EPERM, EBUSY (there is one), EINVAL, and what the file system says:
        ENOSPC, ENOENT, EACCES, EIO ..."""
        return self._call(calls.Swapon(directory, size_bytes))

    def swapoff(self) -> int:
        """Empty the swap file and give it back; processes keep their pages where there is room for
        them above, and compute the others again. EPERM, EINVAL (there is none), EBUSY (another
        swapoff is under way), EIO (the disk hangs: the file is used no more, but not given back
        before the disk answers; another swapoff waits for that)."""
        return self._call(calls.Swapoff())

    def suspend(self, pid: Pid, name: str) -> ImageInfo:
        """Write a process to an image and let it go: it ends with reason `suspended`, and what
        nobody has read yet is read after its `resume`. If that fails it goes on. ESRCH, EINVAL,
        EEXIST, EBUSY, ENOSPC, EIO, ETIMEDOUT."""
        return self._call(calls.Suspend(pid, name))

    def resume(self, name: str, detach: bool = False) -> Pid:
        """The process of an image goes on where it was, perhaps on another day; its new pid. The
        image is gone then. `detach`: as that of `spawn`. ENOENT, EBADMSG (damaged), EINVAL (another
        model), E2BIG, EAGAIN, EBUSY, EIO, ETIMEDOUT."""
        return self._call(calls.Resume(name, detach))

    def images(self) -> tuple[ImageInfo, ...]:
        """The images that `suspend` has made and the caller may see, by name."""
        return self._call(calls.Images())

    def unlink_image(self, name: str) -> None:
        """Remove an image. ENOENT, EBUSY."""
        self._call(calls.UnlinkImage(name))

    def model(self) -> ModelInfo:
        """What is served."""
        return self._call(GetModel())

    def tokenize(self, prompt: Prompt, **options: Unpack[SpawnOptions]) -> tuple[int, ...]:
        """The tokens that `spawn` would make of a prompt. EINVAL, E2BIG."""
        return self._call(Tokenize(prompt, dict(options)))

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens; `special`: with the names of special ones. EINVAL, E2BIG."""
        return self._call(Detokenize(requests.check_tokens(tokens), special))

    def token_bytes(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes that each token stands for. EINVAL, E2BIG."""
        return self._call(TokenBytes(requests.check_tokens(tokens)))

    def trace(
        self, pid: Pid | None = None, since: int = 0, limit: int = 1000
    ) -> tuple[TraceEvent, ...]:
        """What happened to a process, or to all, after event number `since`. ESRCH, EPERM."""
        return self._call(calls.Trace(pid, since, limit))

    def close(self) -> None:
        """Stop the machine, or let go of one behind a socket; what still runs is gone.
        Idempotent."""
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, request: Asks[Answer], timeout_s: float | None = None) -> Answer:
        """Ask the kernel. An interruption (Ctrl-C, a signal's handler) is raised at once, and what
        the call would have brought is dealt with: see `unclaimed.py`."""
        request = requests.check(request)
        limit_s = requests.check_timeout(timeout_s)
        kept = self._unclaimed.take(request)
        if kept is not None:
            return cast("Answer", kept)
        call_id, future = self._port.submit(request)
        try:
            return future.result(limit_s)
        except KernelError as problem:
            raise problem.as_os_error() from None
        except BaseException as interruption:
            answered = self._unclaimed.take_back(request, call_id, future).result()
            if limit_s is None or not isinstance(interruption, TimeoutError):
                raise
            if not answered:
                raise TimeoutError(errno.ETIMEDOUT, f"no answer in {timeout_s:g} s") from None
        return self._call(request)  # answered at the last moment: takes what was kept
