"""The kernel: step(now, inbox) -> commands. It decides and never waits.

    calls, completions, timers  ->  plan  ->  memory  ->  commands
    \\__________ learn __________/   \\________ decide ________/

While a forward pass runs, calls and copies are handled, and the next plan is made when it has
retired; on a device that takes two at a time, the second is planned while the first runs. Time is
an argument, so a run is a function of its inputs.
"""

import heapq
import math
from collections.abc import Sequence

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import (
    CopyDone,
    CopyFailed,
    DeviceFault,
    ForwardDone,
    ImageDone,
    SwapChanged,
)
from tokenix.kernel import handlers, imaging
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import KernelError
from tokenix.kernel.commit import (
    Drawn,
    commit_decodes,
    commit_row,
    find_quiet_until,
    is_void,
    still_wanted,
)
from tokenix.kernel.event import Call, Command, Event
from tokenix.kernel.landing import Lost, MemoryEvent
from tokenix.kernel.launch import InFlight, Launch
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.state import Hold, State
from tokenix.mm.ids import Pid, Ticket
from tokenix.mm.space import AddressSpace
from tokenix.sched.plan import Pause, PauseMode, Plan, Refuse
from tokenix.sched.scheduler import Scheduler
from tokenix.swap.transfers import Lane


class Kernel(Launch):
    """The whole machine but its device and its clock. Not thread-safe: one caller."""

    def __init__(
        self,
        info: DeviceInfo,
        scheduler: Scheduler,
        params: Params | None = None,
        eos_tokens: Sequence[int] = (),
    ) -> None:
        super().__init__(info, scheduler, params, eos_tokens)
        self._plan_wake_s: float | None = None
        self._leaving: frozenset[Pid] = frozenset()
        """Who the present plan pauses."""
        self._copies_resume_s = 0.0
        self._free_s = 0.0
        """When the last pass that went well retired: the next one has the device since then."""

    # ---- the step ----

    def step(self, now_s: float, inbox: Sequence[Event]) -> list[Command]:
        """Handle what happened, decide what to do. Returns commands in the order to carry out."""
        return [*self.learn(now_s, inbox), *self.decide()]

    def learn(self, now_s: float, inbox: Sequence[Event]) -> list[Command]:
        """The first half of a step: handle what happened. `decide` follows, at the same moment;
        who gives out output need not wait for that."""
        assert now_s >= self.now_s, "time does not run backwards"
        self.now_s = self.memory.index.now_s = now_s
        for event in inbox:
            if isinstance(event, Call):
                self._call(event)
        for event in inbox:
            if not isinstance(event, Call):
                self._complete(event)
        self._run_timers()
        return self._take_commands()

    def decide(self) -> list[Command]:
        """The second half: decide what to do."""
        if not self.flights:
            self.short = False
            self._act()
        while self.ahead_due and not self.short and 0 < len(self.flights) < self.info.depth:
            self.ahead_due = False
            self._act()
        self._write_behind()
        imaging.work(self)
        if self.now_s >= self._copies_resume_s:
            self._memory_events(self.swapfile.work(self.now_s))
        self.memory.balance()
        return self._take_commands()

    def _take_commands(self) -> list[Command]:
        commands = self.commands[:]
        self.commands.clear()
        return commands

    def next_wake_s(self) -> float | None:
        """When `step` must be called again even if nothing happens; None if only events matter."""
        times = [self.deadlines[0][0]] if self.deadlines else []
        if not self.flights and self._plan_wake_s is not None:
            times.append(self._plan_wake_s)
        overdue = self.memory.copies.transfers.next_deadline_s()
        if overdue is not None:
            times.append(overdue)
        image_s = self.images.next_wake_s()
        if image_s is not None:
            times.append(image_s)
        if self.swapfile.next_look_s < math.inf:
            times.append(max(self.swapfile.next_look_s, self._copies_resume_s))
        idle = not (self.memory.frames.stranded or self.swapfile.busy)
        if self._copies_resume_s > self.now_s and not idle:
            times.append(self._copies_resume_s)
        return min(times, default=None)

    # ---- what happened ----

    def _call(self, call: Call) -> None:
        self.counters.calls += 1
        try:
            result = handlers.handle(self, call)
        except KernelError as problem:
            self.reply(call.call_id, problem)
            return
        if result is not handlers.BLOCKED:
            self.reply(call.call_id, result)

    def _complete(self, event: Event) -> None:
        match event:
            case ForwardDone():
                self._forward_done(event)
            case DeviceFault():
                self._device_fault(event)
            case ImageDone():
                imaging.done(self, event)
            case CopyDone() | CopyFailed():
                if isinstance(event, CopyFailed):
                    self.counters.copies_failed += 1
                    self._copies_resume_s = self.now_s + self.params.copy_retry_s
                    self.trace.add(self.now_s, None, "copy-failed", reason=event.reason)
                self._memory_events(self.memory.complete(event, self.now_s))
            case SwapChanged():
                self.swapfile.changed(event)
                self.trace.add(
                    self.now_s, None, "swap-file", blocks=event.blocks, reason=event.reason
                )

    def _memory_events(self, events: list[MemoryEvent]) -> None:
        for event in events:
            process = self.processes.get(event.pid)
            if process is None:
                continue
            if isinstance(event, Lost) or process.state in (State.SWAPPING_OUT, State.FETCHING):
                self.move(process, State.SWAPPED)
            elif process.state is State.SWAPPING_IN:
                self.memory.settle_in(process)
                self._arrive(process)

    def _arrive(self, process: Process) -> None:
        """Its frames and their content are in place."""
        self.end_pause(process, process.way)
        self.scheduler.note_resumed(process, self.now_s)
        self.move(process, State.STOPPED if process.hold else State.READY)

    def _forward_done(self, done: ForwardDone) -> None:
        flight = self._retire(done.ticket)
        counters, decodes = self.counters, len(flight.decodes)
        singles = sum(1 for _, tokens in flight.chunks if tokens == 1)
        counters.steps += 1
        counters.computed_tokens += decodes
        begun_s = max(flight.started_s, self._free_s)
        self._free_s = self.now_s
        self.scheduler.note_step(begun_s, self.now_s, flight.prefill_tokens, decodes + singles)
        for process, masses in zip(flight.processes(), done.masses, strict=False):
            if process.state is State.RUNNING:
                self.memory.index.note_mass(process.space.pages, masses)
        results, page_tokens = done.results, self.info.page_tokens
        quiet = commit_decodes(flight.decodes, results[:decodes], self.now_s, page_tokens)
        self._keep_running(quiet.streams)
        counters.output_tokens += len(quiet.streams)
        self.meters.note_decoded(quiet.streams, self.now_s)
        self.scheduler.note_decoded(quiet.streams, self.now_s)
        self.serve_readers(quiet.streams)
        for process, page in quiet.filled:
            self.memory.dirty.push(process.pid, page)
        for process, drawn in quiet.others:
            self._commit(flight, process, 1, drawn)
        for (process, tokens), drawn in zip(flight.chunks, results[decodes:], strict=True):
            counters.computed_tokens += tokens
            self._commit(flight, process, tokens, drawn)

    def _commit(self, flight: InFlight, process: Process, tokens: int, drawn: Drawn) -> None:
        """One row of the pass, with all that may follow from it."""
        if process.state is not State.RUNNING:
            return
        start = flight.starts[flight.places[process.pid]]
        if is_void(process, start) or self.memory.copies.beside(process.pid) is not None:
            self._land(process)
            return
        drawn = still_wanted(process, start + tokens, drawn)
        usage, context_tokens = process.usage, self.info.max_context_tokens
        process.faults = 0
        recomputed, gap = usage.recomputed_tokens, process.space.gap
        outcome = commit_row(process, tokens, drawn, self.now_s, context_tokens)
        if usage.recomputed_tokens != recomputed:
            self.counters.recomputed_tokens += usage.recomputed_tokens - recomputed
            self.meters.note_recomputed(process, usage.recomputed_tokens - recomputed)
        self._land(process)
        for page in outcome.filled:
            self.memory.dirty.push(process.pid, page)
        if gap and not process.space.gap and self.memory.await_tail(process):
            self.move(process, State.SWAPPING_IN)
            return
        if outcome.delivered:
            self._delivered(process)
        if outcome.ended is not None:
            self.end_turn(process, outcome.ended, outcome.error)
        elif process.in_turn and process.over_pages:
            self.end_turn(process, ExitReason.PAGES)
        elif outcome.delivered:
            pipe_tokens = self.params.pipe_tokens
            process.quiet_until = find_quiet_until(process, context_tokens, pipe_tokens)

    def _delivered(self, process: Process) -> None:
        self.counters.output_tokens += 1
        self.meters.note_token(process, self.now_s)
        if process.entity.first_token_s is None:
            self.charge(process)
        if process.usage.ttft_s is None:
            process.usage.ttft_s = self.now_s - process.entity.arrival_s
        self.scheduler.note_delivered(process, self.now_s, 1)
        self.serve_readers((process,))
        if process.unread >= self.params.pipe_tokens:
            self.set_hold(process, Hold.PIPE)

    def _device_fault(self, fault: DeviceFault) -> None:
        """Nothing of the pass may be used. Its rows are retried; who was in `max_faults` failed
        passes since its last good one runs alone, and ends if that fails too."""
        flight = self._retire(fault.ticket)
        self.counters.device_faults += 1
        self.trace.add(self.now_s, None, "device-fault", reason=fault.reason)
        members = list(flight.processes())
        for process, start in zip(members, flight.starts, strict=True):
            if process.state is not State.RUNNING:
                continue
            process.faults += not is_void(process, start)
            process.quiet_until = 0  # until a good pass
            process.table_known = 0
            self._land(process)
            if len(members) == 1 and process.faults > self.params.max_faults:
                self.exit(process, ExitReason.ERROR, f"the device failed: {fault.reason}")

    def _retire(self, ticket: Ticket) -> InFlight:
        assert self.flights and self.flights[0].ticket == ticket, "passes retire in order"
        self.memory.frames.lift_fence()
        self.ahead_due = True
        return self.flights.popleft()

    def _land(self, process: Process) -> None:
        """Its row has come back: it may be planned, and paused, unless the next pass has it too, or
        it still waits for a load that it ran beside."""
        if not self.flights or process.pid not in self.flights[0].places:
            self.move(process, State.STOPPED if process.hold else State.READY)
            if self.memory.await_load(process):
                self.move(process, State.SWAPPING_IN)

    def _keep_running(self, streams: list[Process]) -> None:
        """Of those that are ready again, whoever the next pass has."""
        places = self.flights[0].places if self.flights else ()
        for process in streams if places else ():
            if process.pid in places:
                process.state = State.RUNNING

    def _run_timers(self) -> None:
        while self.deadlines and self.deadlines[0][0] <= self.now_s:
            when, pid = heapq.heappop(self.deadlines)
            process = self.processes.get(pid)
            if process is not None and process.deadline_s == when:
                self.exit(process, ExitReason.DEADLINE)
        self._memory_events(self.memory.expire(self.now_s))
        imaging.look(self)

    # ---- what to do ----

    def _act(self) -> None:
        """Make a plan and carry it out."""
        for process in list(self.scheduler.held.values()):
            assert isinstance(process, Process)
            if process.hold & (Hold.SIGNAL | Hold.SUSPEND):
                self._pause(process, Pause(process.pid, PauseMode.SWAP, "stopped"))
        plan = self.scheduler.plan(self.memory.view(), self.now_s)
        ahead = self.look_ahead(plan)
        if ahead is None:
            return
        self._plan_wake_s = plan.wake_s
        for refuse in plan.refuse:
            self._refuse(self.processes[refuse.pid], refuse)
        self._leaving = frozenset(pause.pid for pause in plan.pause)
        for pause in plan.pause:
            self._pause(self.processes[pause.pid], pause)
        self._leaving = frozenset()
        arrived = [self._fetch(self.processes[pid]) for pid in plan.fetch]
        arrived += [self._bring_in(self.processes[pid]) for pid in (*plan.resume, *plan.admit)]
        self.launch(plan, ahead)
        if not self.flights:
            dropped, events = self.memory.drop_stranded()
            self._memory_events(events)
            if any(arrived) or dropped:  # what the plan did not reckon with
                self._plan_wake_s = self.now_s
            elif plan == Plan():
                self._end_starved()

    def _end_starved(self) -> None:
        """Nothing will ever happen by itself. If that is because copies that never ended keep
        their frames, who needs most is ended with that reason, so that the others go on."""
        transfers = self.memory.copies.transfers.peek_on(Lane.OUT, Lane.IN)
        queues = (self.scheduler.waiting, self.scheduler.ready, self.scheduler.paused)
        wanted = [task for queue in queues for task in queue.values()]
        hopeless = transfers and all(transfer.abandoned for transfer in transfers)
        if not wanted or not hopeless or self.memory.frames.stranded:
            return
        lost_s = max(transfer.deadline_s for transfer in transfers) + self.params.lost_copy_s
        if self.now_s >= lost_s:
            pid = max((task.length, task.entity.pid) for task in wanted)[1]
            frames = sum(len(transfer.items) for transfer in transfers)
            why = f"{frames} KV pages are lost to copies that never ended; restart the device"
            self.exit(self.processes[pid], ExitReason.ERROR, why)
        self._plan_wake_s = max(self.now_s, lost_s)

    def _refuse(self, process: Process, refuse: Refuse) -> None:
        self.counters.refused += 1
        self.meters.note_refused(process.tenant, process.entity.qos)
        wait = f"{refuse.retry_after_s:.1f}"
        self.exit(process, ExitReason.REFUSED, f"overloaded: {refuse.reason}; retry after {wait} s")

    def _pause(self, process: Process, pause: Pause) -> None:
        assert process.state in (State.READY, State.STOPPED), "only resident processes are paused"
        space, swaps = process.space, pause.mode is PauseMode.SWAP
        pages, computed = space.mapped, space.computed
        lead = self.peek_lead(process)
        dirty = self.memory.pause(process, swaps, self._donors, self.now_s)
        process.usage.preemptions += 1
        self.counters.preemptions += 1
        self.meters.note_paused(process)
        self.scheduler.note_paused(process, self.now_s)
        kept = space.mapped
        self.trace.add(
            self.now_s, process.pid, "pause", reason=pause.reason,
            mode=(PauseMode.SWAP if kept else PauseMode.RECOMPUTE).value,
            tier="host" if kept else "none", pages=pages, kept=kept, dirty=dirty,
            clean=kept - dirty, tokens=process.length, computed=computed, **lead,
        )  # fmt: skip
        waits = self.memory.awaits(process.pid)
        self.move(process, State.SWAPPING_OUT if waits else State.SWAPPED)

    def _donors(self) -> list[AddressSpace]:
        """Running spaces, the one whose reader is closest behind first; not those that the present
        plan pauses too: it counts on their pages being clean."""
        ready = [task for pid, task in self.scheduler.ready.items() if pid not in self._leaving]
        ready.sort(key=lambda task: (self.scheduler.lead_s(task, self.now_s), task.entity.pid))
        return [self.processes[task.entity.pid].space for task in ready]

    def _bring_in(self, process: Process) -> bool:
        """Frames for a process without any. Returns whether there is something new to plan: it is
        ready at once, or needs other pages than it seemed to."""
        state = process.state
        assert state in (State.NEW, State.SWAPPED), "only processes without frames are brought in"
        rate, deep = self.scheduler.rates.prefill_tokens_per_s, process.space.deep
        most_tokens = self.scheduler.tunables.step_tokens
        if not self.memory.bring_in(process, rate, self.now_s, most_tokens):
            self.counters.plan_misses += 1
            self.short = True
            if self.memory.awaits(process.pid):  # its slots were taken after the plan was made
                self.move(process, State.FETCHING)
                return False
            self.scheduler.note_changed(process)  # it may have found some of its prompt
            return deep > 0  # it does without them
        if state is State.NEW:
            process.usage.queue_s = self.now_s - process.spawned_s
            self.meters.note_admitted(process)
        self.trace.add(
            self.now_s, process.pid, "resume" if state is State.SWAPPED else "admit",
            pages=process.space.mapped, computed=process.space.computed, tokens=process.length,
            way=process.way,
        )  # fmt: skip
        if not self.memory.awaits(process.pid):
            self._arrive(process)
            return True
        if state is State.NEW:
            self.move(process, State.SWAPPED)
        self.move(process, State.SWAPPING_IN)
        return False

    def _fetch(self, process: Process) -> bool:
        """Its pages rise from the swap file. True: they do not, they are computed again."""
        pages = process.space.deep
        self.memory.fetch(process, self.scheduler.rates.prefill_tokens_per_s, self.now_s)
        self.trace.add(self.now_s, process.pid, "fetch", pages=pages)
        if not self.memory.awaits(process.pid):
            return True
        self.move(process, State.FETCHING)
        return False

    def _write_behind(self) -> None:
        if self.now_s >= self._copies_resume_s:
            swaps = self.scheduler.policy.pause_mode is PauseMode.SWAP
            self.memory.write_behind(swaps, self._donors, self.now_s)
