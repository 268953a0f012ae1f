"""Group G: streams and slow readers. Output is bounded, comes at once, and ends exactly once."""

import errno

import pytest

from tokenix.drivers.sim import CostModel, Fault, FaultPlan
from tokenix.kernel import audit
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import ImageDir, Kill, Read, Signal, Spawn, Suspend, Wait
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Reader
from tokenix.sched.tunables import Tunables
from tokenix.tests.sim.conftest import Boot
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(10, 27))


def test_g1_output_is_bounded(boot: Boot) -> None:
    """G1: an unread stream fills its pipe and then waits; not one token more."""
    machine = boot(12, params={"pipe_tokens": 5})
    pid = machine.call(Spawn(PROMPT, max_tokens=20))
    machine.run(until_s=20.0)
    assert machine.process(pid).unread == 5
    for _ in range(3):
        assert len(machine.call(Read(pid)).outputs) == 5
        machine.run(until_s=machine.now_s + 20.0)
    assert len(machine.call(Read(pid, max_tokens=2)).outputs) == 2
    machine.run(until_s=machine.now_s + 20.0)
    last = machine.call(Read(pid))
    assert len(last.outputs) == 3 and last.eof and last.reason is ExitReason.LENGTH
    machine.call(Wait(pid))
    audit.check_idle(machine.kernel)


def test_g1_streams_that_nobody_waits_for_are_bounded(boot: Boot) -> None:
    """G1: neither unread nor unreaped streams pile up; who reads is told that they are gone."""
    machine = boot(12, params={"max_zombies": 3})
    pids = []
    for _ in range(12):
        pids.append(machine.call(Spawn(PROMPT[:5], max_tokens=4)))
        machine.run()
        assert len(machine.kernel.zombies) <= 3
    assert list(machine.kernel.zombies) == pids[-3:]
    with pytest.raises(OSError, match="was waited for"):
        machine.call(Read(pids[0]))
    assert machine.reasons("reaped-unread") and not machine.kernel.readers


@pytest.mark.parametrize("others", [1, 3])
def test_g2_a_stalled_reader_holds_up_nobody(boot: Boot, others: int) -> None:
    """G2: with its pipe full, a stream is out of the steps; those who read get all of them."""

    def finished_s(stalled: int) -> float:
        machine = boot(24, params={"pipe_tokens": 3})
        lazy = [machine.call(Spawn((1 + n, 2, 3), max_tokens=20)) for n in range(stalled)]
        machine.run(until_s=0.5)
        start_s, forwards = machine.now_s, machine.kernel.counters.steps
        pid = machine.spawn(PROMPT[:6], 10)
        while pid not in machine.ended:
            machine.advance()
        assert machine.kernel.counters.steps - forwards == 10
        assert all(machine.process(stream).unread == 3 for stream in lazy)
        return machine.now_s - start_s

    assert finished_s(others) == pytest.approx(finished_s(0))


def test_g3_every_token_reaches_a_blocked_reader_in_its_step(boot: Boot) -> None:
    """G3: what was generated was read; nothing is kept back while the reader waits."""
    machine = boot(8)
    pid = machine.spawn(PROMPT[:5], 12)
    for count in range(1, 13):
        while machine.process(pid).output_tokens < count:
            machine.advance()
        assert len(machine.output[pid]) == count and machine.process(pid).unread == 0
    assert pid in machine.ended, "the end comes with the last token"
    machine.finish()


def test_g4_every_reader_hears_the_end_once(boot: Boot) -> None:
    """G4: several blocked reads: tokens go to one of them each, one hears the end, the others
    that there is no more."""
    machine = boot(8)
    pid = machine.call(Spawn(PROMPT[:5], max_tokens=3))
    calls = [machine.start(Read(pid, max_tokens=1)) for _ in range(8)]
    machine.run()
    replies = [machine.replies[call] for call in calls]
    results = [reply.value for reply in replies if reply.error is None]
    assert sum(len(result.outputs) for result in results) == 3
    assert sum(result.eof for result in results) == 1
    errors = [reply.error.errno for reply in replies if reply.error is not None]
    assert errors == [errno.EPIPE] * (8 - len(results))
    machine.call(Wait(pid))
    audit.check_idle(machine.kernel)


def to_end(reason: ExitReason) -> tuple[SimMachine, Pid]:
    """A machine with a process that ends for this reason, sooner or later."""
    hurried = Tunables(target_interactive_s=0.02, target_stream_s=0.02)
    machine = SimMachine(
        12, 16, params=Params(poison=True), eos_token=0, cost=CostModel(base_s=0.01),
        tunables=hurried if reason is ExitReason.REFUSED else None,
        faults=FaultPlan(0, {}, (Fault("row", pid=1),) if reason is ExitReason.ERROR else ()),
    )  # fmt: skip
    options: dict[ExitReason, dict[str, object]] = {
        ExitReason.STOP: {},
        ExitReason.PAGES: {"max_pages": 2, "ignore_eos": True},
        ExitReason.DEADLINE: {"deadline_s": 0.03, "ignore_eos": True},
    }
    if reason is ExitReason.REFUSED:  # another holds nearly all frames, and its reader is quick
        others = tuple(range(100, 136))
        machine.spawn(others, 8, reader=Reader(tokens_per_s=1000.0), ignore_eos=True)
        machine.run(until_s=0.03)
    if reason is ExitReason.SUSPENDED:
        machine.start(ImageDir("/"))
    limit = 38 if reason is ExitReason.STOP else 20
    chosen = options.get(reason, {"ignore_eos": True})
    pid = machine.spawn(PROMPT[:6], limit, reader=Reader(tokens_per_s=1000.0), **chosen)
    machine.run(until_s=0.025)
    for signal in {ExitReason.TERMINATED: [Signal.TERM], ExitReason.KILLED: [Signal.KILL]}.get(
        reason, []
    ):
        machine.call(Kill(pid, signal))
    if reason is ExitReason.SUSPENDED:
        machine.start(Suspend(pid, "image"))
    return machine, pid


@pytest.mark.parametrize("reason", ExitReason)
def test_g7_every_exit_has_a_reason(reason: ExitReason) -> None:
    """G7: its reader, who waits for it, the trace and the counters all say why, once each."""
    machine, pid = to_end(reason)
    machine.run()
    assert machine.ended[pid].reason is reason
    ends = [e for e in machine.kernel.trace.since(0, 1 << 30, pid) if e.kind == "exit"]
    assert [dict(end.detail)["reason"] for end in ends] == [reason.value]
    assert machine.kernel.counters.exits[reason.value] == 1
    told = machine.call(Wait(pid))
    assert told.reason is reason and bool(told.error) == (
        reason in (ExitReason.ERROR, ExitReason.REFUSED)
    )
    machine.finish()
