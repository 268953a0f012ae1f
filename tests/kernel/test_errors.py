"""Every error of every call, by table: what was asked, on what machine, and which errno."""

import errno
import math

import pytest

from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.calls import (
    CancelCall,
    Fork,
    KernelError,
    Kill,
    Nice,
    Principal,
    Read,
    Request,
    SetRlimit,
    ShmOpen,
    ShmUnlink,
    Signal,
    Spawn,
    Stat,
    Sysctl,
    Trace,
    Wait,
    Write,
)
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Reader
from tokenix.tests.sim.machine import ROOT, SimMachine

RED = Principal("red")
LIVING, OPEN, ENDED, FOREIGN, NOBODY = Pid(1), Pid(2), Pid(3), Pid(4), Pid(99)
"""On `machine`: red's; red's with an open stdin; red's and read to its end; blue's; never born."""


@pytest.fixture
def machine() -> SimMachine:
    params = Params(poison=True, max_processes=6, max_zombies=6, stdin_tokens=20, max_forks=3)
    machine = SimMachine(16, 16, params=params, max_context_tokens=60)
    for who, keep_open in ((RED, False), (RED, True), (RED, False), (Principal("blue"), False)):
        machine.call(Spawn((1, 2, 3), max_tokens=5, keep_open=keep_open), who)
    machine.follow(ENDED)
    machine.call(Kill(ENDED, Signal.KILL))
    return machine


def bad(**fields: object) -> Spawn:
    return Spawn(**{"tokens": (1,), "max_tokens": 2, **fields})  # type: ignore[arg-type]


def sampled(**fields: object) -> Spawn:
    return bad(sampling=SamplingParams(**fields))  # type: ignore[arg-type]


CASES: list[tuple[Request, int]] = [
    (bad(tokens=()), errno.EINVAL),
    (bad(tokens=(256,)), errno.EINVAL),
    (bad(tokens=(-1,)), errno.EINVAL),
    (bad(max_tokens=0), errno.EINVAL),
    (bad(min_tokens=-1), errno.EINVAL),
    (bad(max_pages=0), errno.EINVAL),
    (bad(deadline_s=0.0), errno.EINVAL),
    (bad(deadline_s=math.inf), errno.EINVAL),
    (bad(deadline_s=math.nan), errno.EINVAL),
    (bad(reader=Reader(tokens_per_s=0.0)), errno.EINVAL),
    (bad(reader=Reader(tokens_per_s=math.nan)), errno.EINVAL),
    (bad(nice=20), errno.EINVAL),
    (bad(nice=-21), errno.EINVAL),
    (bad(nice=-1), errno.EPERM),
    (sampled(temperature=-0.1), errno.EINVAL),
    (sampled(temperature=math.nan), errno.EINVAL),
    (sampled(top_p=0.0), errno.EINVAL),
    (sampled(top_p=1.1), errno.EINVAL),
    (sampled(top_k=-1), errno.EINVAL),
    (sampled(min_p=1.5), errno.EINVAL),
    (sampled(repetition_penalty=0.0), errno.EINVAL),
    (sampled(presence_penalty=math.inf), errno.EINVAL),
    (sampled(logprobs=65), errno.EINVAL),
    (sampled(logit_bias=((256, 1.0),)), errno.EINVAL),
    (sampled(logit_bias=((1, math.nan),)), errno.EINVAL),
    (bad(tokens=(1,) * 59), errno.E2BIG),
    (bad(tokens=(1,) * 70), errno.E2BIG),
    (bad(max_tokens=60), errno.E2BIG),
    (bad(tokens=(1,) * 9, max_pages=2), errno.E2BIG),
    (Read(NOBODY), errno.ESRCH),
    (Read(FOREIGN), errno.ESRCH),
    (Read(LIVING, max_tokens=0), errno.EINVAL),
    (Read(ENDED), errno.EPIPE),
    (Write(NOBODY, (1,)), errno.ESRCH),
    (Write(FOREIGN, (1,)), errno.ESRCH),
    (Write(ENDED, (1,)), errno.ESRCH),
    (Write(LIVING, (1,)), errno.EPIPE),
    (Write(OPEN, (256,)), errno.EINVAL),
    (Write(OPEN, (1,), (300,)), errno.EINVAL),
    (Write(OPEN, (1,) * 21), errno.E2BIG),
    (Fork(NOBODY), errno.ESRCH),
    (Fork(FOREIGN), errno.ESRCH),
    (Fork(ENDED), errno.ESRCH),
    (Fork(LIVING, 0), errno.EINVAL),
    (Fork(LIVING, 4), errno.EINVAL),
    (Fork(LIVING, 2, (1,)), errno.EINVAL),
    (Fork(LIVING, 3), errno.EAGAIN),
    (Wait(NOBODY), errno.ECHILD),
    (Wait(FOREIGN), errno.ECHILD),
    (Kill(NOBODY, Signal.KILL), errno.ESRCH),
    (Kill(FOREIGN, Signal.STOP), errno.ESRCH),
    (Nice(NOBODY, 1), errno.ESRCH),
    (Nice(FOREIGN, 1), errno.ESRCH),
    (Nice(ENDED, 1), errno.ESRCH),
    (Nice(LIVING, 20), errno.EINVAL),
    (Nice(LIVING, -1), errno.EPERM),
    (SetRlimit(NOBODY, max_tokens=3), errno.ESRCH),
    (SetRlimit(FOREIGN, max_tokens=3), errno.ESRCH),
    (SetRlimit(ENDED, max_tokens=3), errno.ESRCH),
    (SetRlimit(LIVING, max_tokens=0), errno.EINVAL),
    (SetRlimit(LIVING, max_tokens=58), errno.E2BIG),
    (SetRlimit(LIVING, max_pages=0), errno.EINVAL),
    (SetRlimit(LIVING, deadline_s=0.0), errno.EINVAL),
    (SetRlimit(LIVING, deadline_s=math.nan), errno.EINVAL),
    (ShmOpen("x", (1, 2)), errno.EINVAL),
    (ShmOpen("x", (300,) * 8), errno.EINVAL),
    (ShmOpen("x", (1,) * 40), errno.EDQUOT),
    (ShmUnlink("x"), errno.ENOENT),
    (Stat(NOBODY), errno.ESRCH),
    (Stat(FOREIGN), errno.ESRCH),
    (Sysctl("no.such"), errno.ENOENT),
    (Sysctl("policy", "fcfs"), errno.EPERM),
    (Sysctl("weights.red", 2.0), errno.EPERM),
    (Trace(), errno.EPERM),
    (Trace(FOREIGN), errno.ESRCH),
    (Trace(NOBODY), errno.ESRCH),
]

ROOT_CASES: list[tuple[Request, int]] = [
    (Sysctl("policy", "none"), errno.EINVAL),
    (Sysctl("kernel.max_forks", 3), errno.EPERM),
    (Sysctl("rates.step_s", 3.0), errno.EPERM),
    (Sysctl("sched.margin_s", -1.0), errno.EINVAL),
    (Sysctl("sched.step_tokens", "many"), errno.EINVAL),
    (Sysctl("sched.step_tokens", math.nan), errno.EINVAL),
    (Sysctl("sched.step_tokens", math.inf), errno.EINVAL),
    (Sysctl("sched.margin_s", math.nan), errno.EINVAL),
    (Sysctl("weights.a", 0.0), errno.EINVAL),
    (Sysctl("weights.a", "heavy"), errno.EINVAL),
    (Sysctl("weights.a", math.nan), errno.EINVAL),
    (Stat(NOBODY), errno.ESRCH),
]


def check(machine: SimMachine, request: Request, number: int, who: Principal) -> None:
    """It fails so, and changes nothing."""
    view, born = machine.kernel.memory.view(), machine.kernel.counters.spawned
    with pytest.raises(KernelError) as failed:
        machine.call(request, who)
    assert errno.errorcode[failed.value.errno or 0] == errno.errorcode[number]
    assert len(failed.value.message) > 10 and failed.value.message.isprintable()
    assert isinstance(failed.value.as_os_error(), OSError)
    assert (view, born) == (machine.kernel.memory.view(), machine.kernel.counters.spawned)


@pytest.mark.parametrize(("request_", "number"), CASES, ids=[str(case[0])[:70] for case in CASES])
def test_tenants_are_refused(machine: SimMachine, request_: Request, number: int) -> None:
    check(machine, request_, number, RED)


@pytest.mark.parametrize(("request_", "number"), ROOT_CASES)
def test_root_is_refused(machine: SimMachine, request_: Request, number: int) -> None:
    check(machine, request_, number, ROOT)


def test_a_tenant_sees_its_own_weight_only(machine: SimMachine) -> None:
    assert machine.call(Sysctl("weights.red"), RED) == 1.0
    for tenant, weight in (("red", 2.0), ("blue", 3.0)):
        assert machine.call(Sysctl("weights." + tenant, weight), ROOT) == 1.0
    assert machine.call(Sysctl("weights.red"), RED) == 2.0
    check(machine, Sysctl("weights.blue"), errno.ENOENT, RED)
    seen = [{n for n in machine.call(Sysctl(), who) if "weights" in n} for who in (RED, ROOT)]
    assert seen == [{"weights.red"}, {"weights.red", "weights.blue"}]


def test_a_request_keeps_the_tokens_that_it_was_made_with(machine: SimMachine) -> None:
    prompt, more = [1, 2], [3]
    spawn, write = Spawn(prompt, max_tokens=2), Write(OPEN, more)  # type: ignore[arg-type]
    prompt.append(256)
    more[0] = -1
    assert (spawn.span, write.span) == ((1, 2), (3, 3))
    assert machine.process(machine.call(spawn, RED)).tokens == [1, 2]
    assert machine.call(write, RED) == 1


def test_too_many_processes(machine: SimMachine) -> None:
    for _ in range(2):
        machine.call(bad(), RED)
    check(machine, bad(), errno.EAGAIN, RED)
    check(machine, ShmOpen("x", (1,) * 8), errno.EAGAIN, RED)


def test_too_many_blocked_calls() -> None:
    machine = SimMachine(8, 8, params=Params(max_waiting_calls=2))
    pid = machine.call(bad(max_tokens=9))
    machine.start(Read(pid))
    machine.start(Wait())
    for request in (Read(pid), Wait(pid)):
        check(machine, request, errno.EAGAIN, ROOT)


def test_a_segment_exists_once_and_needs_the_cache(machine: SimMachine) -> None:
    machine.start(ShmOpen("x", (1,) * 8), RED)
    machine.run(until_s=1.0)
    check(machine, ShmOpen("x", (1,) * 8), errno.EEXIST, RED)
    check(machine, ShmUnlink("x"), errno.ENOENT, ROOT)
    bare = SimMachine(16, 16, params=Params(prefix_cache=False))
    check(bare, ShmOpen("x", (1,) * 8), errno.EINVAL, ROOT)


def test_overload_says_when_to_come_again() -> None:
    machine = SimMachine(400, 16)
    with pytest.raises(KernelError) as refused:
        for _ in range(200):
            machine.call(Spawn((1,) * 1000, max_tokens=1))
    assert refused.value.errno == errno.EAGAIN
    assert refused.value.retry_after_s is not None and refused.value.retry_after_s > 0
    assert isinstance(refused.value.as_os_error(), BlockingIOError)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ESRCH, ProcessLookupError),
        (errno.EPERM, PermissionError),
        (errno.ECHILD, ChildProcessError),
        (errno.EPIPE, BrokenPipeError),
        (errno.EAGAIN, BlockingIOError),
        (errno.EINTR, InterruptedError),
        (errno.E2BIG, OSError),
    ],
)
def test_errors_are_pythons_own(number: int, kind: type[OSError]) -> None:
    assert type(KernelError(number, "why").as_os_error()) is kind


@pytest.mark.parametrize("blocked", [Read(LIVING), Wait(LIVING), Wait()])
def test_cancelled_calls_are_interrupted(machine: SimMachine, blocked: Request) -> None:
    """EINTR, by its own principal or root only, and once."""
    machine.call(Kill(LIVING, Signal.STOP), RED)
    if blocked == Wait():
        machine.call(Wait(ENDED), RED)
    call = machine.start(blocked, RED)
    assert call not in machine.replies
    assert machine.call(CancelCall(call), Principal("blue")) is False
    assert machine.call(CancelCall(call), RED) is True
    reply = machine.replies[call]
    assert reply.error is not None and reply.error.errno == errno.EINTR
    assert machine.call(CancelCall(call), RED) is False
    assert not machine.kernel.readers and not machine.kernel.waiters
