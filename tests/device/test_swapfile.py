"""Pages go down to the swap file and come back, and nothing shows."""

from pathlib import Path

import pytest

from tokenix.drivers.ops import CopyDone, CopyFailed, ForwardDone, Sampled, SwapOff
from tokenix.tests.device.machine import Harness, Machine, Proc
from tokenix.tests.device.test_forward import NEW, agree, alone, prompts


@pytest.fixture
def full(machine: Machine, tmp_path: Path) -> Proc:
    """A process of three full pages in frames 0, 1, 2 and slots 0, 1, 2 of generation 1, and a swap
    file of 8 blocks."""
    assert machine.swap_on(tmp_path, 8).blocks == 8
    (prompt,) = prompts(machine, 3 * machine.page_tokens + 1)
    proc = machine.proc(prompt, [0, 1, 2, 3, 4])
    machine.step(proc)
    assert isinstance(machine.swap_out((0, 0, 1), (1, 1, 1), (2, 2, 1)), CopyDone)
    return proc


def bury(machine: Machine, proc: Proc) -> None:
    """Nothing but the swap file holds the full pages any more."""
    page = machine.page_tokens
    other = machine.proc(prompts(machine, page, page)[1], [30, 31])
    machine.step(other)
    machine.swap_out(*((30, slot, 50) for slot in range(3)))
    machine.wipe(0, 1, 2)


def goes_on(machine: Machine, proc: Proc) -> bool:
    """Whether a process whose full pages are restored draws what it would have drawn."""
    machine.decode(proc, tokens=NEW)
    return agree(machine, proc, alone(machine, proc.tokens[: proc.prompt], NEW + 1))


def restore(machine: Machine, proc: Proc, *slots: tuple[int, int]) -> None:
    """Load the full pages from (slot, generation)s to other frames."""
    pages = [(*slot, frame) for slot, frame in zip(slots, (12, 11, 10), strict=True)]
    assert isinstance(machine.swap_in(*pages), CopyDone)
    proc.move([12, 11, 10, 3, 4])


def test_swap_on_reports_what_it_measured(machine: Machine, tmp_path: Path) -> None:
    changed = machine.swap_on(tmp_path, 5)
    assert (changed.blocks, changed.reason) == (5, "")
    assert 0 < changed.store_s_per_page < 60
    assert 0 < changed.fetch_s_per_page < 60


def test_outputs_are_the_same_after_all_three_tiers(machine: Machine, full: Proc) -> None:
    assert isinstance(machine.store((0, 1, 5, 1), (1, 1, 0, 2), (2, 1, 6, 3)), CopyDone)
    bury(machine, full)
    fetched = machine.fetch((6, 3, 9, 7), (5, 1, 7, 7), (0, 2, 8, 8))
    assert isinstance(fetched, CopyDone)
    restore(machine, full, (7, 7), (8, 8), (9, 7))
    assert goes_on(machine, full)


def test_a_slot_keeps_its_page_when_it_is_stored(machine: Machine, full: Proc) -> None:
    machine.store((0, 1, 0, 1), (1, 1, 1, 1), (2, 1, 2, 1))
    machine.wipe(0, 1, 2)
    restore(machine, full, (0, 1), (1, 1), (2, 1))
    assert goes_on(machine, full)


def test_a_block_is_read_many_times(machine: Machine, full: Proc) -> None:
    machine.store((0, 1, 0, 1), (1, 1, 1, 1), (2, 1, 2, 1))
    bury(machine, full)
    for turn in range(3):
        fetched = machine.fetch((0, 1, 3, turn), (1, 1, 4, turn), (2, 1, 5, turn))
        assert isinstance(fetched, CopyDone)
    restore(machine, full, (3, 2), (4, 2), (5, 2))
    assert goes_on(machine, full)


def test_a_block_of_another_generation_is_refused(machine: Machine, full: Proc) -> None:
    machine.expects_breach = True
    machine.store((0, 1, 0, 1), (1, 1, 1, 1), (2, 1, 2, 1))
    bury(machine, full)
    failed = machine.fetch((0, 1, 3, 1), (1, 2, 4, 1), (2, 1, 5, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (1,)
    assert failed.reason
    assert isinstance(machine.fetch((1, 1, 4, 2)), CopyDone)
    restore(machine, full, (3, 1), (4, 2), (5, 1))
    assert goes_on(machine, full)


def test_a_block_never_stored_is_refused(machine: Machine, full: Proc) -> None:
    machine.expects_breach = True
    failed = machine.fetch((3, 0, 4, 1), (3, 1, 5, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0, 1)


def test_a_slot_of_another_generation_is_not_stored(machine: Machine, full: Proc) -> None:
    machine.expects_breach = True
    failed = machine.store((0, 2, 0, 1), (1, 1, 1, 1), (9, 1, 2, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0, 2)
    failed = machine.fetch((0, 1, 3, 1), (1, 1, 4, 1), (2, 1, 5, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0, 2)


def test_a_corrupt_block_is_refused_alone(machine: Machine, full: Proc) -> None:
    machine.store((0, 1, 0, 1), (1, 1, 1, 1), (2, 1, 2, 1))
    machine.harness.corrupt(machine.device, 1)
    failed = machine.fetch((0, 1, 3, 1), (1, 1, 4, 1), (2, 1, 5, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (1,)
    assert failed.reason
    machine.wipe(0, 1, 2)
    restore(machine, full, (3, 1), (1, 1), (5, 1))
    assert goes_on(machine, full)


def test_a_slot_that_was_not_filled_serves_nothing(machine: Machine, full: Proc) -> None:
    """Neither what was in it before nor what the disk gave."""
    machine.expects_breach = True
    machine.store((0, 1, 0, 1))
    machine.harness.corrupt(machine.device, 0)
    assert isinstance(machine.fetch((0, 1, 1, 2)), CopyFailed)
    failed = machine.swap_in((1, 1, 10), (1, 2, 11))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0, 1)
    assert isinstance(machine.store((1, 2, 3, 1)), CopyFailed)


def test_a_block_that_is_used_again_does_not_serve_the_old_page(
    machine: Machine, full: Proc
) -> None:
    machine.expects_breach = True
    machine.store((1, 1, 0, 1), (2, 1, 1, 1), (0, 1, 2, 1))
    machine.store((0, 1, 0, 2), (1, 1, 1, 2), (2, 1, 2, 2))
    bury(machine, full)
    failed = machine.fetch((0, 1, 3, 1), (1, 1, 4, 1), (2, 1, 5, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0, 1, 2)
    assert isinstance(machine.fetch((0, 2, 3, 1), (1, 2, 4, 1), (2, 2, 5, 1)), CopyDone)
    restore(machine, full, (3, 1), (4, 1), (5, 1))
    assert goes_on(machine, full)


def test_a_swap_file_that_is_too_big_is_refused_with_a_reason(
    machine: Machine, tmp_path: Path
) -> None:
    machine.expects_breach = True
    changed = machine.swap_on(tmp_path, 1 << 44)
    assert changed.blocks == 0
    assert str(1 << 44) in changed.reason
    machine.step(machine.proc(prompts(machine, machine.page_tokens)[0], [0, 1]))
    machine.swap_out((0, 0, 1))
    failed = machine.store((0, 1, 0, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0,)
    assert machine.swap_on(tmp_path, 4).blocks == 4
    assert isinstance(machine.store((0, 1, 0, 1)), CopyDone)


def test_a_refused_swap_on_leaves_no_swap_file(
    machine: Machine, full: Proc, tmp_path: Path
) -> None:
    """What there was is closed before: two files may not fit."""
    machine.expects_breach = True
    machine.store((0, 1, 0, 1))
    assert machine.swap_on(tmp_path, 1 << 44).blocks == 0
    assert isinstance(machine.fetch((0, 1, 5, 1)), CopyFailed)


def test_swap_off_and_on_again_forgets_all_blocks(
    machine: Machine, full: Proc, tmp_path: Path
) -> None:
    machine.expects_breach = True
    machine.store((0, 1, 0, 1), (1, 1, 1, 1))
    off = machine.swap_off()
    assert (off.blocks, off.reason) == (0, "")
    failed = machine.fetch((0, 1, 5, 1), (1, 1, 6, 1))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0, 1)
    assert machine.swap_off().blocks == 0
    assert machine.swap_on(tmp_path, 2).blocks == 2
    assert isinstance(machine.fetch((0, 1, 5, 2), (1, 1, 6, 2)), CopyFailed)
    assert isinstance(machine.store((2, 1, 1, 1)), CopyDone)
    assert isinstance(machine.fetch((1, 1, 6, 3)), CopyDone)


def test_a_block_beyond_the_swap_file_is_refused(machine: Machine, full: Proc) -> None:
    machine.expects_breach = True
    assert isinstance(machine.store((0, 1, 8, 1)), CopyFailed)
    assert isinstance(machine.fetch((8, 1, 5, 1)), CopyFailed)
    assert isinstance(machine.store((0, 1, 7, 1)), CopyDone)


def test_empty_stores_and_fetches_complete(machine: Machine, full: Proc) -> None:
    assert isinstance(machine.store(), CopyDone)
    assert isinstance(machine.fetch(), CopyDone)


def test_stores_and_fetches_beside_forwards_do_not_matter(machine: Machine, full: Proc) -> None:
    """Each step runs with every queue at work on pages of others."""
    machine.store((0, 1, 0, 1), (1, 1, 1, 1), (2, 1, 2, 1))
    machine.wipe(0, 1, 2)
    (prompt,) = prompts(machine, machine.page_tokens + 1)
    hot = machine.proc(prompt, [8, 9, 10, 11])
    machine.step(hot)
    for turn in range(NEW):
        tickets = [
            machine.submit(machine.to_disk((0, 1, 4, turn), (1, 1, 5, turn), (2, 1, 6, turn))),
            machine.submit(machine.from_disk((0, 1, 5, turn), (1, 1, 6, turn), (2, 1, 7, turn))),
            machine.submit(machine.copy_out((8, 10, turn))),
            machine.submit(machine.copy_in((0, 1, 20))),
        ]
        ran = machine.wait(machine.start(hot))
        assert all(isinstance(machine.wait(ticket), CopyDone) for ticket in tickets)
        assert isinstance(ran, ForwardDone)
        (result,) = ran.results
        assert isinstance(result, Sampled)
        hot.done = len(hot.tokens)
        hot.tokens.append(result.token)
        hot.drawn.append(result)
    assert agree(machine, hot, alone(machine, prompt, NEW + 1))
    last = NEW - 1
    machine.fetch((4, last, 12, 1), (5, last, 13, 1), (6, last, 14, 1))
    restore(machine, full, (12, 1), (13, 1), (14, 1))
    assert goes_on(machine, full)


def test_close_with_a_swap_file_at_work_does_not_hang(harness: Harness, tmp_path: Path) -> None:
    machine = Machine(harness)
    machine.swap_on(tmp_path, 4)
    machine.step(machine.proc(prompts(machine, machine.page_tokens)[0], [0, 1]))
    machine.swap_out((0, 0, 1))
    for turn in range(4):
        machine.submit(machine.to_disk((0, 1, turn, 1)))
    machine.submit(machine.from_disk())
    machine.device.close()
    machine.device.close()
    assert list(tmp_path.iterdir()) == []


def test_swap_commands_run_in_order(machine: Machine, full: Proc) -> None:
    """A SwapOff waits for the Stores before it on its own queue."""
    machine.expects_breach = True
    tickets = [machine.submit(machine.to_disk((0, 1, 0, turn))) for turn in range(3)]
    tickets.append(machine.submit(SwapOff(machine.ticket())))
    assert [done.ticket for done in machine.drain(4)] == tickets
