"""The rare branches of the kernel, each of which some world must have reached."""

from tokenix.kernel.state import State
from tokenix.swap.transfers import Lane
from tokenix.tests.sim.marks import Mark

SCHEDULING = (
    Mark("last resort", "sched.room.last_resort", 'draft.do_pause(victim, f"last resort'),
    Mark("pause of oneself", "sched.room.last_resort", "if victim is me: / return Room.NO"),
    Mark(
        "frames on their way suffice",
        "sched.room.make_room",
        "if short <= ledger.outgoing: / return",
    ),
    Mark("no victims suffice", "sched.room.make_room", "if not victims: / return Room.NO"),
    Mark("superfluous victim", "sched.room._prune", "kept.remove(victim)"),
    Mark(
        "host full, too little lead", "sched.room.choose_victims", "if victim.bar.lead_s - again_s"
    ),
    Mark(
        "leader protected from displacement",
        "sched.room.may_pause",
        "return False",
        lambda v: bool(v["entity"].leader),
    ),
    Mark(
        "leader protected in the last resort",
        "sched.room._last_candidates",
        "return humble or pool",
        lambda v: 0 < len(v["humble"]) < len(v["pool"]),
    ),
    Mark(
        "all are leaders",
        "sched.room._last_candidates",
        "return humble or pool",
        lambda v: bool(v["pool"]) and not v["humble"],
    ),
    Mark("all are blocked", "sched.planner.unblock", 'draft.do_pause(victim, "all are blocked")'),
    Mark("an idle device resumes", "sched.planner.never_idle", "resume.resume_first(draft)"),
    Mark("refused in the queue", "sched.admission.refuse_late", "draft.refuse[task.entity.pid]"),
    Mark(
        "trickle",
        "sched.world.find_trickle",
        "return pid if now_s",
        lambda v: v["now_s"] - v["since_s"] > v["limit_s"],
    ),
    Mark("resume ahead of time", "sched.resume.resume_early", "draft.do_resume(task)"),
)

MEMORY = (
    Mark(
        "recompute fallback",
        "kernel.memory.Memory._choose_restore",
        "if way.cut is not None: / self.",
    ),
    Mark(
        "no host slot for a pause",
        "kernel.memory.Memory.pause",
        "self.truncate(process, dirty[room][0])",
    ),
    Mark(
        "pause joins a copy",
        "kernel.memory.Memory.pause",
        "self.copies.wait_for(process.pid, page.leaving)",
    ),
    Mark(
        "resume waits for a writer",
        "kernel.memory.Memory.bring_in",
        "if page.leaving is not None and vpn / self.",
    ),
    Mark("bring in fails", "kernel.memory.Memory.bring_in", "space.pause()"),
    Mark(
        "fork without a frame",
        "kernel.memory.Memory.fork",
        "self.frames.unpin(source.pfn)",
        lambda v: len(v["child"].space.pages) == v["full"],
    ),
    Mark(
        "donors taken",
        "kernel.tiers.Tiers.make_slots",
        "if page.slot is not None and spare_kind / self.copies.free_slot(page)",
    ),
    Mark("cached page leaves the host", "kernel.tiers.Tiers.make_slots", "self.forget_idle(page)"),
    Mark("stranded drop", "kernel.memory.Memory.drop_stranded", "return bool(pages)"),
    Mark("abandoned copy out", "kernel.landing.Landing._abandon_out", "item.page.leaving = None"),
    Mark(
        "abandoned copy in",
        "kernel.landing.Landing.expire",
        "events += self.lose(item.page)",
        lambda v: v["transfer"].lane is Lane.IN,
    ),
    Mark(
        "abandoned under a tail",
        "kernel.landing.Landing._abandon_out",
        "self.truncate(process, vpn)",
    ),
    Mark(
        "lost while loading",
        "kernel.landing.Landing.lose",
        "events.append(Lost(process.pid))",
        lambda v: v["process"].state is State.SWAPPING_IN,
    ),
    Mark(
        "uncopied page dropped",
        "kernel.landing.Landing._drop_uncopied",
        "self.truncate(process, vpn)",
    ),
    Mark("late copy lands", "kernel.copies.Copies._land_out", "self.host.free(item.slot)"),
    Mark(
        "nobody maps what was loaded",
        "kernel.copies.Copies._land_in",
        "if page.loading == ticket:",
        lambda v: v["page"].mapped == 0,
    ),
    Mark(
        "slot under a copy is freed",
        "swap.tier.Tier.free",
        "self._move(place, state",
        lambda v: v["self"]._pins[v["place"]] > 0,
    ),
    Mark(
        "clean page of the paused reclaimed",
        "mm.reclaim._reclaim_from",
        "frames.release(page)",
    ),
    Mark(
        "equal content twice",
        "mm.prefix.PrefixIndex.insert",
        "if self._enabled",
        lambda v: v["key"] in v["self"]._pages,
    ),
    Mark("dirty queue swept", "swap.writeback.DirtyQueue.push", "known ="),
)

KERNEL = (
    Mark(
        "plan miss of a newcomer", "kernel.core.Kernel._bring_in", "self.counters.plan_misses += 1"
    ),
    Mark("plan miss of a decode", "kernel.launch.Launch._map", "self.counters.plan_misses += 1"),
    Mark("suspect alone", "kernel.launch.Launch._find_suspect", "return run"),
    Mark("poison held back", "kernel.launch.Launch._poison", "frames.hold_back(still)"),
    Mark("device fault ends a process", "kernel.core.Kernel._device_fault", "self.exit("),
    Mark("starved by lost frames", "kernel.core.Kernel._end_starved", "self.exit("),
    Mark("oldest zombie reaped", "kernel.lifecycle.Lifecycle.exit", "self.reap("),
    Mark(
        "wait that nobody is left for",
        "kernel.lifecycle.Lifecycle._release_waiters",
        "del self.waiters[call_id]",
    ),
    Mark(
        "token for one who has gone", "kernel.core.Kernel._commit", "if process.state is / return"
    ),
)

SPLIT = (
    Mark("gap opened", "kernel.memory.Memory.bring_in", "for page in space.open_gap"),
    Mark("gap closed, tail there", "mm.space.AddressSpace.advance", "self.gap, self.computed = 0"),
    Mark("gap closed, tail loading", "kernel.core.Kernel._commit", "self.move(process, State.SWAP"),
    Mark(
        "paused in a gap",
        "kernel.memory.Memory.pause",
        "keep = keep and",
        lambda v: bool(v["space"].gap),
    ),
    Mark(
        "forked in a gap",
        "kernel.memory.Memory.fork",
        "full = computed //",
        lambda v: bool(v["parent"].space.gap),
    ),
    Mark(
        "tail lost behind a gap",
        "kernel.landing.Landing.lose",
        "self.truncate(process, process.space.pages.index(page))",
        lambda v: bool(v["process"].space.gap),
    ),
)

SWAP_FILE = (
    Mark("page sinks", "kernel.swapfile.SwapFile._sink", "copies.store(pages, now_s)"),
    Mark(
        "slot of a sunk page is taken",
        "kernel.tiers.Tiers.make_slots",
        "else: / self.copies.free_slot(page)",
        lambda v: v["page"].block is not None,
    ),
    Mark("fetch asked for by a plan", "kernel.core.Kernel._fetch", "pages = process.space.deep"),
    Mark("resume finds pages sunk", "kernel.core.Kernel._bring_in", "self.move(process, State.FET"),
    Mark(
        "no slot for a fetch",
        "kernel.memory.Memory._raise",
        "self.truncate(process, space.pages.index",
    ),
    Mark("fetch joins a fetch", "kernel.memory.Memory._raise", "assert page.rising is not None"),
    Mark(
        "abandoned fetch",
        "kernel.landing.Landing.expire",
        "events += self.lose(item.page)",
        lambda v: v["transfer"].lane is Lane.FETCH,
    ),
    Mark("abandoned store", "kernel.landing.Landing.expire", "item.page.storing = None"),
    Mark(
        "lost while fetching",
        "kernel.landing.Landing.lose",
        "events.append(Lost(process.pid))",
        lambda v: v["process"].state is State.FETCHING,
    ),
    Mark("store for nobody", "kernel.copies.Copies._land_store", "self.disk.free(item.block)"),
    Mark("cached page leaves the file", "kernel.swapfile.SwapFile._make_blocks", "memory.forget_"),
    Mark("drained page rises", "kernel.swapfile.SwapFile._raise", "copies.fetch(pages"),
    Mark("drained page is lost", "kernel.swapfile.SwapFile._raise", "return [event for page"),
    Mark("prompt found in the file", "kernel.memory.Memory.prefetch_prefix", "self.copies.fetch("),
)

RARE = (*SCHEDULING, *MEMORY, *SPLIT, *SWAP_FILE, *KERNEL)
