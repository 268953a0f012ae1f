"""A kernel on the simulated device in virtual time, audited after every step."""

from collections.abc import Callable
from typing import Any

from tokenix.drivers.sim import SimDevice
from tokenix.kernel import audit
from tokenix.kernel.boot import make_kernel
from tokenix.kernel.calls import KernelError, Principal, Read, ReadResult, Request, Spawn
from tokenix.kernel.event import Call, Event, Reply
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.tunables import Tunables

ROOT = Principal("default", root=True)


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
        **device: Any,
    ) -> None:
        self.device = SimDevice(frames, host_slots, **device)
        self.kernel = make_kernel(
            self.device, policy, params or Params(poison=True), tunables,
            () if device.get("eos_token") is None else (device["eos_token"],),
        )  # fmt: skip
        self.now_s = 0.0
        self.replies: dict[int, Reply] = {}
        self.on_reply: dict[int, Callable[[Reply], None]] = {}
        self.output: dict[Pid, list[int]] = {}
        self.ended: dict[Pid, ReadResult] = {}
        self.steps = 0
        self._audit = audit_every_step
        self._call_ids = 0

    def step(self, inbox: list[Event]) -> None:
        """One kernel step at the present time, audited."""
        self.steps += 1
        commands = self.kernel.step(self.now_s, inbox)
        if self._audit:
            audit.check(self.kernel)
        for command in commands:
            if isinstance(command, Reply):
                assert command.call_id not in self.replies, "a call is answered once"
                self.replies[command.call_id] = command
                self.on_reply.pop(command.call_id, lambda _: None)(command)
            else:
                self.device.submit(command, self.now_s)
        assert not self.device.violations, self.device.violations[0]

    def start(
        self,
        request: Request,
        who: Principal = ROOT,
        then: Callable[[Reply], None] | None = None,
    ) -> int:
        """Send a call without waiting; its number."""
        self._call_ids += 1
        if then is not None:
            self.on_reply[self._call_ids] = then
        self.step([Call(self._call_ids, who, request)])
        return self._call_ids

    def call(self, request: Request, who: Principal = ROOT) -> Any:
        """Send a call that is answered at once; its result, or raises its error."""
        reply = self.replies[self.start(request, who)]
        if reply.error is not None:
            raise reply.error
        return reply.value

    def spawn(self, tokens: tuple[int, ...], max_tokens: int, **options: Any) -> Pid:
        """Spawn and follow: its output is collected in `output[pid]`, its end in `ended[pid]`."""
        pid: Pid = self.call(Spawn(tokens, max_tokens=max_tokens, **options))
        self.follow(pid)
        return pid

    def follow(self, pid: Pid, take: int = 1 << 30) -> None:
        """Read all output of `pid` as it comes."""
        self.output.setdefault(pid, [])

        def got(reply: Reply) -> None:
            if reply.error is not None:
                return
            assert isinstance(reply.value, ReadResult)
            self.output[pid] += [output.token for output in reply.value.outputs]
            if reply.value.eof:
                self.ended[pid] = reply.value
            else:
                self.start(Read(pid, take), then=got)

        self.start(Read(pid, take), then=got)

    def advance(self, limit_s: float | None = None) -> bool:
        """Go to the next moment at which something happens; False if nothing ever will."""
        times = [self.device.next_completion_s(), self.kernel.next_wake_s(), limit_s]
        known = [time for time in times if time is not None]
        if not known:
            return False
        self.now_s = max(self.now_s, min(known))
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


__all__ = ["ROOT", "KernelError", "SimMachine"]
