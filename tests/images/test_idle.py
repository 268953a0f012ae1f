"""Processes that wait for input: their images are written behind their back, and outlive the
kernel if that is asked for."""

import errno

import pytest

from tokenix.drivers.sim import Fault, FaultPlan
from tokenix.drivers.sim.images import ImageFiles
from tokenix.kernel import audit
from tokenix.kernel.calls import (
    Images,
    Kill,
    Principal,
    Ps,
    Read,
    Resume,
    Signal,
    Spawn,
    Stat,
    Suspend,
    Vmstat,
    Wait,
    Write,
)
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.tests.images.lab import Heard, Words, ask, boot, reboot
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(40, 61))
RED = Principal("red")
IDLE = Params(poison=True, image_idle_s=2.0)


def session(
    machine: SimMachine, who: Principal = RED, prompt: tuple[int, ...] = PROMPT
) -> tuple[Pid, Heard]:
    """A chat that has had its first answer, all of it read."""
    heard = Heard.nothing()
    pid = machine.call(Spawn(prompt, max_tokens=9, keep_open=True, text=Words(), name="chat"), who)
    machine.run(until_s=machine.now_s + 1.0)
    heard.take(machine, pid)
    return pid, heard


def second_turn(machine: SimMachine, pid: Pid, heard: Heard) -> Heard:
    machine.call(Write(pid, (5, 6, 7), eof=True))
    machine.run()
    heard.take(machine, pid)
    return heard


@pytest.fixture
def expected() -> Heard:
    machine = boot()
    return second_turn(machine, *session(machine))


def files_of(machine: SimMachine) -> list[str]:
    return list(machine.device.images.files)


def test_it_is_written_once_a_turn_and_goes_when_it_runs_on() -> None:
    machine = boot(params=IDLE)
    pid, heard = session(machine)
    machine.run(until_s=2.9)
    assert not files_of(machine)
    machine.run(until_s=20.0)
    assert files_of(machine) == ["idle/1.img"] and machine.kernel.images.stats.saved == 1
    assert machine.call(Images()) == (), "nobody can resume it by name"
    machine.call(Write(pid, (1,)))
    machine.run(until_s=21.0)
    assert not files_of(machine)
    heard.take(machine, pid)
    machine.run(until_s=40.0)
    assert files_of(machine) == ["idle/2.img"]
    machine.call(Kill(pid, Signal.KILL))
    machine.run(until_s=41.0)
    machine.step([])
    while machine.kernel.images.jobs:
        machine.advance()
    assert not files_of(machine)
    machine.call(Wait(pid))
    audit.check_idle(machine.kernel)


def test_without_being_asked_none_is_written() -> None:
    machine = boot()
    session(machine)
    machine.run(until_s=100.0)
    assert not files_of(machine)


def test_nobody_else_is_held_up() -> None:
    """Whoever does wait for an answer of the disk goes first."""
    machine = boot(params=IDLE)
    pids = [session(machine, prompt=PROMPT[n:])[0] for n in range(3)]
    machine.run(until_s=20.0)
    assert len(files_of(machine)) == 3
    saves = [event.time_s for event in machine.kernel.trace.since(0, 999) if event.kind == "save"]
    assert len(set(saves)) == 3, "one after another"
    assert len(set(machine.kernel.images.kept)) == len(pids)


def test_a_read_makes_it_new() -> None:
    machine = boot(params=IDLE)
    pid = machine.call(Spawn(PROMPT, max_tokens=9, keep_open=True))
    machine.run(until_s=10.0)
    assert files_of(machine) == ["idle/1.img"]
    machine.call(Read(pid, 4))
    machine.run(until_s=20.0)
    assert files_of(machine) == ["idle/2.img"]
    after = reboot(machine, resume=True, params=IDLE)
    (stat,) = after.call(Ps()).processes
    assert stat.unread_tokens == 5, "what was read is not read again"


def test_a_restart_finds_them(expected: Heard) -> None:
    machine = boot(params=IDLE)
    pid, heard = session(machine)
    session(machine, Principal("blue"), PROMPT[3:])
    machine.run(until_s=20.0)
    before = machine.call(Stat(pid))
    for _ in range(3):  # restarts without a turn in between change nothing
        machine = reboot(machine, resume=True, params=IDLE)
        machine.run(until_s=machine.now_s + 10.0)
        stats = machine.call(Ps()).processes
        assert {stat.tenant for stat in stats} == {"red", "blue"}
        (mine,) = machine.call(Ps(), RED).processes
        assert (mine.name, mine.held, mine.prompt_tokens) == ("chat", ("input",), len(PROMPT))
        assert mine.output_tokens == before.output_tokens
        assert len(files_of(machine)) == 2 and machine.kernel.images.stats.saved == 0
    (other,) = machine.call(Ps(), Principal("blue")).processes
    machine.call(Kill(other.pid, Signal.KILL))
    assert second_turn(machine, mine.pid, heard) == expected
    for pid in (other.pid, mine.pid):
        machine.call(Wait(pid))
    while machine.kernel.images.jobs:
        machine.advance()
    assert not files_of(machine)
    audit.check_idle(machine.kernel)


def test_their_pages_come_too() -> None:
    machine = boot(params=IDLE)
    _, heard = session(machine)
    machine.run(until_s=20.0)
    after = reboot(machine, resume=True)
    (mine,) = after.call(Ps()).processes
    assert mine.computed_tokens >= 24 and mine.clean_pages == mine.pages
    second_turn(after, mine.pid, heard)


def test_otherwise_they_are_wiped_and_the_suspended_are_not() -> None:
    machine = boot(params=IDLE)
    session(machine)
    kept = machine.call(Spawn(PROMPT[5:], max_tokens=9), RED)
    ask(machine, Suspend(kept, "it"))
    machine.run(until_s=20.0)
    assert len(files_of(machine)) == 2
    after = reboot(machine)
    assert files_of(after) == ["saved/t-red/it.img"] and not after.call(Ps()).processes
    assert ask(after, Resume("it"), RED)


def test_a_suspended_session_leaves_no_idle_image() -> None:
    machine = boot(params=IDLE)
    pid, _ = session(machine)
    machine.run(until_s=20.0)
    ask(machine, Suspend(pid, "it"))
    while machine.kernel.images.jobs:
        machine.advance()
    assert files_of(machine) == ["saved/t-red/it.img"]


def test_a_damaged_one_is_refused_and_the_others_come() -> None:
    machine = boot(params=IDLE)
    for n in range(3):
        session(machine, prompt=PROMPT[n:])
    machine.run(until_s=20.0)
    machine.device.images.flip("idle/2.img", 77)
    after = reboot(machine, resume=True)
    assert len(after.call(Ps()).processes) == 2 and after.call(Vmstat())["images.refused"] == 1
    assert files_of(after) == ["idle/1.img", "idle/3.img"]


def test_those_of_another_model_wait_for_it() -> None:
    machine = boot(params=IDLE)
    session(machine)
    machine.run(until_s=5.0)
    machine.kernel.images.model = "another"
    session(machine, prompt=PROMPT[1:])
    machine.run(until_s=20.0)
    after = reboot(machine, resume=True)
    assert len(after.call(Ps()).processes) == 1 and len(files_of(after)) == 2


@pytest.mark.parametrize("kind", ["fail_load", "hang_load"])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_bad_disk_does_not_keep_a_machine_from_booting(kind: str, nth: int) -> None:
    machine = boot(params=IDLE)
    for n in range(2):
        session(machine, prompt=PROMPT[n:])
    machine.run(until_s=20.0)
    plan = FaultPlan(0, {}, (Fault(kind, nth=nth),))  # type: ignore[arg-type]
    after = reboot(machine, resume=True, faults=plan)
    assert len(after.call(Ps()).processes) == (2 if nth == 1 else 1)


@pytest.mark.parametrize("kind", ["fail_save", "hang_save", "delay_save"])
def test_a_session_does_not_notice_a_bad_disk(kind: str, expected: Heard) -> None:
    plan = FaultPlan(0, {}, (Fault(kind, delay_s=60.0),))  # type: ignore[arg-type]
    machine = boot(params=IDLE, faults=plan)
    pid, heard = session(machine)
    machine.run(until_s=7.0)
    assert second_turn(machine, pid, heard) == expected
    assert machine.kernel.images.stats.failed == (kind == "fail_save")
    assert not machine.kernel.images.kept
    if kind != "hang_save":
        while machine.kernel.images.jobs:
            machine.advance()
        assert not files_of(machine)


def test_input_while_it_is_being_written(expected: Heard) -> None:
    machine = boot(params=IDLE)
    pid, heard = session(machine)
    while not machine.kernel.images.jobs:
        machine.advance()
    assert second_turn(machine, pid, heard) == expected
    machine.call(Wait(pid))
    while machine.kernel.images.jobs:
        machine.advance()
    assert not files_of(machine)
    audit.check_idle(machine.kernel)


def test_a_full_disk_costs_the_image_only(expected: Heard) -> None:
    machine = boot(ImageFiles(capacity_bytes=100), params=IDLE)
    pid, heard = session(machine)
    machine.run(until_s=20.0)
    assert not files_of(machine)
    assert second_turn(machine, pid, heard) == expected
    small = boot(params=Params(poison=True, image_idle_s=2.0, max_image_bytes=100))
    session(small)
    small.run(until_s=20.0)
    events = [event.kind for event in small.kernel.trace.since(0, 999)]
    assert events.count("no-image") == 3 and not files_of(small), "at 2, 7 and 17 s"


def test_it_is_tried_again_while_it_waits(expected: Heard) -> None:
    """A disk that was full for a moment: 5, 10, 20 ... seconds later, and no more often."""
    files = ImageFiles(capacity_bytes=100)
    machine = boot(files, params=IDLE)
    pid, heard = session(machine)
    machine.run(until_s=30.0)
    assert machine.kernel.images.stats.failed == 3 and not files_of(machine)
    files.capacity_bytes = 1 << 20
    machine.run(until_s=45.0)
    assert machine.kernel.images.stats.saved == 1 and len(files_of(machine)) == 1
    machine.run(until_s=1e4)
    assert machine.kernel.images.stats.saved == 1, "once it is there it stays"
    after = reboot(machine, resume=True, params=IDLE)
    (stat,) = after.call(Ps()).processes
    assert second_turn(machine, pid, Heard(list(heard.outputs), list(heard.ends), heard.text))
    assert second_turn(after, stat.pid, heard) == expected


def test_it_is_not_tried_for_ever_nor_for_who_runs_on() -> None:
    params = Params(poison=True, image_idle_s=2.0, image_retries=4)
    machine = boot(ImageFiles(capacity_bytes=100), params=params)
    pid, _ = session(machine)
    machine.run(until_s=1e4)
    assert machine.kernel.images.stats.failed == 1 + 4
    other, _ = session(machine, prompt=PROMPT[1:])
    machine.run(until_s=machine.now_s + 4.0)
    assert machine.kernel.images.stats.failed == 6
    machine.call(Kill(other, Signal.KILL))
    machine.run(until_s=machine.now_s + 1e4)
    assert machine.kernel.images.stats.failed == 6, "it is gone"
    machine.call(Kill(pid, Signal.KILL))
    for each in (pid, other):
        machine.call(Wait(each))
    audit.check_idle(machine.kernel)


def test_behind_an_attempt_that_hangs_there_is_no_other() -> None:
    """It keeps the slots that it was given."""
    plan = FaultPlan(0, {}, (Fault("hang_save"),))
    machine = boot(params=IDLE, faults=plan)
    session(machine)
    machine.run(until_s=1000.0)
    saves = [event for event in machine.kernel.trace.since(0, 999) if event.kind == "save"]
    assert len(saves) == 1 and len(machine.kernel.images.jobs) == 1
    assert machine.kernel.images.next_wake_s() is not None, "should the disk come back"


def test_a_process_cannot_be_resumed_twice_by_its_idle_image() -> None:
    machine = boot(params=IDLE)
    session(machine)
    machine.run(until_s=20.0)
    for name in ("1", "idle/1", "../idle/1"):
        with pytest.raises(OSError) as why:
            ask(machine, Resume(name))
        assert why.value.errno in (errno.ENOENT, errno.EINVAL)
