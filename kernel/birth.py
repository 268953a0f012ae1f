"""How processes come into being: spawn and fork, and what is refused at once."""

import errno
import math
from collections import deque
from dataclasses import replace

from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.calls import PLAIN, Fork, Principal, Span, Spawn, error, span_of
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.process import Process
from tokenix.kernel.state import Hold, State
from tokenix.mm.ids import Pid
from tokenix.sched.admission import can_never_fit
from tokenix.sched.entity import SchedEntity

MOST = (1 << 31) - 1
"""Of what a caller may count."""


def spawn(kernel: Lifecycle, who: Principal, request: Spawn) -> Pid:
    """Admit a new process, or say why not."""
    check_spawn(kernel, who, request)
    max_tokens = request.max_tokens
    prompt = len(request.tokens)
    if max_tokens is None:
        left = kernel.info.max_context_tokens - prompt
        page_room = (kernel.info.frames - 1) * kernel.info.page_tokens - prompt
        max_tokens = max(1, min(kernel.params.default_max_tokens, left, page_room))
    check_fits(kernel, prompt, max_tokens, who.tenant)
    if request.min_tokens > max_tokens:
        raise error(
            errno.EINVAL, f"min_tokens ({request.min_tokens}) is above max_tokens ({max_tokens})"
        )
    if request.max_pages is not None and -(-prompt // kernel.info.page_tokens) > request.max_pages:
        raise error(
            errno.E2BIG,
            f"a prompt of {prompt} tokens needs more than max_pages={request.max_pages}",
        )
    process = make(kernel, who.tenant, request, max_tokens)
    prefill_rate = kernel.scheduler.rates.prefill_tokens_per_s
    kernel.memory.note_known_prefix(process, prefill_rate)
    refusal = kernel.scheduler.check_arrival(process, kernel.view_of_now(), kernel.now_s)
    if refusal is not None:
        kernel.counters.refused += 1
        kernel.meters.note_refused(who.tenant, request.qos)
        raise error(
            errno.EAGAIN,
            f"overloaded: {refusal.reason}; retry after {refusal.retry_after_s:.2f} s",
            refusal.retry_after_s,
        )
    kernel.counters.spawned += 1
    kernel.add(process)
    kernel.memory.prefetch_prefix(process, prefill_rate, kernel.now_s)
    kernel.trace.add(
        kernel.now_s, process.pid, "spawn", tenant=who.tenant, prompt=prompt, max_tokens=max_tokens
    )
    return process.pid


def make(kernel: Lifecycle, tenant: str, request: Spawn, max_tokens: int) -> Process:
    """A process that is in no table yet."""
    pid = kernel.new_pid()
    prompt = len(request.tokens)
    deadline_s = None if request.deadline_s is None else kernel.now_s + request.deadline_s
    entity = SchedEntity(
        pid=pid, qos=request.qos, nice=request.nice, tenant=tenant, arrival_s=kernel.now_s,
        prompt_tokens=prompt, max_tokens=max_tokens, reader=request.reader,
        deadline_s=math.inf if deadline_s is None else deadline_s, waiting_since_s=kernel.now_s,
    )  # fmt: skip
    stops = frozenset(request.stop_tokens)
    if not request.ignore_eos or request.grammar is not None:
        stops |= kernel.eos_tokens
    process = Process(
        pid=pid, parent=Pid(0), tenant=tenant, name=request.name, sampling=request.sampling,
        min_tokens=request.min_tokens, spawned_s=kernel.now_s,
        stop_tokens=stops, grammar=request.grammar,
        entity=entity, space=kernel.memory.new_space(pid, tenant), tokens=list(request.tokens),
        prompt_tokens=prompt, max_tokens=max_tokens, max_pages=request.max_pages,
        deadline_s=deadline_s, stdin_open=request.keep_open, text=request.text,
        fresh_text=None if request.text is None else request.text.copy(),
    )  # fmt: skip
    process.usage.prompt_tokens = prompt
    return process


def check_spawn(kernel: Lifecycle, who: Principal, request: Spawn) -> None:
    """EAGAIN and EINVAL of a spawn."""
    if len(kernel.processes) + len(kernel.zombies) >= kernel.params.max_processes:
        raise error(
            errno.EAGAIN, f"{kernel.params.max_processes} processes exist; wait for some", 1.0
        )
    if not request.tokens:
        raise error(errno.EINVAL, "the prompt is empty; give at least one token")
    vocab = kernel.info.vocab_tokens
    check_tokens("a prompt token", request.span, vocab)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise error(errno.EINVAL, f"max_tokens must be at least 1, not {request.max_tokens}")
    if request.min_tokens < 0:
        raise error(errno.EINVAL, f"min_tokens must not be negative ({request.min_tokens})")
    check_tokens("a stop token", span_of(request.stop_tokens), vocab)
    check_limits(request.max_pages, request.deadline_s)
    rate = request.reader.tokens_per_s
    if not 0 < rate < math.inf:
        raise error(
            errno.EINVAL, f"a reader's tokens_per_s must be positive and finite, not {rate}"
        )
    check_nice(who, request.nice)
    if request.sampling is not PLAIN:
        check_sampling(request.sampling, vocab)


def check_limits(max_pages: int | None, deadline_s: float | None) -> None:
    """EINVAL for limits of a process that are none."""
    if max_pages is not None and not 1 <= max_pages <= MOST:
        raise error(errno.EINVAL, f"max_pages must be between 1 and {MOST}, not {max_pages}")
    if deadline_s is not None and not 0 < deadline_s < math.inf:
        raise error(errno.EINVAL, f"deadline_s must be positive and finite, not {deadline_s}")


def check_tokens(which: str, span: Span, vocab: int) -> None:
    """EINVAL for tokens that the model does not know."""
    least, greatest = span
    if least < 0 or greatest >= vocab:
        raise error(errno.EINVAL, f"{which} is outside the vocabulary 0..{vocab - 1}")


def check_fits(kernel: Lifecycle, prompt: int, max_tokens: int, tenant: str) -> None:
    """E2BIG for what the device can never hold beside the named segments, EDQUOT for what is more
    than its tenant may have."""
    info = kernel.info
    reserved = kernel.segments.count_pages()
    why = can_never_fit(
        prompt, max_tokens, info.page_tokens, info.frames - reserved, info.max_context_tokens
    )
    if why is not None:
        raise error(errno.E2BIG, why)
    pages = -(-(prompt + max_tokens) // info.page_tokens)
    ceiling = kernel.memory.frame_ceilings().get(tenant)
    if ceiling is not None and pages > ceiling:
        raise error(
            errno.EDQUOT,
            f"{prompt} + {max_tokens} tokens are {pages} pages, tenant {tenant!r} may have "
            f"{ceiling} beside its named segments; ask for less, or have its quota raised",
        )


def check_sampling(params: SamplingParams, vocab: int) -> None:
    """EINVAL for values that make no sense, naming the field and its range."""
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("temperature", params.temperature, 0.0, 100.0),
        ("top_p", params.top_p, 1e-9, 1.0),
        ("min_p", params.min_p, 0.0, 1.0),
        ("repetition_penalty", params.repetition_penalty, 1e-3, 1e3),
        ("presence_penalty", params.presence_penalty, -100.0, 100.0),
        ("frequency_penalty", params.frequency_penalty, -100.0, 100.0),
        ("top_k", params.top_k, 0, MOST),
        ("logprobs", params.logprobs, -1, 64),
    )
    for name, value, low, high in ranges:
        if not low <= value <= high:
            raise error(errno.EINVAL, f"{name} must be between {low:g} and {high:g}, not {value}")
    for token, bias in params.logit_bias:
        if not 0 <= token < vocab or not math.isfinite(bias):
            raise error(errno.EINVAL, f"logit_bias of token {token} is out of range")


def fork(kernel: Lifecycle, who: Principal, request: Fork) -> tuple[Pid, ...]:
    """Branch a generation. Children have the parent's tokens (`afresh`: its prompt) and limits, and
    an empty pipe."""
    parent = kernel.find_living(who, request.pid)
    if not 1 <= request.n <= kernel.params.max_forks:
        raise error(errno.EINVAL, f"n must be between 1 and {kernel.params.max_forks}")
    if request.seeds and len(request.seeds) != request.n:
        raise error(errno.EINVAL, f"{request.n} children need {request.n} seeds, or none")
    if len(kernel.processes) + len(kernel.zombies) + request.n > kernel.params.max_processes:
        raise error(errno.EAGAIN, "too many processes; wait for some", 1.0)
    if request.afresh:  # what it may write now may have been changed since its turn was over
        later = len(parent.stdin) + parent.max_tokens if parent.stdin else 0
        check_fits(kernel, parent.prompt_tokens + later, parent.max_tokens, parent.tenant)
    return tuple(_fork_one(kernel, parent, i, request) for i in range(request.n))


def _fork_one(kernel: Lifecycle, parent: Process, number: int, request: Fork) -> Pid:
    seed = parent.sampling.seed
    seed = request.seeds[number] if request.seeds else seed * 1_000_003 + number + 1
    child = _twin(kernel, parent, seed)
    if request.afresh:
        _rewind(kernel, parent, child)
        kernel.memory.fork(parent, child, parent.prompt_tokens - 1)
        child.usage.cached_tokens = child.space.computed
    else:
        kernel.scheduler.inherit(parent.entity, child.entity)
        kernel.memory.fork(parent, child, parent.length)
    kernel.counters.spawned += 1
    kernel.add(child)
    if child.space.mapped:
        kernel.move(child, State.SWAPPED)
    kernel.trace.add(kernel.now_s, child.pid, "fork", parent=parent.pid, shared=child.space.mapped)
    return child.pid


def _rewind(kernel: Lifecycle, parent: Process, child: Process) -> None:
    """The child has not drawn anything yet; it begins to wait for its first token now."""
    del child.tokens[child.prompt_tokens :]
    child.entity = SchedEntity(
        pid=child.pid, qos=parent.entity.qos, nice=parent.entity.nice, tenant=child.tenant,
        arrival_s=kernel.now_s, prompt_tokens=child.prompt_tokens, max_tokens=child.max_tokens,
        reader=parent.entity.reader, deadline_s=parent.entity.deadline_s,
        waiting_since_s=kernel.now_s,
    )  # fmt: skip
    child.inherited_tokens = 0
    child.text = None if child.fresh_text is None else child.fresh_text.copy()
    child.in_turn, child.last_turn = True, None
    child.hold &= ~Hold.INPUT


def _twin(kernel: Lifecycle, parent: Process, seed: int) -> Process:
    """A process that stands where its parent does, without pages and in no table yet."""
    pid = kernel.new_pid()
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
        grammar=None if parent.grammar is None else parent.grammar.copy(),
        hold=parent.hold & (Hold.SIGNAL | Hold.INPUT), held_since_s=kernel.now_s,
        inherited_tokens=parent.entity.delivered_tokens,
    )  # fmt: skip
    child.usage.prompt_tokens = parent.usage.prompt_tokens
    return child


def check_nice(who: Principal, value: int) -> None:
    """EINVAL, and EPERM for tenants below 0."""
    if not -20 <= value <= 19:
        raise error(errno.EINVAL, f"nice must be between -20 and 19, not {value}")
    if value < 0 and not who.root:
        raise error(errno.EPERM, f"nice {value}: only root may go below 0")
