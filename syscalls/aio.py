"""System calls in this process, async: the names of `inproc.py`, awaited. Works under asyncio and
trio (anyio).

    async with await tokenix.aio.boot("smollm2") as k:
        pid = await k.spawn("Tell me a story.")
        async for text in k.stream(pid):
            print(text, end="")
"""

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
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
)
from tokenix.kernel.calls import Asks, KernelError
from tokenix.kernel.trace import TraceEvent
from tokenix.mm.ids import Pid
from tokenix.syscalls import endings, inproc, requests
from tokenix.syscalls.inproc import Answer
from tokenix.syscalls.port import Port
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

    from tokenix.kernel.boot import Progress
    from tokenix.kernel.params import Params


async def boot(
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
    page_tokens: int = 16,
    kv_dtype: str = "f16",
    threads: int | None = None,
    params: "Params | None" = None,
    tunables: Mapping[str, float] | None = None,
    progress: "Progress | None" = None,
) -> "Syscalls":
    """As `inproc.boot`, without blocking the event loop."""
    blocking = await anyio.to_thread.run_sync(
        partial(
            inproc.boot, model, device_pages=device_pages, host_pages=host_pages, swap_dir=swap_dir,
            swap_bytes=swap_bytes, image_dir=image_dir, swap_resume=swap_resume, policy=policy,
            driver=driver, page_tokens=page_tokens, kv_dtype=kv_dtype, threads=threads,
            params=params, tunables=tunables, progress=progress,
        )
    )  # fmt: skip
    return Syscalls(blocking.port)


async def connect(path: "str | os.PathLike[str] | None" = None) -> "Syscalls":
    """As `inproc.connect`, without blocking the event loop."""
    blocking = await anyio.to_thread.run_sync(inproc.connect, path)
    return Syscalls(blocking.port)


class Syscalls:
    """The system calls of a running machine; see `inproc.Syscalls` for what each does."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._unclaimed = Unclaimed(port)

    @property
    def port(self) -> Port:
        return self._port

    def as_tenant(self, tenant: str) -> "Syscalls":
        return Syscalls(self._port.as_tenant(tenant))

    async def spawn(self, prompt: Prompt, **options: Unpack[SpawnOptions]) -> Pid:
        return await self._call(SpawnText(prompt, dict(options)))

    async def read(self, pid: Pid, max_tokens: int = 1 << 30, block: bool = True) -> ReadResult:
        """A read that is cancelled takes nothing: what it would have got, the next one gets."""
        return await self._call(calls.Read(pid, max_tokens, block))

    async def stream(self, pid: Pid) -> AsyncIterator[str]:
        async with contextlib.aclosing(self.follow(pid)) as results:
            async for result in results:
                text = endings.text_of(result)
                if text:
                    yield text
                if _ends(result):
                    endings.raise_if_failed(pid, result)

    async def follow(self, pid: Pid) -> AsyncGenerator[ReadResult, None]:
        """What reads of the present turn bring, one after another; the last one ends it. Who leaves
        it early closes it (`contextlib.aclosing`): the next read gets what was on the way."""
        request = requests.check(calls.Read(pid))
        while True:
            kept = self._unclaimed.take(request)
            flow = self._port.follow(pid) if kept is None else None
            if flow is not None:
                break
            result = await self.read(pid) if kept is None else cast("ReadResult", kept)
            yield result
            if _ends(result):
                return
        alarm = _Alarm.of_this_loop()
        try:
            while True:
                pushed = flow.take()
                if pushed is None:
                    await alarm.wait(flow.when_ready)
                    continue
                yield pushed
                if _ends(pushed):
                    return
        except KernelError as problem:
            raise problem.as_os_error() from None
        finally:
            stopped = flow.stop()
            with anyio.CancelScope(shield=True):
                await alarm.wait_for(stopped)
            for rest in stopped.result():
                self._unclaimed.keep(request, rest)

    async def write(
        self, pid: Pid, data: str | Sequence[int] = "", eof: bool = False, raw: bool = False
    ) -> int:
        return await self._call(WriteText(pid, data, eof, raw))

    async def fork(
        self, pid: Pid, n: int = 1, seeds: Sequence[int] = (), afresh: bool = False
    ) -> tuple[Pid, ...]:
        return await self._call(calls.Fork(pid, n, requests.check_seeds(seeds), afresh))

    async def wait(self, pid: Pid | None = None, keep: bool = False) -> WaitResult:
        result = await self._call(calls.Wait(pid, keep=keep))
        if not keep:
            self._unclaimed.forget(result.pid)
        return result

    async def kill(self, pid: Pid, signal: calls.Signal = calls.Signal.TERM) -> None:
        await self._call(calls.Kill(pid, requests.check_signal(signal)))

    async def nice(self, pid: Pid, nice: int) -> int:
        return await self._call(calls.Nice(pid, nice))

    async def setrlimit(
        self,
        pid: Pid,
        max_tokens: int | None = None,
        max_pages: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        await self._call(calls.SetRlimit(pid, max_tokens, max_pages, deadline_s))

    async def stat(self, pid: Pid) -> ProcessStat:
        return await self._call(calls.Stat(pid))

    async def ps(self, pids: Sequence[int] = ()) -> tuple[ProcessStat, ...]:
        found: list[ProcessStat] = []
        after: int | None = 0
        while after is not None:
            listing = await self.ps_after(after, pids)
            found += listing.processes
            after = listing.after
        return tuple(found)

    async def ps_after(self, after: int = 0, pids: Sequence[int] = ()) -> Listing:
        return await self._call(calls.Ps(Pid(after), pids=requests.check_pids(pids)))

    async def maps(self, pid: Pid) -> PageMap:
        part = whole = await self._call(calls.Maps(pid))
        while part.codes and len(whole.codes) < part.total:
            part = await self._call(calls.Maps(pid, len(whole.codes)))
            whole = replace(part, start=0, codes=whole.codes + part.codes)
        return whole

    async def tail(self, pid: Pid, limit: int = 64) -> tuple[int, ...]:
        return await self._call(calls.Tail(pid, limit))

    async def framemap(self, tier: str = "frames") -> PlaceMap:
        part = whole = await self._call(calls.Framemap(tier))
        while part.codes and len(whole.codes) < part.total:
            part = await self._call(calls.Framemap(tier, len(whole.codes)))
            whole = replace(part, start=0, codes=whole.codes + part.codes)
        return whole

    async def prefixes(self, limit: int = 64) -> tuple[PrefixNode, ...]:
        return await self._call(calls.Prefixes(limit))

    async def plan(self) -> PlanReport:
        return await self._call(calls.Plan())

    async def vmstat(self) -> dict[str, float]:
        return await self._call(calls.Vmstat())

    async def metrics(self) -> MetricsReport:
        return await self._call(calls.Metrics())

    async def sysctl(self, name: str = "", value: float | str | bool | None = None) -> Any:
        return await self._call(calls.Sysctl(name, value))

    async def shm_open(self, name: str, text: Prompt, raw: bool = True) -> int:
        return await self._call(ShmText(name, text, raw))

    async def shm_unlink(self, name: str) -> None:
        await self._call(calls.ShmUnlink(name))

    async def swapon(self, directory: str, size_bytes: int) -> int:
        return await self._call(calls.Swapon(directory, size_bytes))

    async def swapoff(self) -> int:
        return await self._call(calls.Swapoff())

    async def suspend(self, pid: Pid, name: str) -> ImageInfo:
        return await self._call(calls.Suspend(pid, name))

    async def resume(self, name: str, detach: bool = False) -> Pid:
        return await self._call(calls.Resume(name, detach))

    async def images(self) -> tuple[ImageInfo, ...]:
        return await self._call(calls.Images())

    async def unlink_image(self, name: str) -> None:
        await self._call(calls.UnlinkImage(name))

    async def model(self) -> ModelInfo:
        return await self._call(GetModel())

    async def tokenize(self, prompt: Prompt, **options: Unpack[SpawnOptions]) -> tuple[int, ...]:
        return await self._call(Tokenize(prompt, dict(options)))

    async def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        return await self._call(Detokenize(requests.check_tokens(tokens), special))

    async def token_bytes(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        return await self._call(TokenBytes(requests.check_tokens(tokens)))

    async def trace(
        self, pid: Pid | None = None, since: int = 0, limit: int = 1000
    ) -> tuple[TraceEvent, ...]:
        return await self._call(calls.Trace(pid, since, limit))

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._port.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, request: Asks[Answer]) -> Answer:
        """Ask the kernel. What a cancelled call would have brought is dealt with: see
        `unclaimed.py`."""
        request = requests.check(request)
        kept = self._unclaimed.take(request)
        if kept is not None:
            await anyio.lowlevel.checkpoint()
            return cast("Answer", kept)
        call_id, future = self._port.submit(request)
        try:
            await _Alarm.of_this_loop().wait_for(future)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _Alarm.of_this_loop().wait_for(
                    self._unclaimed.take_back(request, call_id, future)
                )
            raise
        try:
            return future.result()
        except KernelError as problem:
            raise problem.as_os_error() from None


def _ends(result: ReadResult) -> bool:
    return result.turn_ended is not None or result.eof


class _Alarm:
    """Wakes tasks of one event loop from any thread. Whoever rings only leaves a note, and many
    notes wake the loop once: neither the kernel's thread nor a connection's waits for an event loop
    that is busy."""

    def __init__(self) -> None:
        token: Any = anyio.lowlevel.current_token()
        loop = getattr(token, "native_token", token)  # anyio below 4.11 gives the loop itself
        self._soon = getattr(loop, "run_sync_soon", None) or loop.call_soon_threadsafe
        self._new_event: Callable[[], anyio.Event] = type(anyio.Event())
        """Of this event loop's kind, so that it need not be asked for each time."""
        self._rung: deque[anyio.Event] = deque()
        self._woken = False

    @classmethod
    def of_this_loop(cls) -> "_Alarm":
        try:
            return _alarms.get()
        except LookupError:
            alarm = cls()
            _alarms.set(alarm)
            return alarm

    async def wait(self, ask: Callable[[Callable[[], None]], None]) -> None:
        """Until the function that `ask` is given has been called."""
        event = self._new_event()
        ask(partial(self._ring, event))
        await event.wait()

    async def wait_for(self, future: "Future[Any]") -> None:
        """Until the future is done."""
        if not future.done():
            await self.wait(lambda ring: future.add_done_callback(lambda _: ring()))

    def _ring(self, event: anyio.Event) -> None:
        self._rung.append(event)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited with it
                self._soon(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before looking: what comes later wakes the loop again
        while self._rung:
            self._rung.popleft().set()


_alarms: anyio.lowlevel.RunVar[_Alarm] = anyio.lowlevel.RunVar("tokenix-alarm")
