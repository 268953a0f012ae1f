"""One handler for each system call: checks, then the change. Raises KernelError for the caller.

`handle` is the table. A handler returns the call's result, or BLOCKED if the reply comes later.
"""

import errno
from typing import Final

from tokenix.kernel import control, imaging, maps, outlook, snapshot
from tokenix.kernel.answers import ExitReason, ReadResult
from tokenix.kernel.birth import (
    check_fits,
    check_limits,
    check_nice,
    check_spawn,
    check_tokens,
    fork,
    make,
    spawn,
)
from tokenix.kernel.calls import (
    CancelCall,
    Follow,
    Fork,
    Framemap,
    ImageDir,
    Images,
    Kill,
    Maps,
    Metrics,
    Nice,
    Plan,
    Prefixes,
    Principal,
    Ps,
    Read,
    Resume,
    SetRlimit,
    ShmOpen,
    ShmUnlink,
    Signal,
    Spawn,
    Stat,
    Suspend,
    Swapoff,
    Swapon,
    Sysctl,
    Tail,
    Trace,
    UnlinkImage,
    Vmstat,
    Wait,
    Write,
    error,
)
from tokenix.kernel.commit import take_output
from tokenix.kernel.event import Call
from tokenix.kernel.launch import Launch
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.process import Process, end_of, end_of_file
from tokenix.kernel.segments import Segment
from tokenix.kernel.state import Hold, State
from tokenix.sched.entity import Qos


class _Blocked:
    """The type of BLOCKED."""


BLOCKED: Final = _Blocked()


def handle(kernel: Lifecycle, call: Call) -> object:
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
        case Follow() as request:
            return follow(kernel, call, request)
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
            return snapshot.process_stat(kernel, kernel.find(who, request.pid))
        case Ps() | Maps() | Tail() | Framemap() | Prefixes() | Plan() as request:
            return look(kernel, who, request)
        case Vmstat():
            return snapshot.vmstat(kernel)
        case Metrics():
            return kernel.meters.report(who)
        case Sysctl() as request:
            return control.sysctl(kernel, who, request)
        case Swapon() | Swapoff() as request:
            return swap(kernel, call, request)
        case ImageDir() | Suspend() | Resume() | UnlinkImage() as request:
            return image(kernel, call, request)
        case Images():
            return kernel.images.of(who)
        case Trace() as request:
            return trace(kernel, who, request)
        case CancelCall() as request:
            taken = kernel.cancel(who, request.call_id)
            return taken or imaging.cancel(kernel, who, request.call_id)
    return None


# ---- looks ----


def look(
    kernel: Lifecycle, who: Principal, request: Ps | Maps | Tail | Framemap | Prefixes | Plan
) -> object:
    """Looks at many things: each is answered for some of them, and changes nothing but usage."""
    match request:
        case Ps():
            return snapshot.ps(kernel, who, request)
        case Maps():
            return maps.page_map(kernel, kernel.find(who, request.pid), request)
        case Tail():
            return snapshot.tail(kernel, kernel.find(who, request.pid), request.limit)
        case Framemap():
            return maps.place_map(kernel, who, request)
        case Prefixes():
            return maps.prefixes(kernel, who, request)
        case Plan():
            assert isinstance(kernel, Launch), "it has a pass in flight, or none"
            return outlook.plan_report(kernel, who)


# ---- memory ----


def swap(kernel: Lifecycle, call: Call, request: Swapon | Swapoff) -> object:
    """Open or close the swap file: answered when the device has done it."""
    name = type(request).__name__.lower()
    if not call.principal.root:
        raise error(errno.EPERM, f"only root may call {name}")
    if isinstance(request, Swapon):
        kernel.swapfile.swapon(call.call_id, request.directory, request.size_bytes)
    else:
        kernel.swapfile.swapoff(call.call_id, kernel.now_s)
    kernel.trace.add(kernel.now_s, None, name)
    return BLOCKED


# ---- images ----


def image(
    kernel: Lifecycle, call: Call, request: ImageDir | Suspend | Resume | UnlinkImage
) -> object:
    """All of them are answered when the disk has done its part."""
    match request:
        case ImageDir():
            imaging.open_images(kernel, call, request)
        case Suspend():
            imaging.suspend(kernel, call, request)
        case Resume():
            imaging.resume(kernel, call, request)
        case UnlinkImage():
            imaging.unlink(kernel, call, request)
    return BLOCKED


# ---- life ----


def wait(kernel: Lifecycle, call: Call, request: Wait) -> object:
    """Reap a finished process, or block until one finishes."""
    known = kernel.visible(call.principal, request.pid)
    if not known:
        which = "there is no process" if request.pid is None else f"no process {request.pid}"
        raise error(errno.ECHILD, f"{which} to wait for")
    for process in known:
        if process.state is State.ZOMBIE:
            return end_of(process) if request.keep else kernel.reap(process)
    if not request.block:
        raise error(errno.EAGAIN, "none of those that were asked for has finished")
    kernel.park(call, request)
    return BLOCKED


def kill(kernel: Lifecycle, who: Principal, request: Kill) -> None:
    """Deliver a signal. A zombie takes any signal and stays a zombie."""
    process = kernel.find(who, request.pid)
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


def nice(kernel: Lifecycle, who: Principal, request: Nice) -> int:
    """Set the nice value; returns the old one."""
    process = kernel.find_living(who, request.pid)
    check_nice(who, request.nice)
    old, process.entity.nice = process.entity.nice, request.nice
    kernel.scheduler.note_changed(process)
    kernel.trace.add(kernel.now_s, process.pid, "nice", old=old, new=request.nice)
    return old


def setrlimit(kernel: Lifecycle, who: Principal, request: SetRlimit) -> None:
    """Change limits of a living process: all that are given, or none."""
    process = kernel.find_living(who, request.pid)
    max_tokens = request.max_tokens
    if max_tokens is not None:
        check_max_tokens(kernel, process, max_tokens)
    check_limits(request.max_pages, request.deadline_s)
    process.quiet_until = 0
    if max_tokens is not None:
        process.max_tokens = process.entity.max_tokens = max_tokens
    if request.max_pages is not None:
        process.max_pages = request.max_pages
    if request.deadline_s is not None:
        process.deadline_s = process.entity.deadline_s = kernel.now_s + request.deadline_s
        kernel.watch_deadline(process)
    kernel.scheduler.note_changed(process)


def check_max_tokens(kernel: Lifecycle, process: Process, max_tokens: int) -> None:
    """EINVAL for a bound that its output has reached; E2BIG for one that has no room in this turn,
    or in the next if there is none now."""
    least = process.output_tokens + 1 if process.in_turn else 1
    if max_tokens < least:
        raise error(
            errno.EINVAL,
            f"max_tokens must be at least {least}, not {max_tokens}; "
            "to end a process now, send it SIGTERM",
        )
    reach = process.reach(max_tokens)
    turns = max_tokens if process.in_turn or process.stdin else 0
    check_fits(kernel, reach - turns, max_tokens, process.tenant)


# ---- input and output ----


def read(kernel: Lifecycle, call: Call, request: Read) -> object:
    """Take output from a process's pipe, or block until there is some."""
    process = _find_readable(kernel, call.principal, request)
    if not kernel.readers.get(process.pid):
        result = take_output(process, request.max_tokens)
        if result is not None:
            if result.outputs:
                kernel.note_read([(process, len(result.outputs))])
            return result
    if not request.block:
        return ReadResult(())
    kernel.park(call, request)
    return BLOCKED


def follow(kernel: Lifecycle, call: Call, request: Follow) -> object:
    """Take what there is and what comes."""
    process = _find_readable(kernel, call.principal, request)
    kernel.park(call, request)
    kernel.serve_readers((process,))
    return BLOCKED


def _find_readable(kernel: Lifecycle, who: Principal, request: Read | Follow) -> Process:
    process = kernel.find(who, request.pid)
    if request.max_tokens < 1:
        raise error(errno.EINVAL, f"max_tokens must be at least 1, not {request.max_tokens}")
    if process.eof_sent:
        raise end_of_file(process)
    return process


def write(kernel: Lifecycle, who: Principal, request: Write) -> int:
    """Append input for the next turn; returns the tokens waiting in stdin."""
    process = kernel.find_living(who, request.pid)
    if not process.stdin_open:
        raise error(
            errno.EPIPE, f"stdin of process {process.pid} is closed; spawn it with keep_open=True"
        )
    check_tokens("an input token", request.span, kernel.info.vocab_tokens)
    tokens = request.tokens
    if tokens and not process.stdin and process.tokens[-1] not in process.stop_tokens:
        tokens = request.separator + tokens
    waiting = len(process.stdin) + len(tokens)
    if waiting > kernel.params.stdin_tokens:
        raise error(errno.E2BIG, f"stdin holds at most {kernel.params.stdin_tokens} tokens")
    if tokens:
        sequence = process.limit_tokens if process.in_turn else process.length
        check_fits(kernel, sequence + waiting, process.max_tokens, process.tenant)
    process.stdin.extend(tokens)
    process.stdin_open = not request.eof
    kernel.begin_turn(process)
    return len(process.stdin)


# ---- segments, trace, cancellation ----


def shm_open(kernel: Lifecycle, call: Call, request: ShmOpen) -> object:
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
    living = kernel.processes.values()
    biggest = max((p.space.pages_for(p.reach(p.max_tokens)) for p in living), default=0)
    if pinned + pages > limit or biggest + 1 + pinned + pages > kernel.info.frames:
        raise error(
            errno.EDQUOT, f"{pages} pages on top of {pinned} pinned exceed the limit of {limit}"
        )
    ceiling = kernel.memory.quotas.get(who.tenant, "frames").ceiling
    own = kernel.segments.count_pages(who.tenant)
    if ceiling is not None and own + pages > ceiling:
        raise error(
            errno.EDQUOT,
            f"{pages} pages on top of {own} pinned are more than the {ceiling} that tenant "
            f"{who.tenant!r} may have; unlink a segment, or have its quota raised",
        )
    tokens = request.tokens[: pages * page_tokens]
    check_spawn(kernel, who, Spawn(tokens))
    process = make(kernel, who.tenant, Spawn(tokens, qos=Qos.INTERACTIVE), 0)
    process.segment = request.name
    kernel.segments.add(Segment(request.name, who.tenant, call.call_id, process.pid, pages))
    kernel.add(process)
    return BLOCKED


def trace(kernel: Lifecycle, who: Principal, request: Trace) -> object:
    """Events of one process, or of all for root."""
    if request.pid is None and not who.root:
        raise error(errno.EPERM, "only root may trace all processes; name a pid")
    if request.pid is not None and not who.root:
        kernel.find(who, request.pid)
    return tuple(kernel.trace.since(request.since, request.limit, request.pid))
