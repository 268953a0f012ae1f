"""One handler for each system call: checks, then the change. Raises KernelError for the caller.

`handle` is the table. A handler returns the call's result, or BLOCKED if the reply comes later.
"""

import errno
import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tokenix.drivers.ops import SamplingParams
from tokenix.kernel import control, snapshot
from tokenix.kernel.calls import (
    CancelCall,
    ExitReason,
    Fork,
    KernelError,
    Kill,
    Nice,
    Principal,
    Ps,
    Read,
    SetRlimit,
    ShmOpen,
    ShmUnlink,
    Signal,
    Spawn,
    Stat,
    Sysctl,
    Trace,
    Vmstat,
    Wait,
    Write,
    error,
)
from tokenix.kernel.event import Call
from tokenix.kernel.process import Process
from tokenix.kernel.segments import Segment
from tokenix.kernel.state import Hold, State
from tokenix.mm.ids import Pid
from tokenix.sched.admission import can_never_fit
from tokenix.sched.entity import Qos, SchedEntity

if TYPE_CHECKING:
    from tokenix.kernel.core import Kernel


class _Blocked:
    """The type of BLOCKED."""


BLOCKED: Final = _Blocked()


def handle(kernel: "Kernel", call: Call) -> object:
    """Answer one call, or park it and return BLOCKED."""
    who = call.principal
    match call.request:
        case Kill() as request:
            kill(kernel, who, request)
        case SetRlimit() as request:
            setrlimit(kernel, who, request)
        case ShmUnlink() as request:
            kernel.segments.unlink(kernel, who.tenant, request.name)
        case Spawn() as request:
            return spawn(kernel, who, request)
        case Read() as request:
            return read(kernel, call, request)
        case Write() as request:
            return write(kernel, who, request)
        case Fork() as request:
            return fork(kernel, who, request)
        case Wait() as request:
            return wait(kernel, call, request)
        case Nice() as request:
            return nice(kernel, who, request)
        case ShmOpen() as request:
            return shm_open(kernel, call, request)
        case Stat() as request:
            return snapshot.process_stat(kernel, find(kernel, who, request.pid))
        case Ps():
            return tuple(snapshot.process_stat(kernel, p) for p in visible(kernel, who))
        case Vmstat():
            return snapshot.vmstat(kernel)
        case Sysctl() as request:
            return control.sysctl(kernel, who, request)
        case Trace() as request:
            return trace(kernel, who, request)
        case CancelCall() as request:
            return cancel_call(kernel, who, request)
    return None


# ---- look-up ----


def sees(who: Principal, process: Process) -> bool:
    """Whether the process exists for `who`."""
    return (who.root or process.tenant == who.tenant) and process.segment is None


def visible(kernel: "Kernel", who: Principal, pid: Pid | None = None) -> list[Process]:
    """Living processes and zombies that `who` may see, by pid; or only `pid`."""
    if pid is not None:
        one = kernel.processes.get(pid) or kernel.zombies.get(pid)
        return [one] if one is not None and sees(who, one) else []
    tables = (kernel.zombies, kernel.processes)
    mine = [process for table in tables for process in table.values() if sees(who, process)]
    return sorted(mine, key=lambda process: process.pid)


def find(kernel: "Kernel", who: Principal, pid: Pid) -> Process:
    """The process, living or zombie. One of another tenant does not exist for the caller."""
    process = kernel.processes.get(pid) or kernel.zombies.get(pid)
    if process is None or not sees(who, process):
        raise error(errno.ESRCH, f"no process {pid}: it never existed or was waited for")
    return process


def find_living(kernel: "Kernel", who: Principal, pid: Pid) -> Process:
    process = find(kernel, who, pid)
    if process.state is State.ZOMBIE:
        assert process.exit_reason is not None
        raise error(errno.ESRCH, f"process {pid} has ended ({process.exit_reason.value})")
    return process


# ---- life ----


def spawn(kernel: "Kernel", who: Principal, request: Spawn) -> Pid:
    """Admit a new process, or say why not."""
    _check_spawn(kernel, who, request)
    max_tokens = request.max_tokens
    prompt = len(request.tokens)
    if max_tokens is None:
        left = kernel.info.max_context_tokens - prompt
        page_room = (kernel.info.frames - 1) * kernel.info.page_tokens - prompt
        max_tokens = max(1, min(kernel.params.default_max_tokens, left, page_room))
    _check_fits(kernel, prompt, max_tokens)
    if request.max_pages is not None and -(-prompt // kernel.info.page_tokens) > request.max_pages:
        raise error(
            errno.E2BIG,
            f"a prompt of {prompt} tokens needs more than max_pages={request.max_pages}",
        )
    process = _make(kernel, who.tenant, request, max_tokens)
    refusal = kernel.scheduler.check_arrival(process, kernel.memory.view(), kernel.now_s)
    if refusal is not None:
        kernel.counters.refused += 1
        raise error(
            errno.EAGAIN,
            f"overloaded: {refusal.reason}; retry after {refusal.retry_after_s:.2f} s",
            refusal.retry_after_s,
        )
    kernel.counters.spawned += 1
    kernel.add(process)
    kernel.trace.add(
        kernel.now_s, process.pid, "spawn", tenant=who.tenant, prompt=prompt, max_tokens=max_tokens
    )
    return process.pid


def _make(kernel: "Kernel", tenant: str, request: Spawn, max_tokens: int) -> Process:
    pid = kernel.new_pid()
    prompt = len(request.tokens)
    deadline_s = None if request.deadline_s is None else kernel.now_s + request.deadline_s
    entity = SchedEntity(
        pid=pid, qos=request.qos, nice=request.nice, tenant=tenant, arrival_s=kernel.now_s,
        prompt_tokens=prompt, max_tokens=max_tokens, reader=request.reader,
        deadline_s=math.inf if deadline_s is None else deadline_s, waiting_since_s=kernel.now_s,
    )  # fmt: skip
    stops = frozenset(request.stop_tokens)
    process = Process(
        pid=pid, parent=Pid(0), tenant=tenant, name=request.name, sampling=request.sampling,
        min_tokens=request.min_tokens, spawned_s=kernel.now_s,
        stop_tokens=stops if request.ignore_eos else stops | kernel.eos_tokens,
        entity=entity, space=kernel.memory.new_space(pid, tenant), tokens=list(request.tokens),
        prompt_tokens=prompt, max_tokens=max_tokens, max_pages=request.max_pages,
        deadline_s=deadline_s, stdin_open=request.keep_open, text=request.text,
        fresh_text=None if request.text is None else request.text.copy(),
    )  # fmt: skip
    process.usage.prompt_tokens = prompt
    return process


def _check_spawn(kernel: "Kernel", who: Principal, request: Spawn) -> None:
    if len(kernel.processes) + len(kernel.zombies) >= kernel.params.max_processes:
        raise error(
            errno.EAGAIN, f"{kernel.params.max_processes} processes exist; wait for some", 1.0
        )
    if not request.tokens:
        raise error(errno.EINVAL, "the prompt is empty; give at least one token")
    vocab = kernel.info.vocab_tokens
    if not all(0 <= token < vocab for token in request.tokens):
        raise error(errno.EINVAL, f"a prompt token is outside the vocabulary 0..{vocab - 1}")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise error(errno.EINVAL, f"max_tokens must be at least 1, not {request.max_tokens}")
    if request.min_tokens < 0:
        raise error(errno.EINVAL, f"min_tokens must not be negative ({request.min_tokens})")
    if request.max_pages is not None and request.max_pages < 1:
        raise error(errno.EINVAL, f"max_pages must be at least 1, not {request.max_pages}")
    deadline_s = request.deadline_s
    if deadline_s is not None and not 0 < deadline_s < math.inf:
        raise error(errno.EINVAL, f"deadline_s must be positive and finite, not {deadline_s}")
    rate = request.reader.tokens_per_s
    if not 0 < rate < math.inf:
        raise error(
            errno.EINVAL, f"a reader's tokens_per_s must be positive and finite, not {rate}"
        )
    _check_nice(who, request.nice)
    check_sampling(request.sampling, vocab)


def _check_fits(kernel: "Kernel", prompt: int, max_tokens: int) -> None:
    info = kernel.info
    reserved = kernel.segments.count_pages()
    why = can_never_fit(
        prompt, max_tokens, info.page_tokens, info.frames - reserved, info.max_context_tokens
    )
    if why is not None:
        raise error(errno.E2BIG, why)


def check_sampling(params: SamplingParams, vocab: int) -> None:
    """EINVAL for values that make no sense, naming the field and its range."""
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("temperature", params.temperature, 0.0, 100.0),
        ("top_p", params.top_p, 1e-9, 1.0),
        ("min_p", params.min_p, 0.0, 1.0),
        ("repetition_penalty", params.repetition_penalty, 1e-3, 1e3),
        ("presence_penalty", params.presence_penalty, -100.0, 100.0),
        ("frequency_penalty", params.frequency_penalty, -100.0, 100.0),
        ("top_k", params.top_k, 0, math.inf),
        ("logprobs", params.logprobs, -1, 64),
    )
    for name, value, low, high in ranges:
        if not low <= value <= high:
            raise error(errno.EINVAL, f"{name} must be between {low:g} and {high:g}, not {value}")
    for token, bias in params.logit_bias:
        if not 0 <= token < vocab or not math.isfinite(bias):
            raise error(errno.EINVAL, f"logit_bias of token {token} is out of range")


def fork(kernel: "Kernel", who: Principal, request: Fork) -> tuple[Pid, ...]:
    """Branch a generation. Children have the parent's tokens and limits and an empty pipe."""
    parent = find_living(kernel, who, request.pid)
    if not 1 <= request.n <= kernel.params.max_forks:
        raise error(errno.EINVAL, f"n must be between 1 and {kernel.params.max_forks}")
    if request.seeds and len(request.seeds) != request.n:
        raise error(errno.EINVAL, f"{request.n} children need {request.n} seeds, or none")
    if len(kernel.processes) + len(kernel.zombies) + request.n > kernel.params.max_processes:
        raise error(errno.EAGAIN, "too many processes; wait for some", 1.0)
    return tuple(_fork_one(kernel, parent, i, request) for i in range(request.n))


def _fork_one(kernel: "Kernel", parent: Process, number: int, request: Fork) -> Pid:
    pid = kernel.new_pid()
    seed = parent.sampling.seed
    seed = request.seeds[number] if request.seeds else seed * 1_000_003 + number + 1
    child = Process(
        pid=pid, parent=parent.pid, tenant=parent.tenant, name=parent.name,
        sampling=replace(parent.sampling, seed=seed & 0xFFFFFFFFFFFFFFFF),
        min_tokens=parent.min_tokens, stop_tokens=parent.stop_tokens, spawned_s=kernel.now_s,
        fresh_text=parent.fresh_text, entity=replace(parent.entity, pid=pid),
        space=kernel.memory.new_space(pid, parent.tenant), tokens=list(parent.tokens),
        prompt_tokens=parent.prompt_tokens, max_tokens=parent.max_tokens,
        max_pages=parent.max_pages, deadline_s=parent.deadline_s, stdin_open=parent.stdin_open,
        stdin=deque(parent.stdin), in_turn=parent.in_turn, last_turn=parent.last_turn,
        text=None if parent.text is None else parent.text.copy(),
        hold=parent.hold & (Hold.SIGNAL | Hold.INPUT),
    )  # fmt: skip
    child.usage.prompt_tokens = parent.usage.prompt_tokens
    kernel.scheduler.inherit(parent.entity, child.entity)
    kernel.memory.fork(parent, child)
    kernel.counters.spawned += 1
    kernel.add(child)
    if child.space.mapped:
        kernel.move(child, State.SWAPPED)
    kernel.trace.add(kernel.now_s, pid, "fork", parent=parent.pid, shared=child.space.mapped)
    return pid


def wait(kernel: "Kernel", call: Call, request: Wait) -> object:
    """Reap a finished process, or block until one finishes."""
    known = visible(kernel, call.principal, request.pid)
    if not known:
        which = "there is no process" if request.pid is None else f"no process {request.pid}"
        raise error(errno.ECHILD, f"{which} to wait for")
    for process in known:
        if process.state is State.ZOMBIE:
            return kernel.reap(process)
    if not request.block:
        return None
    return _park(kernel, call, request)


def _park(kernel: "Kernel", call: Call, request: Read | Wait) -> object:
    from tokenix.kernel.core import WaitingCall

    parked = len(kernel.waiters) + sum(len(queue) for queue in kernel.readers.values())
    if parked >= kernel.params.max_waiting_calls:
        raise error(errno.EAGAIN, f"{parked} calls are blocked already", 1.0)
    waiting = WaitingCall(call.call_id, call.principal, request)
    if isinstance(request, Read):
        kernel.readers.setdefault(request.pid, deque()).append(waiting)
    else:
        kernel.waiters[call.call_id] = waiting
    return BLOCKED


def kill(kernel: "Kernel", who: Principal, request: Kill) -> None:
    """Deliver a signal. A zombie takes any signal and stays a zombie."""
    process = find(kernel, who, request.pid)
    kernel.trace.add(kernel.now_s, process.pid, "signal", signal=request.signal.name)
    if process.state is State.ZOMBIE:
        return
    match request.signal:
        case Signal.STOP:
            kernel.set_hold(process, Hold.SIGNAL)
        case Signal.CONT:
            kernel.clear_hold(process, Hold.SIGNAL)
        case Signal.TERM:
            kernel.exit(process, ExitReason.TERMINATED)
        case Signal.KILL:
            kernel.exit(process, ExitReason.KILLED)


def _check_nice(who: Principal, value: int) -> None:
    if not -20 <= value <= 19:
        raise error(errno.EINVAL, f"nice must be between -20 and 19, not {value}")
    if value < 0 and not who.root:
        raise error(errno.EPERM, f"nice {value}: only root may go below 0")


def nice(kernel: "Kernel", who: Principal, request: Nice) -> int:
    """Set the nice value; returns the old one."""
    process = find_living(kernel, who, request.pid)
    _check_nice(who, request.nice)
    old, process.entity.nice = process.entity.nice, request.nice
    kernel.trace.add(kernel.now_s, process.pid, "nice", old=old, new=request.nice)
    return old


def setrlimit(kernel: "Kernel", who: Principal, request: SetRlimit) -> None:
    """Change limits of a living process."""
    process = find_living(kernel, who, request.pid)
    if request.max_tokens is not None:
        least = process.output_tokens + 1 if process.in_turn else 1
        if request.max_tokens < least:
            raise error(
                errno.EINVAL,
                f"max_tokens must be at least {least}, not {request.max_tokens}; "
                "to end a process now, send it SIGTERM",
            )
        _check_fits(kernel, process.prompt_tokens, request.max_tokens)
        process.max_tokens = process.entity.max_tokens = request.max_tokens
    if request.max_pages is not None:
        if request.max_pages < 1:
            raise error(errno.EINVAL, f"max_pages must be at least 1, not {request.max_pages}")
        process.max_pages = request.max_pages
    if request.deadline_s is not None:
        if not 0 < request.deadline_s < math.inf:
            raise error(errno.EINVAL, "deadline_s must be positive and finite")
        process.deadline_s = process.entity.deadline_s = kernel.now_s + request.deadline_s
        kernel.watch_deadline(process)


# ---- input and output ----


def read(kernel: "Kernel", call: Call, request: Read) -> object:
    """Take output from a process's pipe, or block until there is some."""
    process = find(kernel, call.principal, request.pid)
    if request.max_tokens < 1:
        raise error(errno.EINVAL, f"max_tokens must be at least 1, not {request.max_tokens}")
    if process.eof_sent:
        raise end_of_file(process)
    if not kernel.readers.get(process.pid):
        result = kernel.take_output(process, request.max_tokens)
        if result is not None:
            return result
    if not request.block:
        from tokenix.kernel.calls import ReadResult

        return ReadResult(())
    return _park(kernel, call, request)


def end_of_file(process: Process) -> KernelError:
    """For reads after the one that was told the end."""
    return error(errno.EPIPE, f"the output of process {process.pid} was read to its end")


def write(kernel: "Kernel", who: Principal, request: Write) -> int:
    """Append input for the next turn; returns the tokens waiting in stdin."""
    process = find_living(kernel, who, request.pid)
    if not process.stdin_open:
        raise error(
            errno.EPIPE, f"stdin of process {process.pid} is closed; spawn it with keep_open=True"
        )
    vocab = kernel.info.vocab_tokens
    tokens = request.tokens
    if tokens and not process.stdin and process.tokens[-1] not in process.stop_tokens:
        tokens = request.separator + tokens
    if not all(0 <= token < vocab for token in tokens):
        raise error(errno.EINVAL, f"an input token is outside the vocabulary 0..{vocab - 1}")
    waiting = len(process.stdin) + len(tokens)
    if waiting > kernel.params.stdin_tokens:
        raise error(errno.E2BIG, f"stdin holds at most {kernel.params.stdin_tokens} tokens")
    if tokens:
        in_turn = process.limit_tokens if process.in_turn else process.length
        _check_fits(kernel, in_turn + waiting, process.max_tokens)
    process.stdin.extend(tokens)
    process.stdin_open = not request.eof
    next_turn(kernel, process)
    return len(process.stdin)


def next_turn(kernel: "Kernel", process: Process) -> None:
    """If the process waits for input: begin a turn with what stdin holds, or end at its close."""
    if not process.hold & Hold.INPUT or process.state is State.ZOMBIE:
        return
    if process.stdin:
        process.tokens.extend(process.stdin)
        process.stdin.clear()
        process.prompt_tokens = process.length
        process.in_turn = True
        if process.fresh_text is not None:
            process.text = process.fresh_text.copy()
        process.usage.prompt_tokens = process.length
        kernel.scheduler.restart_turn(process, kernel.now_s)
        kernel.clear_hold(process, Hold.INPUT)
    elif not process.stdin_open:
        kernel.exit(process, process.last_turn or ExitReason.STOP)


# ---- segments, trace, cancellation ----


def shm_open(kernel: "Kernel", call: Call, request: ShmOpen) -> object:
    """Pin a named prefix. The reply comes when its KV is computed."""
    who, page_tokens = call.principal, kernel.info.page_tokens
    if kernel.segments.find(who.tenant, request.name) is not None:
        raise error(errno.EEXIST, f"segment {request.name!r} exists; shm_unlink it first")
    pages = len(request.tokens) // page_tokens
    if pages == 0:
        raise error(errno.EINVAL, f"a segment needs at least one page of {page_tokens} tokens")
    if not kernel.params.prefix_cache:
        raise error(errno.EINVAL, "segments need the prefix cache, which is off")
    limit = int(kernel.info.frames * kernel.params.max_shm_share)
    pinned = kernel.segments.count_pages()
    biggest = max((p.space.pages_for(p.limit_tokens) for p in kernel.processes.values()), default=0)
    if pinned + pages > limit or biggest + 1 + pinned + pages > kernel.info.frames:
        raise error(
            errno.EDQUOT, f"{pages} pages on top of {pinned} pinned exceed the limit of {limit}"
        )
    tokens = request.tokens[: pages * page_tokens]
    _check_spawn(kernel, who, Spawn(tokens))
    process = _make(kernel, who.tenant, Spawn(tokens, qos=Qos.INTERACTIVE), 0)
    process.segment = request.name
    kernel.segments.add(Segment(request.name, who.tenant, call.call_id, process.pid, pages))
    kernel.add(process)
    return BLOCKED


def trace(kernel: "Kernel", who: Principal, request: Trace) -> object:
    """Events of one process, or of all for root."""
    if request.pid is None and not who.root:
        raise error(errno.EPERM, "only root may trace all processes; name a pid")
    if request.pid is not None and not who.root:
        find(kernel, who, request.pid)
    return tuple(kernel.trace.since(request.since, request.limit, request.pid))


def cancel_call(kernel: "Kernel", who: Principal, request: CancelCall) -> bool:
    """Take back a blocked call; False if it is not blocked (any more)."""
    interrupted: KernelError = error(errno.EINTR, "the call was cancelled")
    waiting = kernel.waiters.get(request.call_id)
    if waiting is not None and (who.root or waiting.principal == who):
        del kernel.waiters[request.call_id]
        kernel.reply(request.call_id, interrupted)
        return True
    for pid, queue in list(kernel.readers.items()):
        for waiting in list(queue):
            if waiting.call_id == request.call_id and (who.root or waiting.principal == who):
                queue.remove(waiting)
                if not queue:
                    del kernel.readers[pid]
                kernel.reply(request.call_id, interrupted)
                return True
    return False
