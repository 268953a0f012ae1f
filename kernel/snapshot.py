"""Snapshots for people and programs: what `stat`, `ps`, `vmstat` show. Changes nothing but usage,
which is brought up to date."""

import errno
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from tokenix.kernel.answers import Listing, ProcessStat
from tokenix.kernel.calls import Principal, Ps, error
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.process import Process
from tokenix.kernel.state import Hold, State
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Task
from tokenix.sched.queues import Queue
from tokenix.sched.reader import before_first_token, tier_of
from tokenix.swap.spare import Spare
from tokenix.swap.tier import PlaceState
from tokenix.swap.transfers import Lane

LEAD_SAMPLE: Final = 256
"""Streams whose lead is looked at, about; a gauge needs no more."""

LOOKED_AT: Final = 4096
"""Pids that one `ps` goes through at most."""

_STATE = attrgetter("state")

_HELD: Final = tuple(
    tuple(hold.name.lower() for hold in Hold if hold.value & bits and hold.name)
    for bits in range(2 * max(hold.value for hold in Hold))
)
"""Names of what holds a process, by `Hold.value`."""


def ps(kernel: Lifecycle, who: Principal, request: Ps) -> Listing:
    """The next processes behind `request.after`."""
    most = kernel.params.listed_processes
    if len(request.pids) > LOOKED_AT:
        raise error(errno.E2BIG, f"ps takes {LOOKED_AT} pids at most, not {len(request.pids)}")
    if request.limit is not None and request.limit < 1:
        raise error(errno.EINVAL, f"limit must be at least 1, not {request.limit}")
    pids = sorted(dict.fromkeys(request.pids)) if request.pids else kernel.pids
    first = bisect_right(pids, request.after)
    left = min(most, request.limit or most)
    found, last = [], request.after
    for pid in islice(pids, first, first + LOOKED_AT):
        last = pid
        process = kernel.processes.get(pid) or kernel.zombies.get(pid)
        if process is None or not process.visible_to(who):
            continue
        found.append(process_stat(kernel, process))
        left -= 1
        if not left:
            break
    more = first < len(pids) and last != pids[-1]
    return Listing(tuple(found), last if more else None)


def process_stat(kernel: Lifecycle, process: Process) -> ProcessStat:
    kernel.charge(process)
    entity, space = process.entity, process.space
    placement = kernel.scheduler.place(process, kernel.now_s)
    lead_s = kernel.scheduler.lead_s(process, kernel.now_s)
    ended = process.state is State.ZOMBIE
    age_s = process.usage.total_s if ended else kernel.now_s - process.spawned_s
    return ProcessStat(
        pid=process.pid,
        parent=process.parent,
        tenant=process.tenant,
        name=process.name,
        state=process.state.value,
        held=_HELD[process.hold.value],
        qos=entity.qos.name.lower(),
        nice=entity.nice,
        level=placement.level,
        level_reason=placement.reason,
        quantum_left_tokens=placement.quantum_left_tokens,
        lead_s=lead_s if math.isfinite(lead_s) else None,
        prompt_tokens=process.usage.prompt_tokens,
        output_tokens=process.usage.output_tokens,
        unread_tokens=process.unread,
        computed_tokens=space.computed,
        pages=space.mapped,
        resident_pages=space.mapped - space.missing,
        clean_pages=space.clean,
        file_pages=space.deep,
        age_s=age_s,
        rusage=replace(process.usage, total_s=age_s),
        queue_position=kernel.scheduler.queue_position(process),
    )


def tail(kernel: Lifecycle, process: Process, limit: int) -> tuple[int, ...]:
    """The last tokens of its output in this turn, whoever has read them."""
    if limit < 1:
        raise error(errno.EINVAL, f"limit must be at least 1, not {limit}")
    most = min(limit, kernel.params.listed_pages, process.output_tokens)
    return tuple(process.tokens[process.length - most :])


def vmstat(kernel: Lifecycle) -> dict[str, float]:
    """Gauges and counters of the whole kernel, flat, by dotted name. It looks at those who have
    seats and at a sample of the paused, and at nobody else, however many there are."""
    memory, counters = kernel.memory, kernel.counters
    stats: dict[str, float] = {"time_s": kernel.now_s}
    for state in State:
        stats[f"processes.{state.value}"] = kernel.census[state]
    running = Counter(map(_STATE, kernel.scheduler.ready.values()))[State.RUNNING]
    stats[f"processes.{State.RUNNING.value}"] = running
    stats[f"processes.{State.READY.value}"] -= running
    stats[f"processes.{State.ZOMBIE.value}"] = len(kernel.zombies)
    for frame_state in FrameState:
        stats[f"frames.{frame_state.name.lower()}"] = memory.frames.count(frame_state)
    stats["frames.total"] = memory.frames.total
    stats["frames.page_bytes"] = kernel.info.frame_bytes
    copies = memory.copies
    for name, tier in (("host", copies.host), ("disk", copies.disk)):
        for place_state in PlaceState:
            stats[f"{name}.{place_state.name.lower()}"] = tier.count(place_state)
        stats[f"{name}.total"] = tier.total
        books = tier.statistics()
        stats[f"{name}.written"] = books.written
        stats[f"{name}.returned"] = books.returned
        stats[f"{name}.dropped"] = books.dropped
    stats["host.spare"] = len(memory.spare)
    _note_daemons(kernel, stats)
    stats["prefix.pages"] = memory.index.count()
    stats["prefix.idle"] = memory.index.count_idle()
    for lane in Lane:
        stats[f"swap.pages_{lane.value}"] = copies.stats.pages[lane]
        stats[f"swap.{lane.value}_s_per_page"] = copies.link.s_per_page(lane)
    stats["trace.last"] = kernel.trace.last
    stats["swap.pages_lost"] = memory.pages_lost
    stats["swap.bytes"] = sum(copies.stats.pages.values()) * kernel.info.frame_bytes
    for name in (
        "calls", "spawned", "refused", "steps", "computed_tokens", "recomputed_tokens",
        "output_tokens", "preemptions", "plan_misses", "copies_failed", "device_faults",
    ):  # fmt: skip
        stats[name] = getattr(counters, name)
    images = kernel.images
    stats["images.count"], stats["images.bytes"] = len(images.files), images.used_bytes()
    for name in ("saved", "resumed", "failed", "refused", "pages_lost"):
        stats[f"images.{name}"] = getattr(images.stats, name)
    for reason, count in sorted(counters.exits.items()):
        stats[f"exits.{reason}"] = count
    _note_scheduler(kernel, stats)
    return stats


def _note_daemons(kernel: Lifecycle, stats: dict[str, float]) -> None:
    """What works on its own: reclaim frees frames between two marks, write-behind cleans full
    pages, the sink empties host slots between two marks. Marks and amounts are pages."""
    memory, params = kernel.memory, kernel.params
    host, transfers = memory.copies.host, memory.copies.transfers
    stats["reclaim.low"], stats["reclaim.high"] = memory.watermarks.low, memory.watermarks.high
    stats["reclaim.pages"] = memory.frames.reclaimed
    stats["writebehind.queue"] = len(memory.dirty)
    stats["writebehind.stranded"] = len(memory.frames.stranded)
    stats["sink.low"] = params.sink_low_share * host.total
    stats["sink.high"] = params.sink_high_share * host.total
    stats["sink.free"] = host.free_places + memory.spare.count(Spare.DOUBLE)
    stats["sink.pages"] = kernel.swapfile.sunk_pages
    for lane in Lane:
        stats[f"swap.flight_{lane.value}"] = transfers.count_pages(lane)


def _note_scheduler(kernel: Lifecycle, stats: dict[str, float]) -> None:
    """Its queues, the readers' leads, the controllers."""
    scheduler, now_s = kernel.scheduler, kernel.now_s
    for queue in Queue:
        stats[f"queues.{queue.value}"] = len(scheduler.queues.of(queue))
    eldest = scheduler.queues.eldest
    for qos in Qos:
        since_s = eldest.since_s(qos)
        stats[f"waiting.{qos.name.lower()}"] = eldest.count(qos)
        stats[f"waiting.{qos.name.lower()}_oldest_s"] = 0.0 if since_s is None else now_s - since_s
    for name, tasks in (("running", scheduler.ready), ("paused", scheduler.paused)):
        for which, lead_s in _leads(kernel, tasks).items():
            stats[f"lead.{name}_{which}_s"] = lead_s
    controllers = scheduler.controllers
    stats["controller.eta"] = controllers.eta
    stats["controller.new_token_ratio"] = controllers.ratio(scheduler.tunables)
    stats["controller.pressure"] = float(controllers.pressure)
    stats["controller.working_set_pages"] = controllers.working_set_pages


def _leads(kernel: Lifecycle, tasks: Mapping[Pid, Task]) -> dict[str, float]:
    """Of streams that somebody reads and has begun to; empty if there are none. Of a crowd only
    every n-th is looked at, so that whoever looks holds nobody up."""
    stride = 1 + len(tasks) // LEAD_SAMPLE
    leads = sorted(
        kernel.scheduler.lead_s(task, kernel.now_s)
        for task in islice(tasks.values(), 0, None, stride)
        if tier_of(task.entity) == 0 and not before_first_token(task.entity)
    )
    if not leads:
        return {}
    quantiles = {f"p{part}": leads[len(leads) * part // 100] for part in (10, 50, 90)}
    return {"min": leads[0], "mean": sum(leads) / len(leads), **quantiles}
