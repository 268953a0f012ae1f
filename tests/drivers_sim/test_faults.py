"""Faults on demand come when and where the plan says, and the device reports what it must."""

from dataclasses import replace

import pytest

from tokenix.drivers.ops import (
    CopyDone,
    CopyFailed,
    DeviceFault,
    RowFault,
    Sampled,
)
from tokenix.drivers.sim import Fault, FaultPlan
from tokenix.drivers.sim.faults import Kind
from tokenix.tests.drivers_sim.lab import Lab


def lab_with(*faults: Fault) -> Lab:
    return Lab(faults=FaultPlan(named=faults))


def test_the_nth_copy_out_fails_and_publishes_the_other_pages() -> None:
    lab = lab_with(Fault("fail_out", nth=1, pages=(0, 2)))
    lab.story([0, 1, 2, 3])
    assert isinstance(lab.swap_out((0, 9, 1)), CopyDone)
    failed = lab.swap_out((0, 0, 1), (1, 1, 1), (2, 2, 1))
    assert failed == CopyFailed(failed.ticket, (0, 2), "planned copy fault")
    assert isinstance(lab.swap_in((1, 1, 20)), CopyDone)
    assert isinstance(lab.swap_out((0, 0, 2)), CopyDone)
    assert lab.sim.violations == []


def test_a_copy_in_fails_on_some_pages_and_leaves_junk_there() -> None:
    lab = lab_with(Fault("fail_in", nth=0, pages=(1,)))
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1), (1, 1, 1))
    failed = lab.swap_in((0, 1, 9), (1, 1, 10))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (1,)
    assert lab.sim.violations == []
    proc.move([9, 10, 2, 3])
    assert lab.step(proc) == [RowFault("read badly copied frame 10")]
    proc.move([9, 1, 2, 3])
    proc.done -= 1
    lab.decode(proc, tokens=3)
    assert lab.is_true(proc)


def test_a_copy_fails_whole_if_no_page_is_named() -> None:
    lab = lab_with(Fault("fail_out"))
    lab.story([0, 1, 2, 3])
    for _ in range(2):
        failed = lab.swap_out((0, 0, 1), (1, 1, 1))
        assert isinstance(failed, CopyFailed)
        assert failed.bad == (0, 1)


@pytest.mark.parametrize(
    ("kind", "reason"), [("corrupt_slot", "slot 1 is corrupt"), ("lose_slot", "slot 1 is lost")]
)
def test_a_damaged_slot_is_found_when_it_is_read(kind: Kind, reason: str) -> None:
    lab = lab_with(Fault(kind, nth=0, pages=(1,)))
    lab.story([0, 1, 2, 3])
    assert isinstance(lab.swap_out((0, 0, 1), (1, 1, 1)), CopyDone), "it is silent"
    failed = lab.swap_in((0, 1, 9), (1, 1, 10))
    assert failed == CopyFailed(failed.ticket, (1,), reason)
    assert lab.sim.violations == [], "the kernel could not know"
    assert isinstance(lab.swap_out((1, 1, 2)), CopyDone)
    assert isinstance(lab.swap_in((1, 2, 10)), CopyDone)


def test_every_single_damage_of_a_page_is_found() -> None:
    """The checksum covers all cells, their order and the page's place."""
    lab = Lab()
    lab.story([0, 1, 2, 3])
    page = lab.sim.memory.frames[0].image()
    cells = list(page.cells)
    damaged = [replace(page, entry=page.entry ^ 1), replace(page, cells=page.cells[:-1])]
    for i in range(len(cells)):
        for bit in range(64):
            damaged.append(
                replace(page, cells=tuple(c ^ (1 << bit) * (i == j) for j, c in enumerate(cells)))
            )
    damaged.append(replace(page, cells=tuple(reversed(cells))))
    assert page.checksum() not in {image.checksum() for image in damaged}


@pytest.mark.parametrize("kind", ["delay_out", "delay_in"])
def test_a_delayed_copy_is_late_and_its_queue_with_it(kind: Kind) -> None:
    lab = lab_with(Fault(kind, nth=1, delay_s=50.0))
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.swap_in((0, 1, 9))
    start_s = lab.now_s
    outs = [lab.copy_out((0, 1, 1)), lab.copy_out((1, 2, 1))]
    ins = [lab.copy_in((0, 1, 10)), lab.copy_in((0, 1, 11))]
    slow, fast = (outs, ins) if kind == "delay_out" else (ins, outs)
    tickets = [lab.submit(command) for command in (*slow, fast[0])]
    lab.wait(tickets[2])
    assert lab.now_s == start_s + 1, "the other direction is not held up"
    lab.wait(tickets[0])
    assert lab.now_s == start_s + 51
    lab.wait(tickets[1])
    assert lab.now_s == start_s + 52


@pytest.mark.parametrize("kind", ["hang_out", "hang_in"])
def test_a_hung_copy_never_completes_and_holds_its_frames(kind: Kind) -> None:
    lab = lab_with(Fault(kind, nth=1))
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.swap_in((0, 1, 9))
    if kind == "hang_out":
        hung = lab.submit(lab.copy_out((2, 1, 1)))
    else:
        hung = lab.submit(lab.copy_in((0, 1, 2)))
    assert lab.sim.next_completion_s() is None, "nothing to wait for"
    lab.pass_s(1000.0)
    assert not lab.is_done(hung)
    assert isinstance(lab.swap_out((1, 2, 1)), CopyDone), "its queue goes on"
    lab.start(proc)
    assert len(lab.sim.violations) == 1, "it still counts as unfinished"


def test_a_failed_forward_leaves_nothing_that_may_be_used() -> None:
    lab = lab_with(Fault("device", nth=2))
    proc = lab.story([0, 1, 2, 3])
    done = lab.wait(lab.start(proc))
    assert isinstance(done, DeviceFault)
    lab.decode(proc, tokens=4)
    assert lab.is_true(proc), "the same row again is sound"
    assert lab.sim.violations == []


def test_going_on_after_a_failed_forward_is_caught() -> None:
    lab = lab_with(Fault("device", nth=2))
    proc = lab.story([0, 1, 2, 3])
    lab.wait(lab.start(proc))
    proc.tokens.append(5)
    proc.done += 1
    assert lab.step(proc) == [RowFault("read unwritten cell 2 of frame 2")]


def test_a_row_fault_strikes_its_process_alone() -> None:
    lab = lab_with(Fault("row", pid=2))
    first = lab.proc([1, 2, 3], [0, 1, 2])
    second = lab.proc([1, 2, 3], [4, 5, 6])
    results = lab.step(first, second)
    assert isinstance(results[0], Sampled)
    assert results[1] == RowFault("planned row fault")
    second.done = 0
    lab.decode(first, second, tokens=5)
    assert lab.is_true(first)
    assert lab.is_true(second)
    assert lab.sim.violations == []


def test_a_row_fault_may_name_its_forward() -> None:
    lab = lab_with(Fault("row", nth=1))
    proc = lab.proc([1, 2, 3], [0, 1])
    assert isinstance(lab.step(proc)[0], Sampled)
    assert lab.step(proc) == [RowFault("planned row fault")]


def _history(seed: int) -> list[str]:
    """What completes under random faults of all kinds."""
    plan = FaultPlan(
        seed=seed,
        rates={
            "fail_out": 0.2,
            "fail_in": 0.2,
            "corrupt_slot": 0.1,
            "lose_slot": 0.1,
            "delay_out": 0.2,
            "delay_in": 0.2,
            "device": 0.1,
            "row": 0.1,
        },
    )
    lab = Lab(faults=plan)
    proc = lab.proc([1, 2, 3], [0, 1])
    lines = []
    for turn in range(40):
        proc.known = 0
        proc.tokens, proc.done = [1, 2, 3], 0
        lines.append(str(lab.wait(lab.start(proc))))
        lines.append(str(lab.swap_out((0, turn % 16, turn), (0, (turn + 1) % 16, turn))))
        lines.append(str(lab.swap_in((turn % 16, turn, 8), ((turn + 1) % 16, turn, 9))))
        lines.append(f"{lab.now_s:.9f}")
    return lines


def test_faults_by_rate_are_a_function_of_the_seed() -> None:
    histories = [_history(seed) for seed in range(3)]
    assert histories == [_history(seed) for seed in range(3)]
    assert histories[0] != histories[1]
    text = "\n".join(histories[0] + histories[1] + histories[2])
    for sign in ("planned copy", "corrupt", "lost", "DeviceFault", "planned row", "CopyDone"):
        assert sign in text
