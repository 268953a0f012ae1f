"""A crowd of processes in a chosen mix, for measuring what one step of the kernel costs.

    crowd = Crowd(running=256, waiting=1000, paused=1000)
    crowd.step()                # seconds of the kernel step that ends a pass and begins the next
    crowd.step(arrivals=32)     # the same, with 32 spawns in its inbox

The kernel is the production one. Only the device is simulated, and its time is not counted; the
kernel's is that of its thread on the processor, as a step never waits. The running decode, a
sixteenth of them crossing a page in each step. All seats are taken, so the waiting wait, and the
paused have minutes of unread text.
"""

import time

from tokenix.drivers.ops import ForwardDone
from tokenix.drivers.sim.costs import CostModel
from tokenix.drivers.sim.fast import VOCAB, FastDevice
from tokenix.kernel.boot import make_kernel
from tokenix.kernel.calls import Kill, Principal, Request, Signal, Spawn, Sysctl
from tokenix.kernel.event import Call, Event, Reply
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Reader
from tokenix.sched.tunables import Tunables

ROOT = Principal(root=True)
STEP_S = 0.015
PAGES_EACH = 160
"""More than any of them has."""
FAST, SLOW = 50.0, 0.01
"""Readers of the running and of the paused, in tokens per second."""
LEAD_TOKENS = 4


class Crowd:
    """Steps a kernel whose processes stay where they are."""

    def __init__(self, running: int, waiting: int, paused: int) -> None:
        assert running > 0 and waiting >= 0 and paused >= 0
        self._running = running
        everybody = running + waiting + paused
        frames = PAGES_EACH * everybody + 1024
        cost = CostModel(base_s=STEP_S, prefill_token_s=1e-7, decode_row_s=0, kv_token_s=0)
        self._device = FastDevice(cost, frames, frames)
        tunables = Tunables(
            max_running=running + paused,
            step_tokens=max(16_384, running + paused),
            queue_limit=1 << 20,
            target_interactive_s=1e5,
            target_stream_s=1e5,
            target_batch_s=1e6,
            target_idle_s=1e6,
        )
        params = Params(max_processes=1 << 20, pipe_tokens=1 << 40)
        self._kernel = make_kernel(self._device, "progress", params, tunables)
        self._now_s = 0.0
        self._inbox: list[Event] = []
        self._calls = 0
        self._crowd = 0
        self._gather(paused)
        self._fill(waiting, paused)

    def step(self, arrivals: int = 0) -> float:
        """Seconds of the kernel step that ends a forward pass and begins the next."""
        calls = [self._newcomer(FAST) for _ in range(arrivals)]
        took_s = None
        while took_s is None:
            took_s = self._advance(calls)
        return took_s

    def count(self) -> tuple[int, int, int]:
        """Processes that (run, wait, are paused)."""
        scheduler = self._kernel.scheduler
        return len(scheduler.ready), len(scheduler.waiting), len(scheduler.paused)

    # ---- how they get there ----

    def _gather(self, paused: int) -> None:
        """Slow readers that have had some tokens are stopped, so that they lose their frames, and
        go on when the running have taken all seats."""
        slow = [self._spawn(SLOW) for _ in range(paused)]
        while any(self._kernel.processes[pid].unread < LEAD_TOKENS for pid in slow):
            self.step()
        for pid in slow:
            self._call(Kill(pid, Signal.STOP))
        fast = [self._spawn(FAST) for _ in range(self._running)]
        while any(self._kernel.processes[pid].unread < LEAD_TOKENS for pid in fast):
            self.step()
        self._call(Sysctl("sched.max_running", self._running))
        for pid in slow:
            self._call(Kill(pid, Signal.CONT))

    def _fill(self, waiting: int, paused: int) -> None:
        while len(self._kernel.scheduler.paused) < paused:
            self.step()
        for _ in range(waiting):
            self._spawn(FAST)
        for _ in range(3):
            self.step()

    def _newcomer(self, reader: float) -> Call:
        self._crowd += 1
        self._calls += 1
        length = 128 + self._crowd * 37 % 512
        tokens = (self._crowd % VOCAB, self._crowd // VOCAB, *range(length - 2))
        spawn = Spawn(tokens, max_tokens=1500, ignore_eos=True, reader=Reader(tokens_per_s=reader))
        return Call(self._calls, ROOT, spawn)

    def _spawn(self, reader: float) -> Pid:
        call = self._newcomer(reader)
        return Pid(int(str(self._answer(call).value)))

    def _call(self, request: Request) -> None:
        self._calls += 1
        self._answer(Call(self._calls, ROOT, request))

    def _answer(self, call: Call) -> Reply:
        """Carry out one call at this moment."""
        for command in self._kernel.step(self._now_s, [call]):
            if isinstance(command, Reply):
                assert command.error is None, command.error
                reply = command
            else:
                self._device.submit(command, self._now_s)
        return reply

    # ---- time ----

    def _advance(self, calls: list[Call]) -> float | None:
        """To the next moment at which something happens. Seconds of the kernel's step if a forward
        pass ended there; it gets the `calls` then."""
        times = (self._device.next_completion_s(), self._kernel.next_wake_s())
        self._now_s = max(self._now_s, min(at_s for at_s in times if at_s is not None))
        done = self._device.poll(self._now_s)
        forward = any(isinstance(event, ForwardDone) for event in done)
        inbox: list[Event] = [*calls, *done] if forward else [*done]
        start_s = time.thread_time()
        commands = self._kernel.step(self._now_s, inbox)
        took_s = time.thread_time() - start_s
        for command in commands:
            if not isinstance(command, Reply):
                self._device.submit(command, self._now_s)
        return took_s if forward else None
