"""What an image says of a process: everything but its pages, as bytes that the device keeps.

Times are written as distances from the moment of writing, since each kernel has its own clock.
Seeds need nothing: the chance of a draw is a function of (seed, position), so what is drawn after
a resume is what would have been drawn.
"""

import errno
from array import array
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.answers import ExitReason, Output, Rusage, TurnEnd
from tokenix.kernel.birth import check_fits, check_spawn
from tokenix.kernel.calls import Grammar, Principal, Spawn, TextStream, error
from tokenix.kernel.process import Process
from tokenix.kernel.state import Hold
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader, SchedEntity

if TYPE_CHECKING:
    from tokenix.kernel.lifecycle import Lifecycle

TOKEN = "I"
"""Type code of an array of tokens: 4 bytes each."""


class ImageMeta(msgspec.Struct, frozen=True, kw_only=True):
    # ---- what it may run on ----
    model: str
    kv_dtype: str
    weights: str = "exact"
    page_tokens: int
    """Of another size, the pages are of no use, and computed again."""

    # ---- the sequence ----
    tenant: str
    name: str
    tokens: bytes
    prompt_tokens: int
    computed: int
    """Tokens whose KV is in the pages of the image."""
    in_turn: bool
    last_turn: ExitReason | None
    stdin: bytes
    stdin_open: bool
    stopped: bool
    """By SIGSTOP."""

    # ---- how it goes on ----
    sampling: SamplingParams
    min_tokens: int
    max_tokens: int
    max_pages: int | None
    deadline_s: float | None
    """Seconds that were left."""
    stop_tokens: tuple[int, ...]
    text: bytes | None
    fresh_text: bytes | None
    grammar: bytes | None = None

    # ---- its reader, and its place among the others ----
    outputs: list[Output]
    """In the pipe; `time_s` counts back from the moment of writing."""
    ends: list[tuple[int, TurnEnd]]
    """Ends of turns, each with the outputs that are before it."""
    qos: int
    nice: int
    reader: Reader
    delivered_tokens: int
    read_tokens: int
    read_rate: float
    inherited_tokens: int
    age_s: float
    usage: Rusage


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ImageMeta)


def describe(kernel: "Lifecycle", process: Process, computed: int) -> bytes:
    """All there is to know of a process that does not run. EINVAL if that has no place in a file: a
    name that is no text, a number of more than 64 bits."""
    now_s, entity = kernel.now_s, process.entity
    kernel.charge(process)
    outputs: list[Output] = []
    ends: list[tuple[int, TurnEnd]] = []
    for item in process.out:
        if isinstance(item, TurnEnd):
            ends.append((len(outputs), item))
        else:
            outputs.append(msgspec.structs.replace(item, time_s=item.time_s - now_s))
    meta = ImageMeta(
        model=kernel.images.model,
        kv_dtype=kernel.images.kv_dtype,
        weights=kernel.images.weights,
        page_tokens=kernel.info.page_tokens,
        tenant=process.tenant,
        name=process.name,
        tokens=array(TOKEN, process.tokens).tobytes(),
        prompt_tokens=process.prompt_tokens,
        computed=computed,
        in_turn=process.in_turn,
        last_turn=process.last_turn,
        stdin=array(TOKEN, process.stdin).tobytes(),
        stdin_open=process.stdin_open,
        stopped=bool(process.hold & Hold.SIGNAL),
        sampling=process.sampling,
        min_tokens=process.min_tokens,
        max_tokens=process.max_tokens,
        max_pages=process.max_pages,
        deadline_s=None if process.deadline_s is None else process.deadline_s - now_s,
        stop_tokens=tuple(sorted(process.stop_tokens)),
        text=_freeze(process.text),
        fresh_text=_freeze(process.fresh_text),
        grammar=None if process.grammar is None else process.grammar.freeze(),
        outputs=outputs,
        ends=ends,
        qos=entity.qos,
        nice=entity.nice,
        reader=entity.reader,
        delivered_tokens=entity.delivered_tokens,
        read_tokens=entity.read_tokens,
        read_rate=entity.read_rate,
        inherited_tokens=process.inherited_tokens,
        age_s=now_s - process.spawned_s,
        usage=process.usage,
    )
    try:
        return _ENCODER.encode(meta)
    except (UnicodeEncodeError, OverflowError) as why:
        raise error(
            errno.EINVAL, f"process {process.pid} does not fit into an image: {why}"
        ) from None


def understand(kernel: "Lifecycle", data: bytes) -> ImageMeta:
    """What `describe` made. EBADMSG for anything else, EINVAL for another model or format."""
    try:
        meta = _DECODER.decode(data)
        array(TOKEN).frombytes(meta.tokens + meta.stdin)
        sound = 0 < meta.prompt_tokens <= len(meta.tokens) // 4 and meta.page_tokens > 0
        sound = sound and 0 <= meta.computed <= len(meta.tokens) // 4
        Qos(meta.qos)
    except (msgspec.MsgspecError, ValueError) as why:
        raise error(errno.EBADMSG, f"it does not describe a process: {why}") from None
    if not sound:
        raise error(errno.EBADMSG, "it does not describe a process: its sizes are wrong")
    if meta.model != kernel.images.model:
        raise error(errno.EINVAL, "it was made with another model; boot that one")
    if meta.kv_dtype != kernel.images.kv_dtype:
        raise error(
            errno.EINVAL,
            f"it was made with kv_dtype={meta.kv_dtype}, and this machine has "
            f"{kernel.images.kv_dtype}; boot with {meta.kv_dtype}",
        )
    if meta.weights != kernel.images.weights:
        raise error(
            errno.EINVAL,
            f"it was made with weights={meta.weights}, and this machine has "
            f"{kernel.images.weights}; boot with {meta.weights}",
        )
    return meta


def revive(kernel: "Lifecycle", meta: ImageMeta) -> Process:
    """The process, without pages and in no table yet. EAGAIN, EINVAL and E2BIG as for a spawn."""
    tokens, stdin = array(TOKEN, meta.tokens), array(TOKEN, meta.stdin)
    asked = Spawn(
        (*tokens, *stdin), sampling=meta.sampling, max_pages=meta.max_pages, reader=meta.reader,
        nice=meta.nice,
    )  # fmt: skip
    check_spawn(kernel, Principal(meta.tenant, root=True), asked)
    now_s, pid = kernel.now_s, kernel.new_pid()
    deadline_s = None if meta.deadline_s is None else now_s + meta.deadline_s
    entity = SchedEntity(
        pid=pid, qos=Qos(meta.qos), nice=meta.nice, tenant=meta.tenant, arrival_s=now_s,
        prompt_tokens=meta.prompt_tokens, max_tokens=meta.max_tokens, reader=meta.reader,
        stalls=meta.usage.stalls,
    )  # fmt: skip
    if deadline_s is not None:
        entity.deadline_s = deadline_s
    kernel.scheduler.revive(entity, meta.delivered_tokens, meta.read_tokens, meta.read_rate, now_s)
    process = Process(
        pid=pid, parent=Pid(0), tenant=meta.tenant, name=meta.name, sampling=meta.sampling,
        min_tokens=meta.min_tokens, stop_tokens=frozenset(meta.stop_tokens),
        spawned_s=now_s - meta.age_s, fresh_text=_thaw(kernel, meta.fresh_text),
        grammar=_thaw_grammar(kernel, meta.grammar),
        inherited_tokens=meta.inherited_tokens, entity=entity,
        space=kernel.memory.new_space(pid, meta.tenant), furthest=meta.computed,
        held_since_s=now_s, max_tokens=meta.max_tokens, max_pages=meta.max_pages,
        deadline_s=deadline_s, stdin_open=meta.stdin_open, stdin=deque(stdin),
        tokens=list(tokens), prompt_tokens=meta.prompt_tokens, text=_thaw(kernel, meta.text),
        out=_pipe(meta, now_s), ends=len(meta.ends), in_turn=meta.in_turn,
        last_turn=meta.last_turn, usage=meta.usage,
    )  # fmt: skip
    process.hold = _holds(kernel, process, meta)
    check_fits(
        kernel, process.reach(meta.max_tokens) - meta.max_tokens, meta.max_tokens, process.tenant
    )
    return process


def _holds(kernel: "Lifecycle", process: Process, meta: ImageMeta) -> Hold:
    hold = Hold.NONE if meta.in_turn else Hold.INPUT
    if meta.stopped:
        hold |= Hold.SIGNAL
    if process.unread >= kernel.params.pipe_tokens:
        hold |= Hold.PIPE
    return hold


def _pipe(meta: ImageMeta, now_s: float) -> deque[Output | TurnEnd]:
    pipe: deque[Output | TurnEnd] = deque()
    ends = deque(meta.ends)
    for count, output in enumerate(meta.outputs):
        while ends and ends[0][0] == count:
            pipe.append(ends.popleft()[1])
        pipe.append(msgspec.structs.replace(output, time_s=output.time_s + now_s))
    pipe.extend(end for _, end in ends)
    return pipe


def _freeze(text: TextStream | None) -> bytes | None:
    try:
        return None if text is None else text.freeze()
    except UnicodeEncodeError as why:
        raise error(errno.EINVAL, f"its stop strings do not fit into an image: {why}") from None


def _thaw(kernel: "Lifecycle", data: bytes | None) -> TextStream | None:
    if data is None or kernel.images.thaw is None:
        return None
    try:
        return kernel.images.thaw(data)
    except ValueError as why:
        raise error(errno.EBADMSG, f"it does not describe a text: {why}") from None


def _thaw_grammar(kernel: "Lifecycle", data: bytes | None) -> Grammar | None:
    if data is None:
        return None
    if kernel.images.thaw_grammar is None:
        raise error(errno.ENOTSUP, "its output keeps to a grammar, and this machine has none")
    try:
        return kernel.images.thaw_grammar(data)
    except ValueError as why:
        raise error(errno.EBADMSG, f"it does not describe a grammar: {why}") from None
    except OSError as why:
        raise error(why.errno or errno.EINVAL, str(why.strerror)) from None
