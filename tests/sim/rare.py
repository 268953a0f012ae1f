"""The rare branches of the kernel, each of which some world must have reached."""

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
        "if way is Restore.RECOMPUTE: / self.",
    ),
    Mark(
        "no host slot for a pause",
        "kernel.memory.Memory.pause",
        "self._truncate(process, dirty[room][0])",
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
    Mark("donors taken", "kernel.memory.Memory._take_donors", "self.copies.free_slot(page)"),
    Mark("stranded drop", "kernel.memory.Memory.drop_stranded", "self._lose(page)"),
    Mark("abandoned copy out", "kernel.memory.Memory._abandon_out", "item.page.leaving = None"),
    Mark("abandoned copy in", "kernel.memory.Memory.expire", "events += self._lose(item.page)"),
    Mark(
        "abandoned under a tail",
        "kernel.memory.Memory._abandon_out",
        "self._truncate(process, vpn)",
    ),
    Mark("lost while loading", "kernel.memory.Memory._lose", "events.append(Lost(process.pid))"),
    Mark(
        "uncopied page dropped",
        "kernel.memory.Memory._drop_uncopied",
        "self._truncate(process, vpn)",
    ),
    Mark("late copy lands", "kernel.copies.Copies._land_out", "self._slots.free(item.slot)"),
    Mark("nobody maps what was loaded", "kernel.copies.Copies.finish", "self.free_slot(item.page)"),
    Mark(
        "slot under a load is kept",
        "kernel.copies.Copies.free_slot",
        "slot: Slot | None",
        lambda v: v["page"].slot is not None and v["page"].loading is not None,
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
    Mark("plan miss of a decode", "kernel.core.Kernel._map", "self.counters.plan_misses += 1"),
    Mark("suspect alone", "kernel.core.Kernel._find_suspect", "return run"),
    Mark("poison held back", "kernel.core.Kernel._poison", "frames.hold_back(still)"),
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

RARE = (*SCHEDULING, *MEMORY, *KERNEL)
