"""The gateway's way to the kernel: opened, watched, and opened again when it is lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from tokenix.gateway.errors import unavailable
from tokenix.gateway.keys import Caller
from tokenix.syscalls.aio import Syscalls
from tokenix.syscalls.texts import ModelInfo

Connect = Callable[[], Awaitable[Syscalls]]

BEAT_S = 0.5
"""Between two looks at the kernel, and two attempts to reach it."""

PASS_LOOK_S = 5.0
"""Between two looks at the device."""

PASS_S = 60.0
"""A pass of the device that has taken so long will not end: the scheduler cuts them to fractions of
a second."""

log = structlog.get_logger("tokenix.gateway")


class Link:
    """The kernel, if there is one at the moment."""

    def __init__(self, connect: Connect, ready_s: float) -> None:
        self._connect = connect
        self._ready_s = ready_s
        self._kernel: Syscalls | None = None
        self._model: ModelInfo | None = None
        self._answered_s = -ready_s
        self._looked_s = -PASS_LOOK_S
        self._pass_s = 0.0
        """How long the pass in flight had taken at the last look."""
        self._task: asyncio.Task[None] | None = None

    @property
    def kernel(self) -> Syscalls:
        """The system calls, as root. ApiError 503 while there is no kernel."""
        if self._kernel is None:
            raise unavailable("the model is being loaded, or the kernel is gone; try again")
        return self._kernel

    @property
    def model(self) -> ModelInfo:
        """What is served. ApiError 503 while there is no kernel."""
        if self._model is None:
            raise unavailable("the model is being loaded, or the kernel is gone; try again")
        return self._model

    def of(self, caller: Caller) -> Syscalls:
        """The system calls as `caller` may make them. ApiError 503 while there is no kernel."""
        kernel = self.kernel
        return kernel if caller.role == "root" else kernel.as_tenant(caller.tenant)

    def why_not_ready(self) -> str:
        """ "" if the kernel has made a step within the last `ready_s` seconds, and no pass of its
        device stands still."""
        if self._kernel is None:
            return "the kernel cannot be reached"
        if self._pass_s > PASS_S:
            return f"the device has been in one pass for {self._pass_s:.0f} s"
        late_s = time.monotonic() - self._answered_s
        return f"the kernel has not answered for {late_s:.0f} s" if late_s > self._ready_s else ""

    async def open(self) -> None:
        """Begin to look for the kernel; returns after the first attempt."""
        await self._beat()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self._beat()

    async def _beat(self) -> None:
        """See whether the kernel is there and its scheduler goes on."""
        try:
            if self._kernel is None:
                kernel = await self._connect()
                self._model = await kernel.model()
                self._kernel = kernel
                log.info("kernel found", model=self._model.name)
            kernel = self._kernel
            async with asyncio.timeout(self._ready_s):
                await kernel.trace(limit=0)  # nothing, for which the kernel has to take a step
                self._answered_s = time.monotonic()
                if self._answered_s - self._looked_s >= PASS_LOOK_S:
                    self._looked_s, plan = self._answered_s, await kernel.plan()
                    began_s = plan.started_s
                    self._pass_s = 0.0 if began_s is None else plan.time_s - began_s
        except TimeoutError:
            log.warning("kernel does not answer", seconds=self._ready_s)
        except OSError as why:
            await self._lose(str(why))

    async def _lose(self, why: str) -> None:
        kernel, self._kernel, self._model = self._kernel, None, None
        if kernel is not None:
            log.warning("kernel lost", why=why)
            await kernel.close()
