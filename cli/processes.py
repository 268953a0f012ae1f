"""`tokenix ps`, `stat` and `wait`: who runs, and what it has used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.lazy import options
from tokenix.cli.status import FAILED, OK, UsageError, of_os_error, report
from tokenix.cli.table import printable, seconds, size, table
from tokenix.syscalls.types import ExitReason, Pid, ProcessStat, State, WaitResult

COLUMNS: dict[str, Callable[[ProcessStat], Any]] = {
    "pid": lambda p: p.pid,
    "ppid": lambda p: p.parent,
    "tenant": lambda p: p.tenant,
    "state": lambda p: p.state,
    "qos": lambda p: p.qos,
    "ni": lambda p: p.nice,
    "lvl": lambda p: p.level,
    "lead": lambda p: float("-inf") if p.lead_s is None else p.lead_s,
    "pages": lambda p: p.pages,
    "res": lambda p: p.resident_pages,
    "clean": lambda p: p.clean_pages,
    "tok": lambda p: p.prompt_tokens,
    "out": lambda p: p.output_tokens,
    "unread": lambda p: p.unread_tokens,
    "age": lambda p: p.age_s,
    "queue": lambda p: p.queue_position or 0,
    "name": lambda p: p.name,
}
"""What `--sort` knows, and how it compares."""

HEAD = (
    "PID", "PPID", "TENANT", "STATE", "QOS", "NI", "LVL", "LEAD", "PAGES", "RES", "CLEAN",
    "TOK/OUT", "UNREAD", "AGE", "QUEUE", "NAME",
)  # fmt: skip
LEFT = ("TENANT", "STATE", "QOS")

STATES = tuple(state.value for state in State)

WELL = (ExitReason.STOP, ExitReason.LENGTH, ExitReason.SUSPENDED)
"""How a process ends that did what it was asked to."""


def ps(
    *pids: Annotated[int, options.Parameter(help="Only these.")],
    sort: Annotated[
        str | None, options.Parameter(help=f"By a column, not as a tree: {', '.join(COLUMNS)}.")
    ] = None,
    reverse: Annotated[
        bool, options.Parameter(name=["--reverse", "-r"], help="The other way.")
    ] = False,
    state: Annotated[str | None, options.Parameter(help="Only those in this state.")] = None,
    tenant: Annotated[str | None, options.Parameter(help="Only those of this tenant.")] = None,
    qos: Annotated[str | None, options.Parameter(help="Only those of this class.")] = None,
    name: Annotated[
        str | None, options.Parameter(help="Only those with this in their name.")
    ] = None,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """List processes, children below what they were forked from."""
    if sort is not None and sort.lower() not in COLUMNS:
        raise UsageError(f"no column {sort!r} to sort by; there are {', '.join(COLUMNS)}")
    if state is not None and state not in STATES:
        raise UsageError(f"no state {state!r}; there are {', '.join(STATES)}")
    wanted = {"state": state, "tenant": tenant, "qos": qos}
    with connected(socket) as k:
        found = [
            process
            for process in k.ps(pids)
            if all(word is None or getattr(process, key) == word for key, word in wanted.items())
            and (name is None or name in process.name)
        ]
    key = COLUMNS[(sort or "pid").lower()]
    found.sort(key=lambda process: (key(process), process.pid), reverse=reverse)
    if json:
        stdout.write_json(found)
        return OK
    lines = tree(found) if sort is None else ((process, "") for process in found)
    rows = [_cells(process, branch) for process, branch in lines]
    stdout.write(table(HEAD, rows, LEFT))
    return OK


def stat(
    pid: Annotated[int, options.Parameter(help="Process.")],
    /,
    *,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Show everything that is known of one process."""
    with connected(socket) as k:
        process = k.stat(Pid(pid))
    if json:
        stdout.write_json(process)
        return OK
    facts: dict[str, Any] = msgspec.to_builtins(process)
    usage = facts.pop("rusage")
    facts["held"] = ", ".join(process.held) or "-"
    stdout.write(_pairs({**facts, **usage}))
    return OK


def wait(
    *pids: Annotated[int, options.Parameter(help="Processes; none: whichever ends first.")],
    timeout: Annotated[
        float | None, options.Parameter(help="Give up after so many seconds.")
    ] = None,
    reap: Annotated[
        bool, options.Parameter(help="Forget them; what was not read is gone.")
    ] = False,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Wait until processes have ended; print why, and what they used. Whose they are notices
    nothing, unless --reap.

    Exit code 1 if one of them failed, was killed, or was none.
    """
    code = OK
    with connected(socket) as k:
        for pid in map(Pid, pids) if pids else [None]:
            try:
                result = k.wait(pid, timeout, keep=not reap)
            except (ChildProcessError, TimeoutError) as problem:
                report(of_os_error(problem)[0])
                code = FAILED
                continue
            if json:
                stdout.write_json(result)
            else:
                stdout.write(_ended(result))
            if result.reason not in WELL:
                code = FAILED
    return code


def tree(processes: Sequence[ProcessStat]) -> Iterator[tuple[ProcessStat, str]]:
    """Each process with the branch that is drawn before its name: those that were forked from it
    follow it, in the given order. Who has a parent that is not shown is a root."""
    shown = {process.pid for process in processes}
    children: dict[Pid | None, list[ProcessStat]] = {}
    for process in processes:
        parent = process.parent if process.parent in shown else None
        children.setdefault(parent, []).append(process)
    stack = [(root, "", "") for root in reversed(children.get(None, ()))]
    while stack:
        process, branch, below = stack.pop()
        yield process, branch
        forked = children.get(process.pid, [])
        for at, child in reversed(list(enumerate(forked))):
            last = at == len(forked) - 1
            stack.append(
                (child, below + (r"\_ " if last else "|- "), below + ("   " if last else "|  "))
            )


def _cells(process: ProcessStat, branch: str) -> tuple[str, ...]:
    held = f" ({','.join(process.held)})" if process.held else ""
    return (
        str(process.pid),
        str(process.parent or "-"),
        printable(process.tenant),
        process.state + held,
        process.qos,
        str(process.nice),
        str(process.level),
        "-" if process.lead_s is None else f"{process.lead_s:.1f}s",
        str(process.pages),
        str(process.resident_pages),
        str(process.clean_pages),
        f"{process.prompt_tokens}/{process.output_tokens}",
        str(process.unread_tokens),
        seconds(process.age_s),
        "-" if process.queue_position is None else str(process.queue_position),
        branch + printable(process.name),
    )


def _ended(result: WaitResult) -> str:
    usage = result.rusage
    first = "-" if usage.ttft_s is None else seconds(usage.ttft_s)
    problem = f": {printable(result.error)}" if result.error else ""
    return (
        f"{result.pid}: {result.reason.value}{problem}\n"
        f"  tokens: {usage.prompt_tokens} of the prompt ({usage.cached_tokens} cached), "
        f"{usage.output_tokens} written, {usage.recomputed_tokens} computed again\n"
        f"  time: {seconds(usage.total_s)} in all, {seconds(usage.queue_s)} in the queue, "
        f"{seconds(usage.prefill_s)} prefill, {seconds(usage.decode_s)} decode, "
        f"{seconds(usage.paused_s)} paused; first token after {first}\n"
        f"  memory: {usage.page_seconds:.1f} page-seconds, "
        f"{size(usage.swapped_out_bytes)} swapped out, {size(usage.swapped_in_bytes)} in; "
        f"{usage.preemptions} preemptions, {usage.stalls} stalls\n"
    )


def _pairs(facts: dict[str, Any]) -> str:
    width = max(map(len, facts))
    lines = []
    for name, value in facts.items():
        text = (
            "-"
            if value is None or value == ""
            else f"{value:.4g}"[:24]
            if isinstance(value, float)
            else printable(str(value))
        )
        lines.append(f"{name:<{width}}  {text}\n")
    return "".join(lines)
