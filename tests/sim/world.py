"""Random small worlds: everything that callers, readers, operators and devices do, from one seed.

    draw a machine -> callers act at random moments -> heal -> everything must end, nothing leak

Safety first: every token of every process equals the oracle, one terminal event each, the books
hold after each step. Then the faults stop, the stopped go on, the readers read, and all must end
within a bound of steps.

    python -m tokenix.tests.sim.world SEED          tells the story of one world
    python -m tokenix.tests.sim.world SEED cruel    of one on a cruel machine (or: deep, sleepy)
    python -m tokenix.tests.sim.world SEED ahead    of one on a GPU: two passes, covered loads
"""

import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import replace

from tokenix.drivers.sim import FaultPlan
from tokenix.kernel import audit
from tokenix.kernel.calls import Principal, Request
from tokenix.kernel.event import Event, Reply
from tokenix.kernel.process import Process
from tokenix.mm.frames import FrameState
from tokenix.mm.ids import Pfn, Pid
from tokenix.sched.plan import Pause, PauseMode, Plan
from tokenix.sched.view import MemoryView
from tokenix.swap.tier import PlaceState
from tokenix.swap.transfers import Lane
from tokenix.tests.rude import force_pauses
from tokenix.tests.sim.callers import Callers
from tokenix.tests.sim.draws import KINDS, Machine, draw_machine, with_swap_file
from tokenix.tests.sim.machine import ROOT, SimMachine

STEPS_PER_TOKEN = 12
MIN_STEPS = 400
"""After healing, all must end within so many steps, and so many for each token still to come."""

MAX_PAUSES = 2
"""The kernel pauses a process at most that often before its next token: two make a leader, and
leaders go only when there is nobody else."""


class World:
    """One seed's machine and callers. Odd seeds are harsh: the device fails, and processes are
    paused by force at random moments. In even ones only the kernel itself pauses."""

    def __init__(
        self,
        seed: int,
        tell: Callable[[str], None] | None = None,
        draw: Callable[[random.Random, bool], Machine] = draw_machine,
        depth: int = 1,
    ) -> None:
        self.seed = seed
        self.depth = depth
        self.chance = random.Random(seed)
        harsh = seed % 2 == 1
        self.spec = draw(self.chance, harsh)
        self.spec = with_swap_file(self.spec, random.Random(~seed), harsh)
        self._kind = next(kind for kind, known in KINDS.items() if known is draw)
        self.machine = self._boot()
        self.tell = tell
        self._told = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._inbox: list[Event] = []
        self.callers = Callers(self)
        self.most_pauses = 0
        self.ahead = 0
        """Steps after which two passes were in flight."""
        self._paused_at: dict[Pid, tuple[int, int]] = {}
        """pid -> (its length when it was paused last, how often at that length)."""
        self._wrap_plans()

    def _boot(self) -> SimMachine:
        spec = self.spec
        faults = FaultPlan(self.seed, dict(spec.fault_rates), delay_s=9.0)
        return SimMachine(
            spec.frames,
            spec.host_slots,
            spec.policy,
            spec.params,
            spec.tunables,
            page_tokens=spec.page_tokens,
            eos_token=spec.eos_token,
            cost=spec.cost,
            faults=faults,
            seed=self.seed,
            depth=self.depth,
            covers_loads=self.depth > 1,
        )

    # ---- for callers ----

    @property
    def now_s(self) -> float:
        return self.machine.now_s

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Do `act` at `when_s`, or now if that has passed."""
        self._serial += 1
        heapq.heappush(self._heap, (max(when_s, self.now_s), self._serial, act))

    def send(
        self, request: Request, who: Principal = ROOT, then: Callable[[Reply], None] | None = None
    ) -> int:
        """Put a call into the next inbox; its number."""
        if self.tell is not None:
            self._say(f"call {request}")
        call = self.machine.make_call(request, who, self._answered(request, who, then))
        self._inbox.append(call)
        return call.call_id

    def _answered(
        self, request: Request, who: Principal, then: Callable[[Reply], None] | None
    ) -> Callable[[Reply], None]:
        def got(reply: Reply) -> None:
            if self.tell is not None and reply.error is not None:
                self._say(f"     {type(request).__name__} -> {reply.error}")
            self.callers.check_reply(request, who, reply)
            if then is not None:
                then(reply)

        return got

    def process(self, pid: Pid) -> Process:
        return self.machine.process(pid)

    # ---- running ----

    def run(self) -> str:
        """The whole story; returns the digest of its trace."""
        try:
            self.callers.begin(self.spec.horizon_s)
            self._run_until(self.spec.horizon_s)
            self._heal()
            self._finish()
        except Exception as why:
            where = f"world {self.seed} at {self.now_s:.6f} s, step {self.machine.steps}"
            hint = f"replay: python -m tokenix.tests.sim.world {self.seed} {self._kind}"
            hint += " ahead" if self.depth == 2 else ""
            raise AssertionError(f"{where}: {type(why).__name__}: {why}\n{hint}") from why
        return self.machine.kernel.trace.digest()

    def _run_until(self, until_s: float) -> None:
        while self.now_s < until_s:
            self._step(until_s)

    def _step(self, until_s: float | None) -> bool:
        """Go to the next moment; False if there is none."""
        machine = self.machine
        limit = [when for when in (until_s,) if when is not None]
        if self._heap:
            limit.append(self._heap[0][0])
        if self._inbox:
            limit.append(self.now_s)
        next_s = machine.next_s(min(limit, default=None))
        if next_s is None:
            return False
        machine.now_s = next_s
        acts = 0
        while self._heap and self._heap[0][0] <= next_s and acts < 4:
            acts += 1
            heapq.heappop(self._heap)[2]()
        inbox, self._inbox = self._inbox, []
        if self.chance.random() < 0.8 or not inbox:
            inbox += machine.device.poll(next_s)
        machine.step(inbox)
        self.callers.observe()
        self._check_busy()
        self.ahead += len(machine.kernel.flights) == 2
        if self.tell is not None:
            self._tell_trace()
        return True

    def _heal(self) -> None:
        """No more faults, no more force; callers let everything end."""
        if self.tell is not None:
            self._say("---- healing ----")
        self.machine.device._faults.rates.clear()
        self.spec = replace(self.spec, force=0.0)
        self._heap.clear()
        self.callers.heal()

    def _finish(self) -> None:
        kernel = self.machine.kernel
        todo = sum(p.max_tokens + p.length + len(p.stdin) for p in kernel.processes.values())
        bound = MIN_STEPS + STEPS_PER_TOKEN * todo
        for _ in range(bound):
            idle = not kernel.processes and not self._count_copies() and not self.callers.swaps
            if idle and not self._heap and not self._inbox:
                if self.callers.reap():
                    continue
                self.callers.check_over()
                self._check_idle()
                return
            assert self._step(None), f"deadlock: nothing will ever happen; left: {self._left()}"
        raise AssertionError(f"livelock: {bound} steps after healing, not all have ended")

    def _count_copies(self) -> int:
        """Commands that will still end, and copies whose deadline has not come."""
        transfers = self.machine.kernel.memory.copies.transfers.peek_all()
        waited_for = sum(not transfer.abandoned for transfer in transfers)
        waited_for += sum(not job.given_up for job in self.machine.kernel.images.jobs.values())
        return waited_for + (self.machine.device.next_completion_s() is not None)

    def _check_idle(self) -> None:
        """Everything is given back, but for what copies keep that never end: their frames and
        slots, and nothing else."""
        kernel, device = self.machine.kernel, self.machine.device
        hung = list(kernel.memory.copies.transfers.peek_all())
        images = kernel.images
        assert device.fences.count_unfinished() == len(hung) + len(images.jobs)
        assert (
            not images.pending
            and not images.kept
            and all(path.startswith("saved/") for path in images.files)
        ), "images are kept for nobody"
        if not hung and not images.jobs:
            audit.check_idle(kernel)
            return
        audit.check(kernel)
        frames, slots = kernel.memory.frames, kernel.memory.copies.host
        lost = {item.pfn for transfer in hung for item in transfer.items if item.pfn >= 0}
        kept = [Pfn(i) for i in range(frames.total) if frames.pins(Pfn(i))]
        assert set(kept) == lost, f"frames {kept} are pinned, {sorted(lost)} are lost"
        assert frames.count(FrameState.HELD) == len(kernel.segments.pinned_pages())
        written = [i for t in hung for i in t.items if t.lane in (Lane.OUT, Lane.FETCH)]
        assert slots.count(PlaceState.WRITING) == len(written) + images.count_arriving()
        assert not kernel.readers and not kernel.waiters, "blocked calls leak"

    def _check_busy(self) -> None:
        """Whoever can run does, unless copies are under way that bring it memory."""
        kernel = self.machine.kernel
        if kernel.in_flight is not None or kernel.memory.copies.peek_frame_copies():
            return
        idle = [p for p in kernel.scheduler.ready.values() if p.todo_tokens]
        wake_s = kernel.next_wake_s()
        if idle and not list(kernel.memory.copies.transfers.peek_all()):
            pause_s = kernel.params.copy_retry_s if kernel.memory.frames.stranded else 0.0
            late = wake_s is None or wake_s > self.now_s + pause_s
            assert not late, f"the device is idle; left: {self._left()}"

    def _left(self) -> str:
        kernel = self.machine.kernel
        view = kernel.memory.view()
        left = [
            f"{p.pid} {p.state.value} hold={p.hold.value} computed {p.space.computed}/{p.length} "
            f"pages {p.space.mapped}-{p.space.missing}"
            for p in kernel.processes.values()
        ]
        return "; ".join([*left, str(view)])

    # ---- plans: watched, and spoilt ----

    def _wrap_plans(self) -> None:
        """Check what the planner decides, and pause random ready processes beside it, through
        the kernel's own path, as part of its plans."""
        scheduler = self.machine.kernel.scheduler
        decide = scheduler.plan

        def plan(memory: MemoryView, now_s: float) -> Plan:
            made = decide(memory, now_s)
            if self.machine.kernel.in_flight is None:  # else it takes nothing from anybody
                self._check_victims(made)
            return self._add_force(made, now_s) if self.spec.force else made

        scheduler.plan = plan  # type: ignore[method-assign]

    def _check_victims(self, plan: Plan) -> None:
        """One shortage has at most as many victims as pages it lacks, and nobody is paused again
        and again without a token in between."""
        kernel = self.machine.kernel
        victims: dict[str, int] = {}
        for pause in plan.pause:
            victims[pause.reason] = victims.get(pause.reason, 0) + 1
            process = kernel.processes[pause.pid]
            if process.hold or self.seed % 2:
                continue
            length, times = self._paused_at.get(pause.pid, (0, 0))
            times = times + 1 if length == process.length else 1
            self._paused_at[pause.pid] = (process.length, times)
            self.most_pauses = max(self.most_pauses, times)
            assert times <= MAX_PAUSES, f"pid {pause.pid} was paused {times} times at one token"
        for reason, count in victims.items():
            word = reason.split()[-1]
            if word.isdigit():
                process = kernel.processes[Pid(int(word))]
                pages = process.space.pages_for(process.length) + 1
                assert count <= pages, f"{count} victims for {pages} pages: {reason}"

    def _add_force(self, made: Plan, now_s: float) -> Plan:
        taken = {pause.pid for pause in made.pause}
        forced = [
            Pause(pid, self.chance.choice(list(PauseMode)), "forced")
            for pid in self.machine.kernel.scheduler.ready
            if pid not in taken and self.chance.random() < self.spec.force
        ]
        return force_pauses(made, forced, now_s) if forced else made

    # ---- the story ----

    def _say(self, line: str) -> None:
        assert self.tell is not None
        self.tell(f"{self.now_s:12.6f}  {line}")

    def _tell_trace(self) -> None:
        for event in self.machine.kernel.trace.since(self._told, 1 << 30):
            self._told = event.seq
            detail = " ".join(f"{key}={value}" for key, value in event.detail)
            self._say(f"     {event.pid or '-'} {event.kind} {detail}")
        flight = self.machine.kernel.in_flight
        if flight is not None and flight.started_s == self.now_s:
            rows = ", ".join(str(process.pid) for process in flight.processes())
            self._say(f"     forward {rows}")


def main() -> int:
    """Tell the story of one seed."""
    seed, kinds = int(sys.argv[1]), sys.argv[2:]
    depth = 2 if "ahead" in kinds else 1
    draw = KINDS["".join(kind for kind in kinds if kind != "ahead")]
    world = World(seed, lambda line: sys.stdout.write(line + "\n"), draw, depth)
    sys.stdout.write(f"{world.spec}\n")
    sys.stdout.write(f"digest {world.run()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
