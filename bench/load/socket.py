"""A kernel's socket as the target of a load: a session is one process that is kept open."""

import contextlib
import time
from collections.abc import Callable

import anyio

from tokenix.bench.load.content import Content
from tokenix.bench.load.openai import Asking
from tokenix.bench.load.record import Record
from tokenix.bench.load.sessions import Session
from tokenix.syscalls.aio import Syscalls
from tokenix.syscalls.types import ExitReason, Pid, ReadResult, SpawnOptions


class SocketTarget:
    """The kernel behind `k`."""

    def __init__(self, k: Syscalls, model: str, content: Content, asking: Asking) -> None:
        self.k, self.content, self.asking = k, content, asking
        self._model = model

    @property
    def model(self) -> str:
        return self._model

    def open(self, session: Session, origin_s: float) -> "SocketDialogue":
        return SocketDialogue(self, session, origin_s)

    async def close(self) -> None:
        await self.k.close()


class SocketDialogue:
    """One session: the first turn spawns, the others write. Only what is new is sent."""

    def __init__(self, target: SocketTarget, session: Session, origin_s: float) -> None:
        tenant = session.clients.tenant
        self._k = target.k.as_tenant(tenant) if tenant else target.k
        self._target, self._session, self._origin_s = target, session, origin_s
        self._prompt: str | list[int] = []
        self._pid: Pid | None = None
        self._raw = target.asking.api == "completions"

    def prepare(self, turn: int) -> None:
        content = self._target.content
        as_ids = self._target.asking.prompt == "ids"
        self._prompt = (content.ids if as_ids else content.text)(self._session, turn)

    async def ask(self, record: Record, came: Callable[[], None]) -> None:
        limit_s = self._target.asking.limit_s
        try:
            with anyio.fail_after(limit_s):
                await self._ask(record, came)
        except TimeoutError:
            record.error = f"no end within {limit_s:g} s"
        except BlockingIOError as refusal:
            record.ending, record.error = "refused", refusal.strerror or str(refusal)
        except OSError as problem:
            record.error = problem.strerror or str(problem)
        record.ended_s = time.monotonic() - self._origin_s

    async def _ask(self, record: Record, came: Callable[[], None]) -> None:
        record.sent_s = time.monotonic() - self._origin_s
        record.input_tokens, record.counted = record.planned_input, True
        if self._pid is None:
            self._pid = await self._k.spawn(self._prompt, **self._options(record))
        else:
            await self._k.write(self._pid, self._prompt, raw=self._raw)
        async with contextlib.aclosing(self._k.follow(self._pid)) as results:
            reader, steady = record.reader, record.reader.kind == "steady"
            async for result in results:
                self._take(record, result, came)
                if steady or record.output_tokens < reader.after_tokens:
                    continue
                if reader.kind == "leaving":
                    record.ending = "left"
                    return
                steady = True
                await anyio.sleep(reader.stall_s)

    def _take(self, record: Record, result: ReadResult, came: Callable[[], None]) -> None:
        now_s = time.monotonic() - self._origin_s
        for _ in result.outputs:
            record.times_s.append(now_s)
            came()
        record.output_tokens += len(result.outputs)
        if result.turn_ended is not None and result.turn_ended.reason in _GOOD:
            record.ending = "stop" if result.turn_ended.reason is ExitReason.STOP else "length"
        elif result.eof and record.ending == "failed":
            record.ending = "refused" if result.reason is ExitReason.REFUSED else "failed"
            record.error = result.error or "the process ended before its turn did"

    def _options(self, record: Record) -> SpawnOptions:
        clients, asking = self._session.clients, self._target.asking
        options: SpawnOptions = {
            "max_tokens": record.planned_output, "temperature": asking.temperature,
            "ignore_eos": asking.ignore_eos, "name": record.name,
            "raw": self._raw, "keep_open": len(self._session.turns) > 1,
        }  # fmt: skip
        if clients.qos:
            options["qos"] = clients.qos
        if clients.nice is not None:
            options["nice"] = clients.nice
        if clients.tell_pace:
            options["tokens_per_s"] = self._session.reader.tokens_per_s
        return options

    async def close(self) -> None:
        """Nothing of the session is left in the kernel."""
        pid, self._pid = self._pid, None
        if pid is None:
            return
        with contextlib.suppress(OSError):
            await self._k.kill(pid)
        with contextlib.suppress(OSError):
            await self._k.wait(pid)


_GOOD = (ExitReason.STOP, ExitReason.LENGTH)
