"""Plays a load against a target: sessions begin when they are due, whatever the server does.

    open loop      one dispatcher; the next session's request is made before it is due
    closed loop    `concurrency` workers for each group; a session begins when another has ended

Times are monotonic seconds since the start. What an open loop sends late (as `concurrency` bounds
it, or as this process was not given the processor) still counts from when it was due.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field

from tokenix.bench.load.record import Record
from tokenix.bench.load.sessions import Part, Session
from tokenix.bench.load.target import Dialogue, Target

WATCH_S = 0.25
WARM_AT_ONCE = 8


@dataclass(slots=True)
class Progress:
    """How far it is, for those who watch."""

    expected: int | None
    """Sessions; None: as many as there is time for."""
    time_s: float = 0.0
    sent: int = 0
    """Requests."""
    waiting: int = 0
    """Sent, without a first token."""
    streaming: int = 0
    ended: int = 0
    failed: int = 0
    refused: int = 0
    pieces: int = 0
    ttfts_s: list[float] = field(default_factory=list)
    """Of the latest."""


Watch = Callable[[Progress], None]
Ended = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Played:
    """What a load has become. `records` by the time they were due."""

    records: tuple[Record, ...]
    duration_s: float
    """From the start until the last answer has ended."""
    client_cpu_s: float
    """Of this process, meanwhile."""
    began: float
    """Wall clock, seconds since 1970."""
    interrupted: bool = False
    """Before all of the load was played; the records are of what had ended by then."""
    under_way: int = 0
    """Requests that an interruption cut off."""


class Player:
    """Plays a load once."""

    def __init__(
        self, target: Target, parts: Iterable[Part],
        watch: Watch | None = None, ended: Ended | None = None,
    ) -> None:  # fmt: skip
        """`ended` is called with each record as it ends."""
        self._target, self._parts = target, tuple(parts)
        self._watch, self._ended = watch, ended
        counts = [part.expected for part in self._parts]
        total = sum(count or 0 for count in counts)
        self._progress = Progress(None if None in counts else total)
        self._records: list[Record] = []
        self._origin_s = 0.0

    async def play(self, stoppable: bool = False) -> Played:
        """Until every answer has ended; if `stoppable`, also until this task is cancelled, if
        there is something to tell of by then."""
        began, cpu_s, interrupted = time.time(), time.process_time(), False
        self._origin_s = time.monotonic()
        watching = asyncio.create_task(self._tell()) if self._watch is not None else None
        try:
            async with asyncio.TaskGroup() as tasks:
                opened = [part for part in self._parts if not part.clients.closed]
                tasks.create_task(self._dispatch(opened, tasks))
                for part in self._parts:
                    if part.clients.closed:
                        tasks.create_task(self._loop(part))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not stoppable or not self._records:
                raise
            task.uncancel()
            interrupted = True
        finally:
            if watching is not None:
                watching.cancel()
        self._records.sort(key=lambda record: record.due_s)
        return Played(
            tuple(self._records), self._now_s(),
            time.process_time() - cpu_s, began, interrupted,
            self._progress.sent - self._progress.ended,
        )  # fmt: skip

    def _now_s(self) -> float:
        return time.monotonic() - self._origin_s

    async def _until(self, at_s: float) -> None:
        while (left_s := at_s - self._now_s()) > 0:
            await asyncio.sleep(left_s)

    # ---- open ----

    async def _dispatch(self, parts: list[Part], tasks: asyncio.TaskGroup) -> None:
        slots = {
            part.clients.name: asyncio.Semaphore(part.clients.concurrency)
            for part in parts
            if part.clients.concurrency is not None
        }
        for session in heapq.merge(*(part.sessions for part in parts), key=lambda s: s.at_s):
            dialogue = self._open(session)
            await self._until(session.at_s)
            slot = slots.get(session.clients.name)
            tasks.create_task(self._serve(session, dialogue, session.at_s, slot))

    async def _serve(
        self, session: Session, dialogue: Dialogue, due_s: float, slot: asyncio.Semaphore | None
    ) -> None:
        async with slot or nullcontext():
            await self._run(session, dialogue, due_s)

    # ---- closed ----

    async def _loop(self, part: Part) -> None:
        await self._until(part.clients.start_s)
        waiting = iter(part.sessions)
        end_s = part.clients.start_s + (part.clients.duration_s or float("inf"))

        async def work() -> None:
            for session in waiting:
                if self._now_s() >= end_s:
                    return
                await self._run(session, self._open(session), self._now_s())

        async with asyncio.TaskGroup() as workers:
            for _ in range(part.clients.concurrency or 1):
                workers.create_task(work())

    # ---- one session ----

    def _open(self, session: Session) -> Dialogue:
        dialogue = self._target.open(session, self._origin_s)
        dialogue.prepare(0)
        return dialogue

    async def _run(self, session: Session, dialogue: Dialogue, due_s: float) -> None:
        try:
            for number, turn in enumerate(session.turns):
                if number:
                    dialogue.prepare(number)
                    due_s = self._now_s() + turn.wait_s
                    await self._until(due_s)
                record = _new_record(session, number, due_s)
                await self._ask(dialogue, record)
                if not record.finished:
                    return  # nothing to go on from
        finally:
            await dialogue.close()

    async def _ask(self, dialogue: Dialogue, record: Record) -> None:
        progress = self._progress
        progress.sent += 1
        progress.waiting += 1

        def came() -> None:
            if len(record.times_s) == 1:
                progress.waiting -= 1
                progress.streaming += 1
                progress.ttfts_s.append(record.times_s[0] - record.due_s)
            progress.pieces += 1

        await dialogue.ask(record, came)
        if record.times_s:
            progress.streaming -= 1
        else:
            progress.waiting -= 1
        progress.ended += 1
        progress.refused += record.ending == "refused"
        progress.failed += record.ending == "failed"
        self._records.append(record)
        if self._ended is not None:
            self._ended(record)

    async def _tell(self) -> None:
        assert self._watch is not None
        while True:
            self._progress.time_s = self._now_s()
            self._watch(self._progress)
            await asyncio.sleep(WATCH_S)


def _new_record(session: Session, turn: int, due_s: float) -> Record:
    return Record(
        name=session.name, turn=turn, clients=session.clients.name, tenant=session.clients.tenant,
        reader=session.reader, planned_input=session.prompt_tokens(turn),
        planned_output=session.turns[turn].output_tokens, due_s=due_s,
    )  # fmt: skip


async def warm(target: Target, sessions: Iterable[Session]) -> None:
    """Play sessions once, a few at a time, and forget them. OSError if none of them got an
    answer, with what the first one was told."""
    waiting = iter(sessions)
    endings: list[Record] = []

    async def work() -> None:
        for session in waiting:
            dialogue = target.open(session, time.monotonic())
            dialogue.prepare(0)
            record = _new_record(session, 0, 0.0)
            await dialogue.ask(record, lambda: None)
            await dialogue.close()
            endings.append(record)

    async with asyncio.TaskGroup() as workers:
        for _ in range(WARM_AT_ONCE):
            workers.create_task(work())
    if endings and all(record.error for record in endings):
        raise OSError(f"no request of the warm-up was answered: {endings[0].error}")
