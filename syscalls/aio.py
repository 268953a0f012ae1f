"""System calls in this process, async: the names of `inproc.py`, awaited. Works under asyncio and
trio (anyio).

    async with await tokenix.aio.boot("smollm2") as k:
        pid = await k.spawn("Tell me a story.")
        async for text in k.stream(pid):
            print(text, end="")
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
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
    ends_turn,
)
from tokenix.kernel.calls import Asks, KernelError
from tokenix.kernel.trace import TraceEvent
from tokenix.mm.ids import Pid
from tokenix.syscalls import endings, inproc, requests
from tokenix.syscalls.alarm import Alarm, Pouring, Take
from tokenix.syscalls.inproc import Answer
from tokenix.syscalls.port import Flow, Port
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
    """As `inproc.boot`, without blocking the event loop."""
    blocking = await anyio.to_thread.run_sync(
        partial(
            inproc.boot, model, device_pages=device_pages, host_pages=host_pages, swap_dir=swap_dir,
            swap_bytes=swap_bytes, image_dir=image_dir, swap_resume=swap_resume, policy=policy,
            driver=driver, tensor_parallel=tensor_parallel, page_tokens=page_tokens,
            kv_dtype=kv_dtype, weights=weights, weight_cache=weight_cache, threads=threads,
            params=params, tunables=tunables, progress=progress,
        )
    )  # fmt: skip
    return Syscalls(blocking.port)


async def connect(path: "str | os.PathLike[str] | None" = None) -> "Syscalls":
    """As `inproc.connect`, without blocking the event loop. Under asyncio the loop itself reads the
    socket, and the connection ends with it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # it is trio's
        blocking = await anyio.to_thread.run_sync(inproc.connect, path)
        return Syscalls(blocking.port)
    from tokenix.syscalls.wire import looped

    return Syscalls(await looped.connect(path))


class Syscalls:
    """The system calls of a running machine; see `inproc.Syscalls` for what each does."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._unclaimed = Unclaimed(port)

    @property
    def port(self) -> Port:
        return self._port

    def as_tenant(self, tenant: str) -> "Syscalls":
        return Syscalls(self._port.as_tenant(requests.check_tenant(tenant)))

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
                if ends_turn(result):
                    endings.raise_if_failed(pid, result)

    async def follow(self, pid: Pid) -> AsyncGenerator[ReadResult, None]:
        """What reads of the present turn bring, one after another; the last one ends it. Who leaves
        it early closes it (`contextlib.aclosing`): the next read gets what was on the way."""
        request = requests.check(calls.Read(pid))
        while isinstance(flow := await self._open(pid, request), ReadResult):
            yield flow
            if ends_turn(flow):
                return
        async with self._open_until_end(flow, request) as alarm:
            while True:
                pushed = flow.take()
                if pushed is None:
                    await alarm.wait(flow.when_ready)
                    continue
                yield pushed
                if ends_turn(pushed):
                    return

    async def pour(self, pid: Pid, take: Take) -> None:
        """Hand to `take` what `follow` would yield. It is called on the event loop as soon as
        something comes, for many processes at one go and without the switch to a task that each
        step of an iteration is."""
        request = requests.check(calls.Read(pid))
        while isinstance(flow := await self._open(pid, request), ReadResult):
            rest = take(flow)
            if rest is not None:
                await rest()
            if ends_turn(flow):
                return
        async with self._open_until_end(flow, request) as alarm:
            await Pouring(flow, take, alarm).run()

    async def _open(self, pid: Pid, request: Asks[ReadResult]) -> Flow | ReadResult:
        """A flow of what is not read yet; or else the next result, if one was kept or if reads are
        as good here."""
        kept = self._unclaimed.take(request)
        if kept is not None:
            return cast("ReadResult", kept)
        return self._port.follow(pid) or await self.read(pid)

    @contextlib.asynccontextmanager
    async def _open_until_end(self, flow: Flow, request: Asks[ReadResult]) -> AsyncIterator[Alarm]:
        """Closes a flow, and keeps what has come and was not taken."""
        alarm = Alarm.of_this_loop()
        try:
            yield alarm
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
            await Alarm.of_this_loop().wait_for(future)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await Alarm.of_this_loop().wait_for(
                    self._unclaimed.take_back(request, call_id, future)
                )
            raise
        try:
            return future.result()
        except KernelError as problem:
            raise problem.as_os_error() from None
