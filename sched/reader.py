"""The reader of a process: when it needs the next token, and how far ahead of it the process is.

    PACED       reads at a given rate from the first token on; a late token shifts the later ones.
                What its client leaves in the pipe tells the true rate, within bounds
    MEASURED    the same from its own reads: what it took is being read, the rest is unread
    BATCH       needs nothing before the end; to make progress at all it is owed one token per
                target of its class (the minimum trickle), or what its deadline demands
    HIDDEN      nobody sees these tokens: as before the first token

`lead_s` is what a pause may use up unnoticed; `owed_s` orders those that want to come back.
Changes entities; everything here is called by scheduler.py only.
"""

import math
from collections.abc import Iterable

from tokenix.sched.entity import Qos, ReaderKind, SchedEntity, Task
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables

TIERS = 3
"""Read, batch, idle."""

# Looked up often, and an enum's names are slow.
_PACED, _MEASURED, _BATCH_READER, _HIDDEN = ReaderKind
_BATCH, _IDLE = Qos.BATCH, Qos.IDLE


def kind_of(entity: SchedEntity) -> ReaderKind:
    """The reader that counts: batch and idle classes are never read while they run."""
    return _BATCH_READER if entity.qos >= _BATCH else entity.reader.kind


def tier_of(entity: SchedEntity) -> int:
    """0: someone reads it; 1: batch; 2: idle. Higher tiers are paused first."""
    if entity.qos >= _BATCH:
        return 2 if entity.qos is _IDLE else 1
    return 1 if entity.reader.kind is _BATCH_READER else 0


def rank_of(entity: SchedEntity) -> tuple[int, int, int]:
    """Order of classes and tenants; smaller is served first. A class that is behind its
    guaranteed share comes before all."""
    return (0, -1, entity.lag) if entity.behind else (tier_of(entity), entity.qos, entity.lag)


def rate_of(entity: SchedEntity) -> float:
    """Tokens per second its reader takes; 0 for batch."""
    kind = kind_of(entity)
    if kind is _BATCH_READER:
        return 0.0
    if entity.read_rate > 0:
        return entity.read_rate
    return max(entity.reader.tokens_per_s, 1e-6)


def pace_of(rate: float) -> float:
    """A `rate_of` to a tenth of a token per second, so that readers can be summed up by it."""
    return max(0.1, round(rate, 1)) if rate else 0.0


def before_first_token(entity: SchedEntity) -> bool:
    """Whether nobody has seen anything of this turn yet."""
    return entity.first_token_s is None or kind_of(entity) is _HIDDEN


def lead_s(entity: SchedEntity, now_s: float, tunables: Tunables, rates: Rates) -> float:
    """Seconds until the reader notices that no token comes; negative: it already does.

    Before the first token: what is left of the target. Batch: inf, or the slack of its deadline.
    """
    if kind_of(entity) is _BATCH_READER:
        rest_s = (entity.max_tokens - entity.delivered_tokens) / rates.steps_per_s
        return entity.deadline_s - now_s - max(0.0, rest_s)
    if before_first_token(entity):
        return entity.waiting_since_s + tunables.target_s(entity.qos) - now_s
    lead = entity.due_s - now_s
    if kind_of(entity) is _MEASURED:
        unread = entity.delivered_tokens - entity.read_tokens
        lead = max(lead, unread / rate_of(entity)) if unread > 0 else lead
    return lead


def owed_s(entity: SchedEntity, now_s: float, tunables: Tunables, rates: Rates) -> float:
    """Seconds until it must make progress: the lead, for batch at most its trickle."""
    lead = lead_s(entity, now_s, tunables, rates)
    if kind_of(entity) is _BATCH_READER:
        return min(lead, entity.due_s - now_s)
    return lead


def owed_at_s(entity: SchedEntity, now_s: float, tunables: Tunables) -> float | None:
    """A time before which it is owed nothing, for as long as nothing happens to it (`owed_s` falls
    by at most a second per second). None: that depends on the measured rates as well."""
    if kind_of(entity) is _BATCH_READER:
        return entity.due_s if entity.deadline_s == math.inf else None
    if before_first_token(entity):
        return entity.waiting_since_s + tunables.target_s(entity.qos)
    if kind_of(entity) is _MEASURED:
        unread = entity.delivered_tokens - entity.read_tokens
        if unread > 0:
            return max(entity.due_s, now_s + unread / rate_of(entity))
    return entity.due_s


def patience_s(entity: SchedEntity, alone_s: float, tunables: Tunables) -> float:
    """How long a newcomer may take to its first token; `alone_s`: what it takes alone.

    nice -20 doubles it, nice 19 nearly halves it. Batch and idle wait without end.
    """
    if tier_of(entity) > 0:
        return math.inf
    patience = max(tunables.target_s(entity.qos), tunables.patience_factor * alone_s)
    return patience * weight_of(entity)


def weight_of(entity: SchedEntity) -> float:
    """Favour by nice: 2.0 at -20, 1.0 at 0, about 0.5 at 19."""
    return float(2.0 ** (-entity.nice / 20.0))


def note_delivered(entity: SchedEntity, now_s: float, tokens: int, tunables: Tunables) -> None:
    """`tokens` reached the pipe: move the deadline, count a stall, end a spell without progress."""
    kind = _BATCH_READER if entity.qos >= _BATCH else entity.reader.kind
    entity.delivered_tokens += tokens
    if entity.pauses_without_progress:
        entity.pauses_without_progress = 0
        entity.leader = False
    if kind is _PACED and now_s <= entity.due_s < math.inf:
        entity.period_s = 1.0 / rate_of(entity)
        entity.due_s += tokens * entity.period_s
        return
    if kind is _HIDDEN:
        return
    first = entity.first_token_s is None
    if first:
        entity.first_token_s = now_s
    if kind is _BATCH_READER:
        entity.due_s = now_s + tunables.target_s(entity.qos)
        return
    if (
        not first
        and now_s - entity.due_s > tunables.stall_tolerance_s
        and not _unread(entity, tokens)
    ):
        entity.stalls += 1
    start = now_s if first else max(entity.due_s, now_s)
    if first and kind is _MEASURED:
        entity.last_read_s = now_s
    entity.due_s = start + tokens / rate_of(entity)


def note_decoded(tasks: Iterable[Task], now_s: float, tunables: Tunables) -> None:
    """One token more for each; quick for paced readers in time, which is nearly all."""
    for task in tasks:
        entity = task.entity
        if entity.period_s and now_s <= entity.due_s:
            entity.delivered_tokens += 1
            entity.due_s += entity.period_s
        else:
            note_delivered(entity, now_s, 1, tunables)


def _unread(entity: SchedEntity, new_tokens: int) -> bool:
    """Whether a measured reader still had something to take before the `new_tokens` came."""
    return (
        kind_of(entity) is _MEASURED and entity.delivered_tokens - new_tokens > entity.read_tokens
    )


def note_read(entity: SchedEntity, now_s: float, tokens: int, tunables: Tunables) -> None:
    """The client took `tokens`. Its rate is learnt only while the pipe held more than it took,
    else it would be our own rate, and every stall would teach that the reader is slow."""
    taken = min(tokens, entity.delivered_tokens - entity.read_tokens)
    if taken <= 0:
        return
    entity.read_tokens += taken
    unread = entity.delivered_tokens - entity.read_tokens
    kind = kind_of(entity)
    if kind is _PACED and unread > 0 and entity.first_token_s is not None:
        _correct_pace(entity, now_s, taken, unread, tunables)
    if kind is _MEASURED:
        passed_s = now_s - entity.last_read_s
        sample = taken / passed_s if passed_s > 0 else math.inf
        old = rate_of(entity)
        if math.isfinite(sample) and (unread > 0 or sample > old):
            entity.read_rate = old + (sample - old) * min(1.0, passed_s / tunables.read_window_s)
        if entity.first_token_s is not None:
            entity.due_s = now_s + (unread + taken) / rate_of(entity)
    entity.last_read_s = now_s


def note_followed(taken: Iterable[tuple[Task, int]], now_s: float) -> list[tuple[Task, int]]:
    """`note_read` of each where nothing follows from that: of paced readers in time, not paused,
    that have taken all there was. Returns the others."""
    others = []
    for task, tokens in taken:
        entity = task.entity
        if entity.period_s and entity.delivered_tokens - entity.read_tokens == tokens:
            entity.read_tokens += tokens
            entity.last_read_s = now_s
        else:
            others.append((task, tokens))
    return others


def _correct_pace(
    entity: SchedEntity, now_s: float, taken: int, unread: int, tunables: Tunables
) -> None:
    """A declared rate against what the client does. A client that takes whatever there is says
    nothing (it may be a proxy); one that leaves tokens in the pipe reads at its own pace."""
    declared = max(entity.reader.tokens_per_s, 1e-6)
    passed_s = now_s - max(entity.last_read_s, entity.first_token_s or 0.0)
    if passed_s > 0:
        old, sample = rate_of(entity), taken / passed_s
        rate = old + (sample - old) * min(1.0, passed_s / tunables.read_window_s)
        most = tunables.read_correction
        entity.read_rate = min(max(rate, declared / most), declared * most)
        entity.period_s = 0.0
    entity.due_s = now_s + (unread + taken) / rate_of(entity)


def note_paused(entity: SchedEntity, now_s: float, tunables: Tunables) -> None:
    """Count a pause without progress; a batch process is owed its next token from now on."""
    entity.paused_since_s = now_s
    entity.period_s = 0.0
    entity.pauses_without_progress += 1
    entity.leader = entity.pauses_without_progress >= tunables.leader_pauses
    if kind_of(entity) is _BATCH_READER:
        entity.due_s = now_s + tunables.target_s(entity.qos)


def note_resumed(entity: SchedEntity, computed: int, now_s: float, tunables: Tunables) -> None:
    """It has frames, `computed` tokens of it exist; who starved for them starts at the top."""
    since_s = min(entity.paused_since_s, now_s)
    if entity.paused_since_s == math.inf and not computed:
        since_s = entity.waiting_since_s
    if now_s - since_s > tunables.mlfq_starve_s:
        entity.boost_tokens = computed
    entity.paused_since_s = math.inf
    entity.resident_since_s = now_s


def restart_turn(entity: SchedEntity, now_s: float) -> None:
    """New input after a finished turn: again before the first token, with a fresh target."""
    entity.due_s = math.inf
    entity.period_s = 0.0
    entity.first_token_s = None
    entity.waiting_since_s = now_s
    entity.pauses_without_progress = 0
    entity.leader = False


def inherit(parent: SchedEntity, child: SchedEntity) -> None:
    """A fork continues where its parent stands, so that forking gains no priority."""
    child.due_s = parent.due_s
    child.period_s = 0.0
    child.first_token_s = parent.first_token_s
    child.delivered_tokens = parent.delivered_tokens
    child.read_tokens = parent.delivered_tokens  # its own pipe is empty
    child.read_rate = parent.read_rate
    child.last_read_s = parent.last_read_s
    child.waiting_since_s = parent.waiting_since_s
    child.stalls = 0
    child.pauses_without_progress = 0
    child.leader = False
    child.resident_since_s = 0.0
    child.paused_since_s = math.inf
    child.charged_tokens = child.delivered_tokens


def revive(entity: SchedEntity, delivered: int, read: int, read_rate: float, now_s: float) -> None:
    """It comes out of an image. Nobody knows what its reader has been shown in the meantime, so it
    counts as before the first token, as a newcomer does."""
    entity.delivered_tokens = entity.charged_tokens = delivered
    entity.read_tokens = read
    entity.read_rate = read_rate
    entity.waiting_since_s = entity.last_read_s = now_s
