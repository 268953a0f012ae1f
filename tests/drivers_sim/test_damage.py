"""A missing fence changes tokens: the oracle alone, without `violations`, would find it."""

from tokenix.drivers.ops import CopyDone, CopyFailed, CopyFrame, RowFault
from tokenix.mm.ids import Pfn
from tokenix.tests.drivers_sim.lab import Lab


def test_the_undisturbed_process_is_true(lab: Lab) -> None:
    assert lab.is_true(lab.story(range(8), tokens=20))


def test_frame_reused_while_it_is_copied_out(lab: Lab) -> None:
    """The forward of another process retires before the copy has read the frame."""
    wrong = 0
    for seed in range(8):
        lab = Lab(seed=seed)
        proc = lab.story([0, 1, 2, 3])
        copy = lab.submit(lab.copy_out((0, 0, 1), (1, 1, 1), (2, 2, 1)))
        lab.story([2, 1, 0, 7], tokens=1, prompt=range(50, 60))
        assert isinstance(lab.wait(copy), CopyDone)
        lab.swap_in((0, 1, 9), (1, 1, 10), (2, 1, 11))
        proc.move([9, 10, 11, 3])
        lab.step(proc)
        lab.step(proc) if len(proc.tokens) > proc.done else None
        wrong += not lab.is_true(proc) or len(proc.drawn) < 4
    assert wrong == 8


def test_frame_filled_while_a_forward_reads_it(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.story([4, 5, 6, 7], prompt=range(50, 60))
    lab.swap_out((4, 0, 1))
    lab.submit(CopyFrame(lab.ticket(), Pfn(6), Pfn(8)))
    copy = lab.submit(lab.copy_in((0, 1, 0)))
    lab.step(proc)
    lab.wait(copy)
    assert not lab.is_true(proc)


def test_frame_given_to_another_process_too_early(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.story([8, 1, 9, 10], prompt=range(50, 60))
    lab.step(proc)
    assert not lab.is_true(proc)


def test_page_copied_out_before_it_was_written(lab: Lab) -> None:
    """The copy runs beside the forward that fills the page: it gets the page without the end."""
    proc = lab.story([0, 1, 2, 3], tokens=3)
    forward = lab.start(proc)
    copy = lab.submit(lab.copy_out((2, 0, 1)))
    lab.wait(forward)
    assert isinstance(lab.wait(copy), CopyDone)
    lab.swap_in((0, 1, 9))
    proc.move([0, 1, 9, 3])
    proc.done = len(proc.tokens)
    proc.tokens.append(1)
    (result,) = lab.step(proc)
    assert result == RowFault("read unwritten cell 3 of frame 9")


def test_slot_overwritten_while_it_is_read(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1), (1, 1, 1))
    back = lab.submit(lab.copy_in((1, 1, 10), (0, 1, 9)))
    lab.submit(lab.copy_out((1, 0, 2)))
    failed = lab.wait(back)
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (1,)


def test_stale_end_of_a_reused_page_cannot_be_read(lab: Lab) -> None:
    """A new life of a frame begins with its first cell: what the old one left is not served."""
    lab.story([0, 1, 2, 3])
    proc = lab.story([4, 0, 5], tokens=1, prompt=range(50, 54))
    proc.tokens.extend([1, 2])
    lab.step(proc, chunk=1)
    proc.done += 1
    (result,) = lab.step(proc)
    assert result == RowFault("read unwritten cell 1 of frame 0")
