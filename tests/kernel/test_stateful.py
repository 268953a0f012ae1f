"""The process table under calls in any order, against a naive model of who is alive and why not.

The kernel runs on the simulated device, audited after every step; every token is held against the
oracle. `Known` is what a caller can know: it says what each call must answer.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tokenix.drivers.sim import CostModel
from tokenix.kernel import audit
from tokenix.kernel.answers import ExitReason, ReadResult, WaitResult
from tokenix.kernel.calls import (
    CancelCall,
    Fork,
    KernelError,
    Kill,
    Read,
    Request,
    SetRlimit,
    Signal,
    Spawn,
    Wait,
    Write,
)
from tokenix.kernel.event import Reply
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader
from tokenix.tests import stateful
from tokenix.tests.sim.follow import Follower
from tokenix.tests.sim.machine import SimMachine

FRAMES, PAGE, ZOMBIES, PIPE = 7, 2, 3, 3
CHOICE = st.integers(0, 11)

N, R, U, S = State.NEW, State.READY, State.RUNNING, State.STOPPED
OUT, AWAY, IN, Z = State.SWAPPING_OUT, State.SWAPPED, State.SWAPPING_IN, State.ZOMBIE
MAY_FOLLOW: dict[State, set[State]] = {
    N: {R, S, AWAY, Z}, R: {U, S, OUT, AWAY, Z}, U: {R, S, Z}, S: {R, OUT, AWAY, Z},
    OUT: {AWAY, Z}, AWAY: {IN, R, S, Z}, IN: {R, S, AWAY, Z}, Z: set(),
}  # fmt: skip
"""Written down a second time."""


@dataclass
class Known:
    """One process, as its callers know it."""

    follower: Follower
    open: bool
    stopped: bool = False
    deadline_s: float | None = None
    killed: ExitReason | None = None
    ended: bool = False
    reaped: bool = False
    told: WaitResult | None = None
    """What those who waited for it were told."""


def number(told: object) -> int:
    """The errno of what a call was told; 0 if it is no error."""
    return int(told.errno or 0) if isinstance(told, KernelError) else 0


class Table(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = SimMachine(
            FRAMES, 6, params=Params(poison=True, max_zombies=ZOMBIES, pipe_tokens=PIPE),
            page_tokens=PAGE, cost=CostModel(in_page_s=0.003, out_page_s=0.003),
        )  # fmt: skip
        self.known: dict[Pid, Known] = {}
        self.blocked: dict[int, Request] = {}
        self.told = 0
        self.states: dict[Pid, State] = {}

    # ---- calling ----

    def _pick(self, choice: int) -> Pid:
        """Mostly one that lives; now and then one that has ended, or never was."""
        living = [pid for pid, known in self.known.items() if not known.ended]
        everybody = [*self.known, Pid(99)]
        pool = living if living and choice % 4 else everybody
        return pool[choice % len(pool)]

    def _call(self, request: Request, *allowed: int) -> Any:
        """The result; the error if its errno is one of `allowed`; None while it is blocked."""
        call = self.machine.make_call(request, then=lambda reply: self._answered(request, reply))
        self.blocked[call.call_id] = request
        self._step([call])
        reply = self.machine.replies.get(call.call_id)
        if reply is None:
            return None
        if reply.error is not None:
            assert reply.error.errno in allowed, f"{request}: {reply.error}"
            return reply.error
        return reply.value

    def _answered(self, request: Request, reply: Reply) -> None:
        """Some call was answered, perhaps long after it was made."""
        del self.blocked[reply.call_id]
        if isinstance(reply.value, ReadResult) and isinstance(request, Read):
            if reply.value.outputs or reply.value.turn_ended or reply.value.eof:
                self.known[request.pid].follower.take(reply.value)
        elif isinstance(request, Write) and reply.error is None:
            self.known[request.pid].follower.written.extend(request.tokens)
            self.known[request.pid].open = not request.eof
        elif isinstance(reply.value, WaitResult):
            known = self.known[reply.value.pid]
            assert known.told in (None, reply.value), "all who waited hear the same"
            known.reaped, known.told = True, reply.value
            assert reply.value.reason is known.follower.process.exit_reason

    def _step(self, inbox: list[Any]) -> None:
        self.machine.step(inbox)
        for known in self.known.values():
            known.follower.observe()
            self._note_end(known)

    def _note_end(self, known: Known) -> None:
        """Whoever has ended had a reason to."""
        process = known.follower.process
        if known.ended or process.exit_reason is None:
            return
        known.ended = True
        reason, now_s = process.exit_reason, self.machine.now_s
        if reason is ExitReason.DEADLINE:
            assert known.deadline_s is not None and known.deadline_s <= now_s
        elif reason in (ExitReason.KILLED, ExitReason.TERMINATED):
            assert reason is known.killed
        elif reason is ExitReason.REFUSED:
            assert not process.output_tokens
        else:
            assert reason is ExitReason.LENGTH and not known.open, "it waits for input"

    def _follow(self, pid: Pid, **fields: Any) -> None:
        follower = Follower(self.machine.process(pid), 256, None)
        self.known[pid] = Known(follower, follower.keep_open, **fields)

    # ---- the calls ----

    @initialize()
    def begin(self) -> None:
        for length in (5, 3):
            self.spawn(length, 6, False, None, Qos.STREAM)

    @rule(
        length=st.integers(1, 7), limit=st.integers(1, 6), keep=st.booleans(),
        deadline_s=st.sampled_from([None, None, 0.05, 1.0]), qos=st.sampled_from(Qos),
    )  # fmt: skip
    def spawn(
        self, length: int, limit: int, keep: bool, deadline_s: float | None, qos: Qos
    ) -> None:
        request = Spawn(
            tuple(range(length)), max_tokens=limit, keep_open=keep, deadline_s=deadline_s,
            qos=qos, reader=Reader(tokens_per_s=2.0),
        )  # fmt: skip
        pid = self._call(request, errno.E2BIG, errno.EAGAIN)
        fits = -(-(length + limit) // PAGE) + 1 <= FRAMES
        assert (number(pid) == errno.E2BIG) == (not fits)
        if not number(pid):
            until_s = None if deadline_s is None else self.machine.now_s + deadline_s
            self._follow(pid, deadline_s=until_s)

    @rule(choice=CHOICE, signal=st.sampled_from([Signal.STOP, Signal.CONT] * 2 + list(Signal)))
    def kill(self, choice: int, signal: Signal) -> None:
        pid = self._pick(choice)
        known = self.known.get(pid)
        lives = known is not None and not known.ended
        if known is not None and lives and signal in (Signal.KILL, Signal.TERM):
            killed = signal is Signal.KILL
            known.killed = ExitReason.KILLED if killed else ExitReason.TERMINATED
        there = known is not None and not known.reaped
        told = self._call(Kill(pid, signal), *(() if there else (errno.ESRCH,)))
        assert number(told) == (0 if there else errno.ESRCH)
        if known is not None and lives:
            known.stopped = signal is Signal.STOP or (known.stopped and signal is not Signal.CONT)
            assert known.ended or signal in (Signal.STOP, Signal.CONT)

    @rule(choice=CHOICE, count=st.integers(1, 4), block=st.booleans())
    def read(self, choice: int, count: int, block: bool) -> None:
        pid = self._pick(choice)
        known = self.known.get(pid)
        there = known is not None and not known.reaped
        over = known is not None and known.follower.terminal is not None
        told = self._call(Read(pid, count, block), errno.ESRCH, errno.EPIPE)
        assert (number(told) == errno.ESRCH) == (not there)
        assert (number(told) == errno.EPIPE) == (there and over)
        assert told is not None or block, "it does not block unless it is asked to"

    @rule(choice=CHOICE, tokens=st.integers(0, 2), eof=st.booleans())
    def write(self, choice: int, tokens: int, eof: bool) -> None:
        pid = self._pick(choice)
        known = self.known.get(pid)
        lives = known is not None and not known.ended
        was_open = known is not None and known.open
        request = Write(pid, tuple(range(50, 50 + tokens)), eof=eof)
        told = self._call(request, errno.ESRCH, errno.EPIPE, errno.E2BIG)
        assert (number(told) == errno.ESRCH) == (not lives)
        assert (number(told) == errno.EPIPE) == (lives and not was_open)

    @rule(choice=CHOICE, n=st.integers(1, 2))
    def fork(self, choice: int, n: int) -> None:
        pid = self._pick(choice)
        known = self.known.get(pid)
        lives = known is not None and not known.ended
        if len([k for k in self.known.values() if not k.ended]) > 5:
            return
        told = self._call(Fork(pid, n), *(() if lives else (errno.ESRCH,)))
        assert (number(told) == errno.ESRCH) == (not lives)
        if known is not None and lives:
            assert len(told) == n
            for child in told:
                self._follow(child, stopped=known.stopped, deadline_s=known.deadline_s)
                self.known[child].open = known.open

    @rule(choice=CHOICE, anybody=st.booleans())
    def wait_twice(self, choice: int, anybody: bool) -> None:
        """The two have one process together if both name it and it has not ended already."""
        self.wait(choice, anybody, True)
        self.wait(choice, anybody, True)

    @rule(choice=CHOICE, anybody=st.booleans(), block=st.booleans())
    def wait(self, choice: int, anybody: bool, block: bool) -> None:
        pid = None if anybody else self._pick(choice)
        there = [known for each, known in self.known.items() if not known.reaped
                 and pid in (None, each)]  # fmt: skip
        ended = any(known.ended for known in there)
        told = self._call(Wait(pid, block), errno.ECHILD, errno.EAGAIN)
        assert (number(told) == errno.ECHILD) == (not there)
        assert (number(told) == errno.EAGAIN) == (bool(there) and not ended and not block)
        if there:
            assert isinstance(told, WaitResult) == ended

    @rule(choice=CHOICE, deadline_s=st.sampled_from([0.01, 0.5]))
    def limit(self, choice: int, deadline_s: float) -> None:
        pid = self._pick(choice)
        known = self.known.get(pid)
        lives = known is not None and not known.ended
        told = self._call(SetRlimit(pid, deadline_s=deadline_s), errno.ESRCH)
        assert number(told) == (0 if lives else errno.ESRCH)
        if known is not None and lives:
            known.deadline_s = self.machine.now_s + deadline_s

    @rule(choice=CHOICE)
    def cancel(self, choice: int) -> None:
        blocked = list(self.blocked)
        call_id = blocked[choice % len(blocked)] if blocked else 4711
        assert self._call(CancelCall(call_id)) is bool(blocked)
        if blocked:
            error = self.machine.replies[call_id].error
            assert error is not None and error.errno == errno.EINTR

    # ---- time ----

    @rule(steps=st.integers(1, 6))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            next_s = self.machine.next_s(self.machine.now_s + 1.0)
            assert next_s is not None
            self.machine.now_s = next_s
            self._step(list(self.machine.device.poll(next_s)))

    @rule()
    def nap(self) -> None:
        """The machine is not asked for a while."""
        self.machine.now_s += 0.1
        self._step([])

    # ---- what must hold ----

    @invariant()
    def states_follow_their_table(self) -> None:
        for event in self.machine.kernel.trace.since(self.told, 1 << 30):
            self.told = event.seq
            if event.kind == "reaped-unread" and event.pid is not None:
                known = self.known[event.pid]
                known.reaped = known.follower.unreadable = True
            if event.kind == "state" and event.pid is not None:
                detail = dict(event.detail)
                old, new = State(detail["old"]), State(detail["new"])
                before = self.states.get(event.pid, State.NEW)
                assert old is before or {old, before} == {R, U}, "no state is skipped"
                assert new in MAY_FOLLOW[old], f"{event.pid}: {old.value} -> {new.value}"
                self.states[event.pid] = new

    @invariant()
    def the_table_is_what_callers_know(self) -> None:
        kernel = self.machine.kernel
        for pid, known in self.known.items():
            if not known.ended:
                assert pid in kernel.processes
                assert not known.stopped or known.follower.process.state is not State.READY
        ended = [pid for pid, known in self.known.items() if known.ended and not known.reaped]
        assert sorted(kernel.zombies) == ended, "the oldest make room, and the trace says so"
        assert len(kernel.zombies) <= ZOMBIES

    def teardown(self) -> None:
        """All go on and are read; then everything is over, and all is answered."""
        for pid, known in self.known.items():
            if not known.ended:
                self._call(Kill(pid, Signal.CONT), errno.ESRCH)
                known.stopped = False
                self._call(Write(pid, eof=True), errno.EPIPE, errno.ESRCH)
        for _ in range(1000):
            self.states_follow_their_table()
            self.the_table_is_what_callers_know()
            readable = [pid for pid, known in self.known.items() if not known.reaped
                        and known.follower.terminal is None]  # fmt: skip
            for pid in readable:
                self._call(Read(pid, block=False), errno.ESRCH, errno.EPIPE)
            if not self.machine.kernel.processes and not readable:
                break
            self.advance(1)
        assert not self.machine.kernel.processes, list(self.machine.kernel.processes.values())
        while self.machine.device.next_completion_s() is not None:
            self.advance(1)
        while not number(self._call(Wait(block=False), errno.ECHILD)):
            pass
        assert not self.blocked, "every call is answered"
        assert sorted(self.machine.replies) == list(range(1, self.machine.count_calls() + 1))
        audit.check_idle(self.machine.kernel)


def test_any_order_of_calls() -> None:
    stateful.run(Table, examples=80, steps=40)


def forget_the_hold(kernel: Lifecycle, process: Any, hold: Any) -> None:
    """STOP is accepted and does nothing."""


def leave_waiters(kernel: Lifecycle, process: Any) -> None:
    """Who waits for one that has ended waits for ever."""


@pytest.mark.parametrize(
    ("name", "broken"), [("set_hold", forget_the_hold), ("_serve_waiters", leave_waiters)]
)
def test_a_broken_table_is_found(
    name: str, broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lifecycle, name, broken)
    with pytest.raises(AssertionError):
        stateful.run(Table, examples=80, steps=40, shrink=False)
