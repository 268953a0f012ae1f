"""The processes behind one request: spawned, forked, read to their ends, and gone with it.

    spawn one a prompt --> first output --> fork n - 1 afresh --> read --> wait --> usage

However this ends (the client is gone, one of them fails, the server stops), each process is killed
and waited for before `run` returns, so that nothing of a request outlives it.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from tokenix.gateway.errors import ApiError, of_ending, of_kernel
from tokenix.gateway.job import Job
from tokenix.syscalls.aio import Syscalls
from tokenix.syscalls.alarm import Later
from tokenix.syscalls.types import Pid, ReadResult, Rusage, Signal

Take = Callable[[int, ReadResult], Later | None]
"""Takes what one answer, by its index, has brought; what is to be waited for before the next."""

Ended = Callable[[int, ReadResult, Rusage], Awaitable[None]]
"""Takes the last result of an answer, and what it has used."""


class Generation:
    """All answers to one request."""

    def __init__(self, kernel: Syscalls, job: Job) -> None:
        self._kernel = kernel
        self._job = job
        self._living: dict[Pid, int] = {}
        """Processes that have not been waited for, and the indices of their answers."""
        self.first: Pid | None = None
        """Of the first answer, once it is spawned."""
        self.begun_s: float | None = None
        """When the first output came, by the monotonic clock."""
        self.used: list[tuple[bool, str, Rusage]] = []
        """Of each answer that has ended: whether it is the first to its prompt, why, its usage."""
        self._of_prompt: tuple[int, int] | None = None

    @property
    def begun(self) -> bool:
        """Whether any output has come."""
        return self.begun_s is not None

    async def run(self, take: Take, ended: Ended) -> None:
        """Generate everything. ApiError for what the kernel refuses, and for an end that is none:
        then the others are ended as well."""
        try:
            heads = [await self._spawn(place) for place in range(len(self._job.prompts))]
            if self._job.count == 1:
                await self._follow(heads[0], 0, take, ended, None)
                return
            async with anyio.create_task_group() as group:
                for place, pid in enumerate(heads):
                    index = place * self._job.n
                    group.start_soon(self._follow, pid, index, take, ended, group)
        except OSError as why:
            raise self._error(why) from why
        except BaseExceptionGroup as several:
            first = _one_of(several)
            raise (self._error(first) if isinstance(first, OSError) else first) from None
        finally:
            await self._end_all()

    def _error(self, why: OSError) -> ApiError:
        return of_kernel(why, self._job.prompt_field, self._job.form_field)

    async def find_position(self) -> int | None:
        """How many processes are before the first one in the queue; None: it is not queued."""
        if self.first is None or self.begun:
            return None
        with contextlib.suppress(OSError):
            return (await self._kernel.stat(self.first)).queue_position
        return None

    async def find_prompt(self) -> tuple[int, int]:
        """Tokens of the first prompt, and those of them that were cached."""
        assert self.first is not None, "asked while there is output"
        if self._of_prompt is None:
            usage = (await self._kernel.stat(self.first)).rusage
            self._of_prompt = (usage.prompt_tokens, usage.cached_tokens)
        return self._of_prompt

    async def _spawn(self, place: int) -> Pid:
        job = self._job
        pid = await self._kernel.spawn(job.prompts[place], **job.options)
        self._living[pid] = place * job.n
        self.first = self.first or pid
        return pid

    async def _follow(
        self, pid: Pid, index: int, take: Take, ended: Ended, group: TaskGroup | None
    ) -> None:
        """Read one process to the end of its turn; the first of n forks the others."""
        forks = self._job.n - 1 if index % self._job.n == 0 else 0

        def read(result: ReadResult) -> Later | None:
            nonlocal forks
            if self.begun_s is None:
                self.begun_s = time.monotonic()
            if forks and group is not None:
                count, forks = forks, 0
                return partial(
                    self._fork, pid, index, count, take, ended, group, partial(read, result)
                )
            end = result.turn_ended
            if end is None and not result.eof:
                return take(index, result)
            reason = end.reason if end is not None else result.reason
            problem = None if reason is None else of_ending(reason, result)
            if problem is not None:
                raise problem
            return partial(self._finish, pid, index, result, ended)

        await self._kernel.pour(pid, read)

    async def _fork(
        self, pid: Pid, index: int, count: int, take: Take, ended: Ended, group: TaskGroup,
        then: Callable[[], Later | None],
    ) -> None:  # fmt: skip
        for number, child in enumerate(await self._kernel.fork(pid, count, afresh=True), 1):
            self._living[child] = index + number
            group.start_soon(self._follow, child, index + number, take, ended, group)
        rest = then()
        if rest is not None:
            await rest()

    async def _finish(self, pid: Pid, index: int, result: ReadResult, ended: Ended) -> None:
        if not result.eof:
            await self._close(pid)
        usage = (await self._kernel.wait(pid)).rusage
        if pid == self.first:
            self._of_prompt = (usage.prompt_tokens, usage.cached_tokens)
        del self._living[pid]
        reason = result.reason if result.turn_ended is None else result.turn_ended.reason
        self._note_used(index, "" if reason is None else reason.value, usage)
        await ended(index, result, usage)

    async def _close(self, pid: Pid) -> None:
        """Let one that was kept open, to be forked, end with the reason of its turn."""
        try:
            await self._kernel.write(pid, eof=True)
        except OSError:  # an operator ends or suspends it
            await self._kernel.kill(pid, Signal.KILL)

    async def _end_all(self) -> None:
        if not self._living:
            return
        with anyio.CancelScope(shield=True):
            for pid in self._living:
                with contextlib.suppress(OSError):
                    await self._kernel.kill(pid, Signal.KILL)
            for pid, index in self._living.items():
                with contextlib.suppress(OSError):
                    told = await self._kernel.wait(pid)
                    self._note_used(index, told.reason.value, told.rusage)
        self._living.clear()

    def _note_used(self, index: int, reason: str, usage: Rusage) -> None:
        self.used.append((index % self._job.n == 0, reason, usage))


def _one_of(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """What is told of several failures: the first one."""
    first = several.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
