"""What the scheduler is at: who runs, who is next, who is due, what was decided lately and why.

It reads the books of the last decision, from their fronts, and the end of the trace: what it costs
does not depend on how many processes there are. It changes nothing.
"""

import math
from collections.abc import Iterable
from itertools import islice
from typing import Final

from tokenix.kernel.answers import Due, PlanReport, Queued
from tokenix.kernel.calls import Principal
from tokenix.kernel.launch import Launch
from tokenix.kernel.process import Process
from tokenix.kernel.trace import TraceEvent
from tokenix.sched.entity import Task

DECISIONS: Final = ("admit", "pause", "pause-end", "resume", "fetch")
"""Kinds of events that say what the scheduler has decided; beside them, ends of the refused."""

LOOKED_AT: Final = 1024
"""Events, and processes of a queue, that are gone through at most."""


def plan_report(kernel: Launch, who: Principal) -> PlanReport:
    """What `who` may see of it."""
    most = kernel.params.listed_processes
    flight = kernel.in_flight
    decodes = flight.decodes if flight is not None else []
    chunks = flight.chunks if flight is not None else []
    return PlanReport(
        time_s=kernel.now_s,
        policy=kernel.scheduler.policy.name,
        steps=kernel.counters.steps,
        started_s=flight.started_s if flight is not None else None,
        decodes=tuple(process.pid for process in _seen(kernel, decodes, who, most)),
        chunks=tuple(
            (process.pid, tokens)
            for process, tokens in islice(chunks, most)
            if process.visible_to(who)
        ),
        running=len(decodes) + len(chunks),
        waiting=tuple(
            _queued(kernel, process)
            for process in _seen(kernel, kernel.scheduler.peek_waiting(), who, most)
        ),
        due=tuple(
            _due(kernel, process)
            for process in _seen(kernel, kernel.scheduler.peek_paused(), who, most)
        ),
        decisions=_decisions(kernel, who, most),
    )


def _seen(kernel: Launch, tasks: Iterable[Task], who: Principal, most: int) -> list[Process]:
    """The first of them that `who` may see."""
    some = (kernel.processes.get(task.entity.pid) for task in islice(tasks, LOOKED_AT))
    return list(islice((one for one in some if one is not None and one.visible_to(who)), most))


def _queued(kernel: Launch, process: Process) -> Queued:
    entity = process.entity
    return Queued(
        pid=process.pid,
        qos=entity.qos.name.lower(),
        todo_tokens=process.todo_tokens,
        waited_s=kernel.now_s - entity.waiting_since_s,
        target_s=kernel.scheduler.target_s(process),
    )


def _due(kernel: Launch, process: Process) -> Due:
    lead_s, space = kernel.scheduler.lead_s(process, kernel.now_s), process.space
    return Due(
        pid=process.pid,
        lead_s=lead_s if math.isfinite(lead_s) else None,
        pages=space.mapped,
        resident_pages=space.mapped - space.missing,
        file_pages=space.deep,
    )


def _decisions(kernel: Launch, who: Principal, most: int) -> tuple[TraceEvent, ...]:
    found: list[TraceEvent] = []
    for event in islice(kernel.trace.peek_latest(), LOOKED_AT):
        if _decides(event) and _concerns(kernel, event, who):
            found.append(event)
            if len(found) == most:
                break
    return tuple(reversed(found))


def _decides(event: TraceEvent) -> bool:
    if event.kind == "exit":
        return ("reason", "refused") in event.detail
    return event.kind in DECISIONS


def _concerns(kernel: Launch, event: TraceEvent, who: Principal) -> bool:
    """Whether it is about a process that `who` may see, or might have seen: only an end tells
    whose a process was that is gone."""
    if event.pid is None:
        return False
    process = kernel.processes.get(event.pid) or kernel.zombies.get(event.pid)
    if process is not None:
        return process.visible_to(who)
    return who.root or ("tenant", who.tenant) in event.detail
