"""Processes from birth to reaping: their table, their states, what holds them, their pipes.

    add --> move, set_hold, clear_hold, end_turn, begin_turn --> exit --> (zombie) --> reap

Everything here is bookkeeping at one moment; `kernel.core` adds the step that moves time on.
"""

import errno
import hashlib
import heapq
import math
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence

from tokenix.drivers.device import DeviceInfo
from tokenix.kernel.answers import ExitReason, WaitResult, ends_turn
from tokenix.kernel.calls import Follow, KernelError, Principal, Read, Wait, error
from tokenix.kernel.commit import close_turn, take_output
from tokenix.kernel.event import Call, Command, Reply, WaitingCall
from tokenix.kernel.images import Images
from tokenix.kernel.memory import Memory
from tokenix.kernel.meters import Meters
from tokenix.kernel.params import Params
from tokenix.kernel.process import STALE, Process, end_of, end_of_file
from tokenix.kernel.segments import Segments
from tokenix.kernel.state import ALLOWED, PAUSED, RESIDENT, Hold, State
from tokenix.kernel.stats import Counters
from tokenix.kernel.swapfile import SwapFile
from tokenix.kernel.trace import TraceRing
from tokenix.mm.ids import Pid, Ticket
from tokenix.sched.queues import Queue
from tokenix.sched.scheduler import Scheduler
from tokenix.sched.view import MemoryView

_NOTHING = Hold.NONE  # looked up often, and an enum's names are slow


class Lifecycle:
    """The process table and everything that happens to a process besides computing."""

    def __init__(
        self,
        info: DeviceInfo,
        scheduler: Scheduler,
        params: Params | None,
        eos_tokens: Sequence[int],
    ) -> None:
        self.info = info
        self.params = params or Params()
        self.scheduler = scheduler
        self.eos_tokens = frozenset(eos_tokens)
        self.trace = TraceRing(self.params.trace_events)
        self.counters = Counters()
        self.meters = Meters(self.params.max_metered_tenants)
        self.processes: dict[Pid, Process] = {}
        self.zombies: dict[Pid, Process] = {}
        self.pids: list[Pid] = []
        """Of both tables, in order, so that they can be looked at some at a time."""
        self.segments = Segments()
        self.readers: dict[Pid, deque[WaitingCall]] = {}
        """Blocked reads, first come first served."""
        self.parked_reads = 0
        """How many they are."""
        self.waiters: dict[int, WaitingCall] = {}
        """Blocked waits, by call id."""
        self.now_s = 0.0
        self.commands: list[Command] = []
        """What this step has decided so far."""
        self.dropped: list[Pid] = []
        """Processes whose block tables the device may forget with the next forward."""
        self.deadlines: list[tuple[float, Pid]] = []
        """A heap; entries of the dead and of changed deadlines stay until they come up."""
        self.census = dict.fromkeys(State, 0)
        """Living processes by state, those that run with READY; whoever has ended under ZOMBIE."""
        self._tickets = 0
        self._pids = 0
        self.memory = Memory(info, self.commands.append, self.new_ticket, self.params)
        self.swapfile = SwapFile(
            self.memory, self.params, self.commands.append, self.new_ticket, self.reply
        )
        self.images = Images(
            self.params, info.frame_bytes, self.commands.append, self.new_ticket, self.reply
        )
        self._view: tuple[float, MemoryView] | None = None

    # ---- look-up ----

    def visible(self, who: Principal, pid: Pid | None = None) -> list[Process]:
        """Living processes and zombies that exist for `who`, by pid; or only `pid`."""
        if pid is not None:
            one = self.processes.get(pid) or self.zombies.get(pid)
            return [one] if one is not None and one.visible_to(who) else []
        both = (self.processes.get(pid) or self.zombies[pid] for pid in self.pids)
        return [process for process in both if process.visible_to(who)]

    def find(self, who: Principal, pid: Pid) -> Process:
        """The process, living or zombie. One of another tenant does not exist for the caller."""
        process = self.processes.get(pid) or self.zombies.get(pid)
        if process is None or not process.visible_to(who):
            raise error(errno.ESRCH, f"no process {pid}: it never existed or was waited for")
        return process

    def find_living(self, who: Principal, pid: Pid) -> Process:
        process = self.find(who, pid)
        if process.exit_reason is not None:
            raise error(errno.ESRCH, f"process {pid} has ended ({process.exit_reason.value})")
        if self.images.jobs and self.images.is_leaving(pid):
            raise error(errno.EBUSY, f"process {pid} is being suspended")
        return process

    def view_of_now(self) -> MemoryView:
        """Memory as some call of this moment found it: near enough for who knocks at the door."""
        if self._view is None or self._view[0] != self.now_s:
            self._view = (self.now_s, self.memory.view())
        return self._view[1]

    # ---- birth and states ----

    def new_pid(self) -> Pid:
        self._pids += 1
        return Pid(self._pids)

    def new_ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def add(self, process: Process) -> None:
        """A new process exists. It is queued if nothing holds it."""
        self.processes[process.pid] = process
        self.census[process.state] += 1
        insort(self.pids, process.pid)
        self.memory.add(process)
        self.meters.enter(process, self.now_s)
        process.charged_s = self.now_s
        self.watch_deadline(process)
        self._requeue(process)
        if process.hold & Hold.INPUT:
            self.images.note_waiting(process.pid, self.now_s)

    def watch_deadline(self, process: Process) -> None:
        """Its deadline was set or changed."""
        if process.deadline_s is None:
            return
        heapq.heappush(self.deadlines, (process.deadline_s, process.pid))
        if len(self.deadlines) > 64 + 2 * len(self.processes):
            living = self.processes.values()
            self.deadlines = [(p.deadline_s, p.pid) for p in living if p.deadline_s is not None]
            heapq.heapify(self.deadlines)

    def move(self, process: Process, state: State) -> None:
        """The only way a process changes its state, but for the streams of a pass: those go to
        RUNNING and back in one loop each (core.py, commit.py), as that moves no queue."""
        old = process.state
        if (old is State.READY and state is State.RUNNING) or (
            old is State.RUNNING and state is State.READY
        ):  # a step begins or ends: it stays among the ready
            process.state = state
            return
        assert state in ALLOWED[old], f"process {process.pid}: {old.value} -> {state.value}"
        self.charge(process)
        process.state = state
        self.census[State.READY if old is State.RUNNING else old] -= 1
        self.census[state] += 1
        self.trace.add(self.now_s, process.pid, "state", old=old.value, new=state.value)
        if state is State.SWAPPED and process.hold:
            self.swapfile.note_held(process)
        self._requeue(process)

    def charge(self, process: Process) -> None:
        """Bring `usage` up to date: the time since this was done last, in the present state and
        with the present pages. Called before either changes."""
        usage, entity = process.usage, process.entity
        passed_s = self.now_s - process.charged_s
        process.charged_s = self.now_s
        usage.output_tokens = entity.delivered_tokens - process.inherited_tokens
        if entity.stalls != usage.stalls:
            self.meters.note_stalls(process, entity.stalls - usage.stalls)
            usage.stalls = entity.stalls
        if process.state in RESIDENT:
            usage.page_seconds += process.space.mapped * passed_s
        if process.state in PAUSED:
            usage.paused_s += passed_s
        elif process.state in (State.READY, State.RUNNING):
            if entity.first_token_s is None:
                usage.prefill_s += passed_s
            else:
                usage.decode_s += passed_s

    def _requeue(self, process: Process) -> None:
        """Put the process where the scheduler looks for its kind."""
        queue: Queue | None = None
        match process.state:
            case State.NEW if not process.hold:
                queue = Queue.WAITING
            case State.READY | State.RUNNING:
                queue = Queue.READY
            case State.STOPPED:
                queue = Queue.HELD
            case State.SWAPPED if not process.hold:
                queue = Queue.PAUSED
            case State.SWAPPING_OUT | State.FETCHING | State.SWAPPING_IN:
                queue = Queue.MOVING
        if queue is None:
            self.scheduler.remove(process)
        else:
            self.scheduler.enqueue(process, queue)

    def set_hold(self, process: Process, hold: Hold) -> None:
        """The process may not run until `clear_hold`. Idempotent, legal in every state."""
        if not process.hold:
            process.held_since_s = self.now_s
            self.swapfile.note_held(process)
        process.hold |= hold
        process.quiet_until = 0
        if process.state is State.READY:
            self.move(process, State.STOPPED)
        elif process.state is not State.RUNNING and process.state is not State.ZOMBIE:
            self._requeue(process)

    def clear_hold(self, process: Process, hold: Hold) -> None:
        process.hold &= ~hold
        if process.hold:
            return
        if process.state is State.STOPPED:
            self.move(process, State.READY)
        elif process.state is not State.RUNNING and process.state is not State.ZOMBIE:
            self._requeue(process)

    def end_pause(self, process: Process, way: str) -> None:
        """If it was preempted, it is no more. `way`: how it came back, or that it has ended."""
        paused_s = self.now_s - process.entity.paused_since_s
        if paused_s < 0:  # since never
            return
        self.meters.note_back(process, paused_s)
        lead = self.peek_lead(process)
        self.trace.add(self.now_s, process.pid, "pause-end", way=way, paused_s=paused_s, **lead)

    def peek_lead(self, process: Process) -> dict[str, float]:
        """How long its reader has still to read, for the trace; nothing if nobody reads along."""
        lead_s = self.scheduler.lead_s(process, self.now_s)
        return {"lead_s": lead_s} if math.isfinite(lead_s) else {}

    # ---- turns and the end ----

    def end_turn(self, process: Process, reason: ExitReason, problem: str = "") -> None:
        """Output of the turn is complete: the process exits, or waits for input."""
        if process.segment is not None and reason is ExitReason.LENGTH:
            self.segments.computed(self, process)
        self._close_turn(process, reason)
        if reason is ExitReason.ERROR or not (process.stdin_open or process.stdin):
            self.exit(process, reason, problem)
            return
        self.set_hold(process, Hold.INPUT)
        self.images.note_waiting(process.pid, self.now_s)
        self.serve_readers((process,))
        self.begin_turn(process)

    def _close_turn(self, process: Process, reason: ExitReason) -> None:
        if process.in_turn:
            self.charge(process)
            self.meters.end_turn(process, reason, self.now_s)
        close_turn(process, reason)

    def begin_turn(self, process: Process) -> None:
        """If it waits for input: go on with what stdin holds, or end at its close."""
        if not process.hold & Hold.INPUT or process.state is State.ZOMBIE:
            return
        if process.stdin:
            self.images.note_runs(process.pid, self.now_s)
            self.charge(process)
            self.meters.begin_turn(process, len(process.stdin), self.now_s)
            process.tokens.extend(process.stdin)
            process.stdin.clear()
            process.prompt_tokens = process.length
            process.in_turn = True
            process.spec = STALE
            if process.fresh_text is not None:
                process.text = process.fresh_text.copy()
            process.usage.prompt_tokens = process.length
            self.scheduler.restart_turn(process, self.now_s)
            self.clear_hold(process, Hold.INPUT)
        elif not process.stdin_open:
            self.exit(process, process.last_turn or ExitReason.STOP)

    def exit(self, process: Process, reason: ExitReason, problem: str = "") -> None:
        """The process is over, whatever it was doing: everything it held is given back."""
        self.images.note_gone(process, reason, self.now_s)
        self._close_turn(process, reason)
        process.exit_reason, process.exit_error = reason, problem
        process.quiet_until = 0
        self.end_pause(process, "exit")
        process.usage.total_s = self.now_s - process.spawned_s
        self.charge(process)
        self.memory.release(process)
        if process.table_sent:
            self.dropped.append(process.pid)
        self.move(process, State.ZOMBIE)
        del self.processes[process.pid]
        self.zombies[process.pid] = process
        self.counters.exits[reason.value] = self.counters.exits.get(reason.value, 0) + 1
        self.trace.add(
            self.now_s, process.pid, "exit", reason=reason.value, error=problem,
            output=process.usage.output_tokens, digest=_fold(process.tokens),
            tenant=process.tenant, name=process.name,
        )  # fmt: skip
        if process.segment is not None:
            self.segments.ended(self, process)
            self._forget(process)
            return
        self.serve_readers((process,))
        self._serve_waiters(process)
        if len(self.zombies) > self.params.max_zombies:
            oldest = next(iter(self.zombies))
            self.trace.add(self.now_s, oldest, "reaped-unread")
            self.reap(self.zombies[oldest])

    def reap(self, process: Process) -> WaitResult:
        """Forget a zombie; its readers are told that it is gone."""
        self._forget(process)
        for waiting in self.readers.pop(process.pid, ()):
            self.parked_reads -= 1
            self.reply(waiting.call_id, error(errno.ESRCH, f"process {process.pid} was reaped"))
        self._release_waiters()
        return end_of(process)

    def _forget(self, process: Process) -> None:
        del self.zombies[process.pid]
        del self.pids[bisect_left(self.pids, process.pid)]

    # ---- pipes and blocked calls ----

    def park(self, call: Call, request: Read | Follow | Wait) -> None:
        """Block a call until its process has something for it."""
        parked = len(self.waiters) + self.parked_reads
        if parked >= self.params.max_waiting_calls:
            raise error(errno.EAGAIN, f"{parked} calls are blocked already", 1.0)
        waiting = WaitingCall(call.call_id, call.principal, request)
        if isinstance(request, Read | Follow):
            waiting.left_tokens = request.max_tokens
            self.readers.setdefault(request.pid, deque()).append(waiting)
            self.parked_reads += 1
        else:
            self.waiters[call.call_id] = waiting

    def cancel(self, who: Principal, call_id: int) -> bool:
        """Answer a blocked call with EINTR; False if `who` has no such call blocked."""
        waiting = self._take_blocked(who, call_id)
        if waiting is None:
            return False
        self.reply(waiting.call_id, error(errno.EINTR, "the call was cancelled"))
        return True

    def _take_blocked(self, who: Principal, call_id: int) -> WaitingCall | None:
        waiting = self.waiters.get(call_id)
        if waiting is not None:
            return self.waiters.pop(call_id) if who.root or waiting.principal == who else None
        for pid, queue in self.readers.items():
            for waiting in queue:
                if waiting.call_id == call_id and (who.root or waiting.principal == who):
                    queue.remove(waiting)
                    self.parked_reads -= 1
                    if not queue:
                        del self.readers[pid]
                    return waiting
        return None

    def serve_readers(self, processes: Iterable[Process]) -> None:
        """Give output to blocked reads, first come first served; who follows comes last again."""
        readers, taken = self.readers, []
        for process in processes if readers else ():
            waiting = readers.get(process.pid)
            while waiting and (process.out or process.exit_reason is not None):
                reader, ended = waiting[0], process.eof_sent
                answer = None if ended else take_output(process, reader.left_tokens)
                if answer is not None:
                    if tokens := len(answer.outputs):
                        taken.append((process, tokens))
                    reader.left_tokens = left = reader.left_tokens - tokens
                    if left > 0 and type(reader.request) is Follow and not ends_turn(answer):
                        self.commands.append(Reply(reader.call_id, answer, more=True))
                        waiting.rotate(-1)
                        continue
                elif not ended:
                    break
                self.reply(reader.call_id, answer or end_of_file(process))
                waiting.popleft()
                self.parked_reads -= 1
            if not waiting:
                readers.pop(process.pid, None)
        if taken:
            self.note_read(taken)

    def note_read(self, taken: list[tuple[Process, int]]) -> None:
        """Readers took so many outputs; a pipe that was full lets its process go on."""
        self.scheduler.note_read(taken, self.now_s)
        for process in [process for process, _ in taken if process.hold is not _NOTHING]:
            if process.hold & Hold.PIPE and process.unread < self.params.pipe_tokens:
                self.clear_hold(process, Hold.PIPE)
            if process.hold & Hold.INPUT:
                self.images.note_waiting(process.pid, self.now_s)

    def _serve_waiters(self, process: Process) -> None:
        """Tell all who wait for this process, and the first of those who wait for any, how it has
        ended. It is reaped if there is somebody who does more than look."""
        told, any_told, reaps = [], False, False
        for call_id, waiting in self.waiters.items():
            assert isinstance(waiting.request, Wait)
            pid = waiting.request.pid
            if not process.visible_to(waiting.principal) or pid not in (None, process.pid):
                continue
            if pid is None and any_told:
                continue
            any_told = any_told or pid is None
            reaps = reaps or not waiting.request.keep
            told.append(call_id)
        if not told:
            return
        for call_id in told:
            del self.waiters[call_id]
        result = self.reap(process) if reaps else end_of(process)
        for call_id in told:
            self.reply(call_id, result)

    def _release_waiters(self) -> None:
        """A wait that nobody is left for has failed: there is none for one process, as a zombie is
        reaped at once if somebody waits for it."""
        for call_id, waiting in list(self.waiters.items()):
            assert isinstance(waiting.request, Wait)
            if waiting.request.pid is None and not self._has_children(waiting.principal):
                del self.waiters[call_id]
                self.reply(call_id, error(errno.ECHILD, "the process was waited for by another"))

    def _has_children(self, who: Principal) -> bool:
        tables = (self.processes, self.zombies)
        return any(p.visible_to(who) for table in tables for p in table.values())

    def reply(self, call_id: int, value: object) -> None:
        if isinstance(value, KernelError):
            self.commands.append(Reply(call_id, error=value))
        else:
            self.commands.append(Reply(call_id, value))


def _fold(tokens: Sequence[int]) -> int:
    """A number that tells token sequences apart in traces."""
    digest = hashlib.blake2b(array("I", tokens), digest_size=8).digest()
    return int.from_bytes(digest, "little")
