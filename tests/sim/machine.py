"""A kernel on the simulated device in virtual time, audited after every step."""

from collections import deque
from collections.abc import Callable
from typing import Any

from tokenix.drivers.sim import SimDevice, expected_tokens
from tokenix.kernel import audit
from tokenix.kernel.answers import ExitReason, ReadResult
from tokenix.kernel.boot import make_kernel
from tokenix.kernel.calls import Follow, KernelError, Principal, Read, Request, Spawn, Wait
from tokenix.kernel.event import Call, Event, Reply
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.mm.ids import Pid
from tokenix.sched.tunables import Tunables

ROOT = Principal("default", root=True)

MAX_IDLE_STEPS = 12
"""Steps in a row at one moment without an event: more is spinning."""


class SimMachine:
    """Calls go in through `call`; `run` moves virtual time until nothing is left to do."""

    def __init__(
        self,
        frames: int,
        host_slots: int,
        policy: str = "progress",
        params: Params | None = None,
        tunables: Tunables | None = None,
        audit_every_step: bool = True,
        make_device: Callable[..., SimDevice] = SimDevice,
        **device: Any,
    ) -> None:
        self.device = make_device(frames, host_slots, **device)
        self.kernel = make_kernel(
            self.device, policy, params or Params(poison=True), tunables,
            () if device.get("eos_token") is None else (device["eos_token"],),
        )  # fmt: skip
        self.now_s = 0.0
        self.replies: dict[int, Reply] = {}
        self.on_reply: dict[int, Callable[[Reply], None]] = {}
        self.output: dict[Pid, list[int]] = {}
        self.ended: dict[Pid, ReadResult] = {}
        self.asked: dict[Pid, Spawn] = {}
        self.steps = 0
        self.audit_every_step = audit_every_step
        self._call_ids = 0
        self._stepping = False
        self._later: deque[Call] = deque()
        self._idle_steps = 0
        self._stepped_s = -1.0

    def step(self, inbox: list[Event]) -> None:
        """One kernel step at the present time, audited; then those for calls made in answer."""
        self._step(inbox)
        while self._later:
            self._step([self._later.popleft()])

    def _step(self, inbox: list[Event]) -> None:
        self._stepping = True
        self.steps += 1
        self._watch_spinning(inbox)
        commands = self.kernel.step(self.now_s, inbox)
        if self.audit_every_step:
            audit.check(self.kernel)
        for command in commands:
            if not isinstance(command, Reply):
                self.device.submit(command, self.now_s)
        assert not self.device.violations, self.device.violations[0]
        for command in commands:
            if isinstance(command, Reply):
                assert command.call_id not in self.replies, "a call is answered once"
                then = self.on_reply.get(command.call_id, lambda _: None)
                if not command.more:
                    self.replies[command.call_id] = command
                    self.on_reply.pop(command.call_id, None)
                then(command)
        self._stepping = False

    def _watch_spinning(self, inbox: list[Event]) -> None:
        if inbox or self.now_s > self._stepped_s:
            self._idle_steps = 0
        self._stepped_s = self.now_s
        self._idle_steps += 1
        assert self._idle_steps <= MAX_IDLE_STEPS, f"the kernel spins at {self.now_s:.6f} s"

    def make_call(
        self, request: Request, who: Principal = ROOT, then: Callable[[Reply], None] | None = None
    ) -> Call:
        """A call to be put into an inbox; `then` is called with its reply, and parts of it."""
        self._call_ids += 1
        if then is not None:
            self.on_reply[self._call_ids] = then
        return Call(self._call_ids, who, request)

    def count_calls(self) -> int:
        """Calls made so far; they are numbered from 1."""
        return self._call_ids

    def start(
        self,
        request: Request,
        who: Principal = ROOT,
        then: Callable[[Reply], None] | None = None,
    ) -> int:
        """Send a call without waiting; its number."""
        call = self.make_call(request, who, then)
        if self._stepping:
            self._later.append(call)
        else:
            self.step([call])
        return call.call_id

    def call(self, request: Request, who: Principal = ROOT) -> Any:
        """Send a call that is answered at once; its result, or raises its error."""
        reply = self.replies[self.start(request, who)]
        if reply.error is not None:
            raise reply.error
        return reply.value

    def spawn(self, tokens: tuple[int, ...], max_tokens: int, **options: Any) -> Pid:
        """Spawn and follow: its output is collected in `output[pid]`, its end in `ended[pid]`."""
        request = Spawn(tokens, max_tokens=max_tokens, **options)
        pid: Pid = self.call(request)
        self.asked[pid] = request
        self.follow(pid)
        return pid

    def follow(self, pid: Pid, take: int = 1 << 30) -> None:
        """Read all output of `pid` as it comes, one time in pieces, another time in parts."""
        self.output.setdefault(pid, [])
        request = Follow(pid, take) if pid % 2 else Read(pid, take)

        def got(reply: Reply) -> None:
            if reply.error is not None:
                return
            assert isinstance(reply.value, ReadResult)
            self.output[pid] += [output.token for output in reply.value.outputs]
            if reply.value.eof:
                assert pid not in self.ended, "one terminal event"
                self.ended[pid] = reply.value
            elif not reply.more:
                self.start(request, then=got)

        self.start(request, then=got)

    def process(self, pid: Pid) -> Process:
        """Living or zombie."""
        return self.kernel.processes.get(pid) or self.kernel.zombies[pid]

    def next_s(self, limit_s: float | None = None) -> float | None:
        """The next moment at which something happens; None if nothing ever will."""
        times = [self.device.next_completion_s(), self.kernel.next_wake_s(), limit_s]
        known = [time for time in times if time is not None]
        return max(self.now_s, min(known)) if known else None

    def advance(self, limit_s: float | None = None) -> bool:
        """Go to the next moment at which something happens; False if nothing ever will."""
        next_s = self.next_s(limit_s)
        if next_s is None:
            return False
        self.now_s = next_s
        self.step(list(self.device.poll(self.now_s)))
        return True

    def run(self, until_s: float | None = None, max_steps: int = 200_000) -> None:
        """Until no process is left (or `until_s`). Fails if nothing moves: that is a deadlock."""
        for _ in range(max_steps):
            done = not self.kernel.processes and self.device.next_completion_s() is None
            if done or (until_s is not None and self.now_s >= until_s):
                return
            assert self.advance(until_s), "deadlock: processes are left, and nothing will happen"
        raise AssertionError("livelock: too many steps")

    def reasons(self, kind: str = "pause") -> list[str]:
        """Of all trace events of a kind, what their `reason` says."""
        events = self.kernel.trace.since(0, 1 << 30)
        return [str(dict(event.detail).get("reason")) for event in events if event.kind == kind]

    def check_output(self, pid: Pid, complete: bool = True) -> None:
        """What came out of `pid` so far is what the oracle says; all of it if `complete`."""
        request = self.asked[pid]
        model = self.device.model
        expected = expected_tokens(
            request.tokens, request.max_tokens or 0, request.sampling, model.vocab, model.eos_token,
            ignore_eos=request.ignore_eos, min_tokens=request.min_tokens,
        )  # fmt: skip
        got = self.output[pid]
        assert got == (expected if complete else expected[: len(got)]), f"output of pid {pid}"

    def finish(self) -> None:
        """Run to the end. Whoever ended by itself said all it had to say, the others the
        beginning of it; nothing is left behind."""
        self.run()
        for pid in self.asked:
            if pid in self.ended:
                whole = self.ended[pid].reason in (ExitReason.STOP, ExitReason.LENGTH)
                self.check_output(pid, complete=whole)
        for pid in list(self.kernel.zombies):
            self.call(Wait(pid))
        audit.check_idle(self.kernel)


__all__ = ["ROOT", "KernelError", "SimMachine"]
