"""Whatever happens to a file or to its disk: a suspended process is in its image or goes on, an
image that cannot be trusted is refused, and a page that is lost is computed again."""

import errno

import pytest

from tokenix.drivers.imagefile import measure
from tokenix.drivers.sampling import SamplingParams
from tokenix.drivers.sim import Fault, FaultPlan
from tokenix.drivers.sim.images import ImageFiles
from tokenix.kernel import audit
from tokenix.kernel.calls import (
    CancelCall,
    Fork,
    ImageDir,
    Images,
    Kill,
    Nice,
    Principal,
    Read,
    Resume,
    SetRlimit,
    Signal,
    Spawn,
    Stat,
    Suspend,
    UnlinkImage,
    Vmstat,
    Wait,
    Write,
)
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.tests.images.lab import Heard, answer, ask, boot, reboot, refusal
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(40, 61))
PATH = "saved/t-default/it.img"
HASTY = Params(poison=True, image_io_s=0.5, image_bytes_per_s=1e9)


def running(**options: object) -> tuple[SimMachine, Pid]:
    machine = boot(**options)  # type: ignore[arg-type]
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.05)
    return machine, pid


def suspended(**options: object) -> SimMachine:
    machine, pid = running(**options)
    ask(machine, Suspend(pid, "it"))
    machine.call(Wait(pid))
    return machine


def expected() -> Heard:
    machine, pid = running()
    machine.run()
    heard = Heard.nothing()
    heard.take(machine, pid)
    return heard


def check_end(machine: SimMachine, pid: Pid) -> None:
    """It says all that it had to say, and nothing is left of it."""
    machine.run()
    heard = Heard.nothing()
    heard.take(machine, pid)
    assert heard == expected()
    machine.call(Wait(pid))


# ---- what is wrong with the file ----


def test_every_flipped_byte_of_a_head_is_refused() -> None:
    machine = suspended()
    files = machine.device.images
    good = files.files[PATH]
    head = measure(good, len(good))
    assert head == 4096
    for place in range(head):
        files.flip(PATH, place, 1 << place % 8)
        assert refusal(machine, Resume("it")) in (errno.EBADMSG, errno.EINVAL), place
        files.files[PATH] = good
    assert machine.call(Vmstat())["images.refused"] == head
    assert not machine.kernel.processes, "nothing was served"
    check_end(machine, ask(machine, Resume("it")))


def test_a_damaged_page_is_computed_again() -> None:
    """Each page in turn, and all of them."""
    machine = suspended()
    good = machine.device.images.files[PATH]
    pages = (len(good) - 4096) // 4096
    assert pages >= 5
    for page in [*range(pages), None]:
        files = ImageFiles(files={PATH: good})
        for number in range(pages) if page is None else [page]:
            files.flip(PATH, 4096 * (1 + number) + 17)
        after = boot(files)
        pid = ask(after, Resume("it"))
        assert after.call(Vmstat())["images.pages_lost"] == pages - (page or 0)
        check_end(after, pid)
        audit.check_idle(after.kernel)


def test_a_truncated_file_is_served_as_far_as_it_goes() -> None:
    machine = suspended()
    good = machine.device.images.files[PATH]
    for size in (0, 1, 47, 48, 49, 1000, 4095, 4096, 4097, 4096 * 2, 4096 * 3 + 99, len(good) - 1):
        after = boot(ImageFiles(files={PATH: good[:size]}))
        if size < 4096:
            assert refusal(after, Resume("it")) == errno.EBADMSG
        else:
            check_end(after, ask(after, Resume("it")))


def test_a_file_of_something_else_is_refused() -> None:
    for data in (b"", b"hello", b"\0" * 9000, b"TKXIMAGE" + b"\0" * 9000):
        machine = boot(ImageFiles(files={PATH: data}))
        assert refusal(machine, Resume("it")) in (errno.EBADMSG, errno.EINVAL)


def test_another_model_or_format_is_refused() -> None:
    for field, text in (("model", "another model"), ("kv_dtype", "boot with f16")):
        machine, pid = running()
        machine.kernel.images.kv_dtype = "f16"
        ask(machine, Suspend(pid, "it"))
        setattr(machine.kernel.images, field, "int8")
        with pytest.raises(OSError, match=text) as why:
            ask(machine, Resume("it"))
        assert why.value.errno == errno.EINVAL
        assert machine.call(Images()), "the right machine can have it"


def test_a_file_that_vanished_is_not_there() -> None:
    machine = suspended()
    machine.device.images.files.clear()
    assert refusal(machine, Resume("it")) == errno.ENOENT
    assert machine.call(Images()) == ()
    assert refusal(machine, UnlinkImage("it")) == errno.ENOENT


def test_one_that_vanished_has_the_directory_looked_at_again() -> None:
    """The others that vanished with it are not listed either, and what came is."""
    machine = suspended()
    other = machine.call(Spawn(PROMPT[1:], max_tokens=30))
    ask(machine, Suspend(other, "other"))
    machine.call(Wait(other))
    files = machine.device.images.files
    moved = files.pop(PATH)
    files.clear()
    files["saved/t-default/moved.img"] = moved
    files["saved/t-default/%6Fdd.img"] = files["saved/stray.img"] = moved
    assert refusal(machine, Resume("it")) == errno.ENOENT
    while machine.kernel.images.jobs:
        machine.advance()
    assert [info.name for info in machine.call(Images())] == ["moved"]
    check_end(machine, ask(machine, Resume("moved")))
    ask(machine, Suspend(machine.call(Spawn(PROMPT[1:], max_tokens=30)), "other"))


def test_what_is_no_image_is_told_once_and_never_listed() -> None:
    machine = suspended()
    files = machine.device.images.files
    files["saved/stray.img"] = files["idle/\u00b2.img"] = b"x"
    for resume in (False, True):
        machine = reboot(machine, resume=resume)
        told = [e for e in machine.kernel.trace.since(0, 999) if e.kind == "image-strays"]
        assert [dict(event.detail) for event in told] == [{"count": 2, "first": "idle/\u00b2.img"}]
        assert [info.name for info in machine.call(Images())] == ["it"]
        assert machine.call(Vmstat())["images.count"] == 1
        assert len(machine.device.images.files) == 3, "they are left alone"


# ---- what is wrong with the disk ----


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        (Fault("fail_save"), errno.EIO),
        (Fault("hang_save"), errno.ETIMEDOUT),
        (Fault("delay_save", delay_s=5.0), errno.ETIMEDOUT),
    ],
)
def test_who_cannot_be_saved_goes_on(fault: Fault, number: int) -> None:
    machine, pid = running(params=HASTY, faults=FaultPlan(0, {}, (fault,)))
    assert refusal(machine, Suspend(pid, "it")) == number
    assert not machine.call(Stat(pid)).held
    check_end(machine, pid)
    machine.run(until_s=machine.now_s + 10)
    while machine.advance(machine.now_s + 1) and machine.now_s < 30:
        pass
    if fault.kind == "delay_save":
        assert not machine.device.images.files, "a file that came too late is removed"
        audit.check_idle(machine.kernel)
    elif fault.kind == "hang_save":
        assert refusal(machine, Resume("it")) == errno.EBUSY, "nobody knows what is in it"


@pytest.mark.parametrize(
    "odd",
    [{"name": "\udc80"}, {"sampling": SamplingParams(seed=1 << 70)}],
    ids=str,
)
def test_what_has_no_place_in_a_file_is_said_and_goes_on(odd: dict[str, object]) -> None:
    machine = boot(params=Params(poison=True, image_idle_s=1.0))
    for keep_open in (False, True):
        pid = machine.call(Spawn(PROMPT, max_tokens=9, keep_open=keep_open, **odd))  # type: ignore[arg-type]
        machine.run(until_s=machine.now_s + 0.02)
        assert refusal(machine, Suspend(pid, "it")) == errno.EINVAL
        machine.run(until_s=machine.now_s + 5)
        assert len(machine.call(Read(pid)).outputs) == 9
    assert not machine.device.images.files
    machine.call(Write(pid, eof=True))


def test_a_full_disk_is_said_and_the_process_goes_on() -> None:
    machine, pid = running(files=ImageFiles(capacity_bytes=5000))
    assert refusal(machine, Suspend(pid, "it")) == errno.ENOSPC
    assert not machine.device.images.files
    check_end(machine, pid)


def test_all_images_together_are_bounded() -> None:
    params = Params(poison=True, max_image_bytes=70_000)
    machine, pid = running(params=params)
    ask(machine, Suspend(pid, "it"))
    other = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=machine.now_s + 0.05)
    with pytest.raises(OSError, match="max_image_bytes=70000") as why:
        ask(machine, Suspend(other, "another"))
    assert why.value.errno == errno.ENOSPC and other in machine.kernel.processes
    ask(machine, UnlinkImage("it"))
    assert ask(machine, Suspend(other, "another"))
    assert machine.call(Vmstat())["images.bytes"] <= 70_000


@pytest.mark.parametrize("kind", ["fail_load", "hang_load", "delay_load"])
def test_a_head_that_cannot_be_read(kind: str) -> None:
    files = suspended().device.images
    plan = FaultPlan(0, {}, (Fault(kind, nth=0, delay_s=5.0),))  # type: ignore[arg-type]
    machine = boot(files, params=HASTY, faults=plan)
    number = errno.EIO if kind == "fail_load" else errno.ETIMEDOUT
    assert refusal(machine, Resume("it")) == number
    machine.run(until_s=10.0)
    while machine.now_s < 10.0:
        machine.advance(10.0)
    assert PATH in machine.device.images.files, "it is still there"
    if kind != "hang_load":
        check_end(machine, ask(machine, Resume("it")))
        audit.check_idle(machine.kernel)


@pytest.mark.parametrize("kind", ["fail_load", "hang_load", "delay_load"])
def test_pages_that_cannot_be_read_are_computed_again(kind: str) -> None:
    files = suspended().device.images
    plan = FaultPlan(0, {}, (Fault(kind, nth=1, delay_s=5.0),))  # type: ignore[arg-type]
    machine = boot(files, params=HASTY, faults=plan)
    check_end(machine, ask(machine, Resume("it")))
    while machine.now_s < 20.0:
        machine.advance(20.0)
    if kind != "hang_load":
        audit.check_idle(machine.kernel)


def test_pages_that_were_written_badly_are_found_out() -> None:
    plan = FaultPlan(0, {}, (Fault("corrupt_image", pages=(1, 3)),))
    machine = suspended(faults=plan)
    after = reboot(machine)
    pid = ask(after, Resume("it"))
    assert after.process(pid).furthest and after.kernel.images.stats.pages_lost >= 4
    check_end(after, pid)


def test_there_is_one_directory_and_root_names_it() -> None:
    machine = SimMachine(8, 8)
    assert refusal(machine, ImageDir("/"), Principal("red")) == errno.EPERM
    ask(machine, ImageDir("/"))
    assert refusal(machine, ImageDir("/")) == errno.EBUSY


# ---- what else happens meanwhile ----


def mid_save() -> tuple[SimMachine, Pid, int]:
    """A suspend whose file is being written."""
    machine, pid = running()
    call = machine.start(Suspend(pid, "it"))
    while not machine.kernel.images.is_leaving(pid):
        machine.advance()
    return machine, pid, call


@pytest.mark.parametrize("signal", [Signal.KILL, Signal.TERM])
def test_killed_while_it_is_saved(signal: Signal) -> None:
    machine, pid, call = mid_save()
    machine.call(Kill(pid, signal))
    with pytest.raises(OSError, match="before it was saved") as why:
        answer(machine, call)
    assert why.value.errno == errno.ESRCH
    heard = Heard.nothing()
    heard.take(machine, pid)
    assert len(heard.outputs) > 3 and heard.outputs == expected().outputs[: len(heard.outputs)]
    assert heard.reason in ("killed", "terminated"), "what it had said can be read"
    machine.call(Wait(pid))
    for _ in range(5):
        machine.advance(machine.now_s + 1)
    assert not machine.device.images.files and machine.call(Images()) == ()
    audit.check_idle(machine.kernel)


def test_nothing_changes_while_it_is_saved() -> None:
    machine, pid, call = mid_save()
    for request in (
        Write(pid, (1,)), Fork(pid), Nice(pid, 3), SetRlimit(pid, max_tokens=31),
        Suspend(pid, "other"),
    ):  # fmt: skip
        assert refusal(machine, request) == errno.EBUSY, request
    assert machine.call(Read(pid, block=False)).outputs == ()
    answer(machine, call)


@pytest.mark.parametrize("stopped", [False, True])
def test_signals_while_it_is_saved_are_not_lost(stopped: bool) -> None:
    machine, pid, call = mid_save()
    machine.call(Kill(pid, Signal.STOP))
    if not stopped:
        machine.call(Kill(pid, Signal.CONT))
    answer(machine, call)
    saves = [event for event in machine.kernel.trace.since(0, 999, pid) if event.kind == "save"]
    assert len(saves) == (2 if stopped else 1)
    pid = ask(machine, Resume("it"))
    machine.run(until_s=machine.now_s + 0.01)
    assert machine.call(Stat(pid)).held == (("signal",) if stopped else ())
    machine.call(Kill(pid, Signal.CONT))
    check_end(machine, pid)


@pytest.mark.parametrize("end", ["fails", "killed", "cancelled"])
def test_a_second_writing_that_comes_to_nothing(end: str) -> None:
    """What the first has written goes: the process is not in it any more."""
    fault = Fault("fail_save", nth=1 if end == "fails" else 99)
    machine, pid = running(faults=FaultPlan(0, {}, (fault,)))
    call = machine.start(Suspend(pid, "it"))
    while not machine.kernel.images.is_leaving(pid):
        machine.advance()
    machine.call(Kill(pid, Signal.STOP))
    while not machine.device.images.files:
        machine.advance()
    if end == "killed":
        machine.call(Kill(pid, Signal.KILL))
    elif end == "cancelled":
        machine.call(CancelCall(call))
    with pytest.raises(OSError):
        answer(machine, call)
    while machine.kernel.images.jobs:
        machine.advance()
    assert not machine.device.images.files and machine.call(Images()) == ()
    if end != "killed":
        machine.call(Kill(pid, Signal.CONT))
        check_end(machine, pid)


def test_the_kernel_dies_while_it_saves() -> None:
    machine, _, _ = mid_save()
    after = reboot(machine)
    assert after.call(Images()) == () and refusal(after, Resume("it")) == errno.ENOENT


def test_a_suspend_can_be_taken_back() -> None:
    for early in (True, False):
        if early:
            machine, pid = running()
            call = machine.start(Suspend(pid, "it"))
        else:
            machine, pid, call = mid_save()
        assert machine.call(CancelCall(call), Principal("red")) is False
        assert machine.call(CancelCall(call)) is True
        assert machine.call(CancelCall(call)) is False
        with pytest.raises(OSError) as why:
            answer(machine, call)
        assert why.value.errno == errno.EINTR
        check_end(machine, pid)
        while machine.kernel.images.jobs:
            machine.advance()
        assert not machine.device.images.files


def test_a_resume_can_be_taken_back() -> None:
    for steps in range(1, 5):
        machine = suspended()
        call = machine.start(Resume("it"))
        for _ in range(steps):
            machine.advance(machine.now_s + 1e-4)
        taken = machine.call(CancelCall(call))
        while machine.kernel.images.jobs:
            machine.advance()
        if taken:
            assert machine.replies[call].error is not None and not machine.kernel.processes
            audit.check_idle(machine.kernel)
            check_end(machine, ask(machine, Resume("it")))
        else:
            check_end(machine, machine.replies[call].value)
