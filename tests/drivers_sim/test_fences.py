"""Each way to break the contract is reported: every detector fires, and none does without cause."""

from collections.abc import Callable

import pytest

from tokenix.drivers.ops import CopyFrame, Forward, Row, RowFault, SamplingParams, TableDelta
from tokenix.mm.ids import Pfn, Pid
from tokenix.tests.drivers_sim.lab import PAGE, Lab

Breach = Callable[[Lab], object]


def _forward_writes_what_is_copied_out(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.submit(lab.copy_out((2, 0, 1)))
    lab.start(proc)


def _copy_out_reads_what_a_forward_writes(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.start(proc)
    lab.submit(lab.copy_out((2, 0, 1)))


def _copy_in_fills_what_a_forward_reads(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.start(proc)
    lab.submit(lab.copy_in((0, 1, 1)))


def _forward_reads_what_is_copied_in(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.submit(lab.copy_in((0, 1, 9)))
    proc.move([9, 1, 2, 3])
    lab.start(proc)


def _copy_in_fills_what_is_copied_out(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.submit(lab.copy_out((1, 1, 1)))
    lab.submit(lab.copy_in((0, 1, 1)))


def _copy_in_reads_a_slot_being_written(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.submit(lab.copy_out((1, 1, 1)))
    lab.submit(lab.copy_in((1, 1, 9)))


def _copy_out_writes_a_slot_being_read(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.submit(lab.copy_in((0, 1, 9)))
    lab.submit(lab.copy_out((1, 0, 2)))


def _a_finished_copy_that_was_not_polled(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.submit(lab.copy_out((2, 0, 1)))
    lab._now_s += 100
    lab.start(proc)


def _slot_is_booked_twice(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.submit(lab.copy_out((0, 5, 1)))
    lab.submit(lab.copy_out((1, 5, 2)))


def _slot_is_booked_twice_in_one_copy(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 5, 1), (1, 5, 2))


def _frame_is_filled_by_two_copies(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1), (1, 1, 1))
    lab.submit(lab.copy_in((0, 1, 9)))
    lab.submit(lab.copy_in((1, 1, 9)))


def _frame_is_filled_twice_by_one_copy(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1), (1, 1, 1))
    lab.swap_in((0, 1, 9), (1, 1, 9))


def _copy_frame_writes_what_is_copied_out(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.submit(lab.copy_out((1, 0, 1)))
    lab.submit(CopyFrame(lab.ticket(), Pfn(0), Pfn(1)))


def _poison_of_what_is_copied_out(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.submit(lab.copy_out((1, 0, 1)))
    lab.poison(1)


def _copy_in_over_a_poison_that_waits(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.start(proc)
    lab.poison(0)
    lab.submit(lab.copy_in((0, 1, 0)))


def _copy_in_of_an_unpublished_slot(lab: Lab) -> None:
    lab.swap_in((7, 1, 0))


def _copy_in_of_an_old_generation(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.swap_in((0, 2, 9))


def _copy_out_of_poison(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.poison(1)
    lab.swap_out((1, 0, 1))


def _copy_out_of_nothing(lab: Lab) -> None:
    lab.swap_out((30, 0, 1))


def _copy_frame_of_poison(lab: Lab) -> None:
    lab.poison(1)
    lab.copy_frame(1, 2)


def _read_of_poison(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.poison(1)
    lab.step(proc)


def _read_of_a_cell_never_written(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    proc.tokens.append(1)
    proc.done += 1
    lab.step(proc)


def _read_of_a_frame_half_copied(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1), (1, 1, 1), (2, 2, 1))
    lab.submit(lab.copy_in((0, 1, 9), (1, 1, 10), (2, 1, 11)))
    proc.move([9, 10, 11, 3])
    lab.step(proc)


def _read_of_another_prefix(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    proc.move([1, 0, 2, 3])
    lab.step(proc)


def _read_of_another_process(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.story([4, 5, 6, 7], prompt=range(50, 60))
    proc.move([0, 5, 2, 3])
    lab.step(proc)


def _row_beyond_its_table(lab: Lab) -> None:
    proc = lab.story([0, 1, 2])
    lab.decode(proc, tokens=1)
    proc.tokens += [1, 2, 3, 4]
    lab.step(proc)


def _row_without_a_table(lab: Lab) -> None:
    lab.wait(lab.submit(Forward(lab.ticket(), (Row(Pid(99), 0, (1,), None),))))


def _row_after_its_process_was_dropped(lab: Lab) -> None:
    proc = lab.story([0, 1, 2])
    lab.wait(lab.submit(Forward(lab.ticket(), (), drop=(proc.pid,))))
    lab.step(proc)


def _row_without_tokens(lab: Lab) -> None:
    proc = lab.story([0, 1, 2])
    proc.done = len(proc.tokens)
    lab.step(proc)


def _token_outside_the_vocabulary(lab: Lab) -> None:
    lab.step(lab.proc([1, 99_999], [0]))


def _two_rows_of_one_process(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.step(proc, proc)


def _two_rows_write_one_frame(lab: Lab) -> None:
    lab.step(lab.proc([1, 2], [5]), lab.proc([1, 2], [5]))


def _a_row_reads_what_another_writes(lab: Lab) -> None:
    proc = lab.proc(range(PAGE + 1), [0, 1])
    other = lab.proc(range(PAGE + 1), [0, 2], done=PAGE)
    lab.step(proc, other)


def _tables(*deltas: TableDelta) -> Breach:
    def breach(lab: Lab) -> None:
        lab.wait(lab.submit(Forward(lab.ticket(), (), deltas)))

    return breach


def _delta(keep: int, *frames: int) -> TableDelta:
    return TableDelta(Pid(1), keep, tuple(Pfn(f) for f in frames))


def _ticket_in_use(lab: Lab) -> None:
    ticket = lab.ticket()
    lab.submit(Forward(ticket, ()))
    lab.submit(Forward(ticket, ()))


def _a_forward_beside_a_load_that_is_none(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    load = lab.submit(lab.copy_in((0, 1, 9)))
    proc.move([9, 1, 2, 3])
    lab.start(proc, beside=load)


def _a_forward_that_does_not_name_the_load_beside_it(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.load_by_layers((0, 1, 9))
    proc.move([9, 1, 2, 3])
    lab.start(proc)


def _a_load_by_layers_behind_another(lab: Lab) -> None:
    lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    lab.submit(lab.copy_in((0, 1, 9)))
    lab.load_by_layers((0, 1, 10))


BREACHES: list[tuple[Breach, str]] = [
    (_forward_writes_what_is_copied_out, "writes frame 2 that unfinished CopyOut"),
    (_copy_out_reads_what_a_forward_writes, "reads frame 2 that unfinished Forward"),
    (_copy_in_fills_what_a_forward_reads, "writes frame 1 that unfinished Forward"),
    (_forward_reads_what_is_copied_in, "reads frame 9 that unfinished CopyIn"),
    (_a_forward_beside_a_load_that_is_none, "is no unfinished load by layers"),
    (_a_forward_that_does_not_name_the_load_beside_it, "reads frame 9 that unfinished CopyIn"),
    (_a_load_by_layers_behind_another, "by layers behind another load"),
    (_copy_in_fills_what_is_copied_out, "writes frame 1 that unfinished CopyOut"),
    (_copy_in_reads_a_slot_being_written, "reads slot 1 that unfinished CopyOut"),
    (_copy_out_writes_a_slot_being_read, "writes slot 0 that unfinished CopyIn"),
    (_a_finished_copy_that_was_not_polled, "writes frame 2 that unfinished CopyOut"),
    (_slot_is_booked_twice, "writes slot 5 that unfinished CopyOut"),
    (_slot_is_booked_twice_in_one_copy, "slot 5 is filled 2 times by one command"),
    (_frame_is_filled_by_two_copies, "writes frame 9 that unfinished CopyIn"),
    (_frame_is_filled_twice_by_one_copy, "frame 9 is filled 2 times by one command"),
    (_copy_frame_writes_what_is_copied_out, "writes frame 1 that unfinished CopyOut"),
    (_poison_of_what_is_copied_out, "Poison writes frame 1 that unfinished CopyOut"),
    (_copy_in_over_a_poison_that_waits, "writes frame 0 that unfinished Poison"),
    (_copy_in_of_an_unpublished_slot, "slot 7 is unpublished"),
    (_copy_in_of_an_old_generation, "slot 0 is of generation 1, not 2"),
    (_copy_out_of_poison, "copies poisoned frame 1"),
    (_copy_out_of_nothing, "copies unwritten frame 30"),
    (_copy_frame_of_poison, "copies poisoned frame 1"),
    (_read_of_poison, "read poisoned frame 1"),
    (_read_of_a_cell_never_written, "read unwritten cell 2 of frame 2"),
    (_read_of_a_frame_half_copied, "read half copied frame 9"),
    (_read_of_another_prefix, "frame 1 holds a page of another prefix"),
    (_read_of_another_process, "frame 5 holds a page of another prefix"),
    (_row_beyond_its_table, "position 15 is outside the block table of 3 pages"),
    (_row_without_a_table, "position 0 is outside the block table of 0 pages"),
    (_row_after_its_process_was_dropped, "position 10 is outside the block table of 0 pages"),
    (_row_without_tokens, "row of 0 tokens at position 11"),
    (_token_outside_the_vocabulary, "outside the vocabulary of 1009"),
    (_two_rows_of_one_process, "two rows of one process"),
    (_two_rows_write_one_frame, "frame 5 is written by pid 2 and by pid 1"),
    (_a_row_reads_what_another_writes, "frame 0 is written by pid 1 and read by others"),
    (_tables(_delta(1, 3)), "keeps 1 of 0 pages"),
    (_tables(_delta(0, 1, 2), _delta(2, 3)), "two table deltas for pid 1"),
    (_tables(_delta(0, 1, 2, 1)), "names a frame twice"),
    (_tables(_delta(0, 1, 32)), "frame 32 is outside 0..31"),
    (lambda lab: lab.swap_out((32, 0, 1)), "frame 32 is outside 0..31"),
    (lambda lab: lab.swap_out((0, 16, 1)), "slot 16 is outside 0..15"),
    (lambda lab: lab.swap_in((-1, 1, 0)), "slot -1 is outside 0..15"),
    (lambda lab: lab.poison(-1), "frame -1 is outside 0..31"),
    (_ticket_in_use, "is in use by Forward"),
]


@pytest.mark.parametrize(
    ("breach", "line"), BREACHES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_breach_is_reported(lab: Lab, breach: Breach, line: str) -> None:
    breach(lab)
    assert any(line in violation for violation in lab.sim.violations), lab.sim.violations


def test_what_may_overlap_is_not_reported(lab: Lab) -> None:
    """Reads beside reads, and fences that were waited for."""
    proc = lab.story([0, 1, 2, 3])
    other = lab.story([4, 5, 6, 7], prompt=range(50, 60))
    lab.swap_out((4, 3, 1), (5, 4, 1))
    forward = lab.start(proc)
    out = lab.submit(lab.copy_out((0, 0, 1), (1, 1, 1)))
    again = lab.submit(lab.copy_out((0, 2, 1)))
    back = lab.submit(lab.copy_in((3, 1, 10), (4, 1, 11)))
    for ticket in (forward, out, again, back):
        lab.wait(ticket)
    lab.poison(0, 4)
    lab.swap_in((0, 1, 0))
    lab.poison(5)
    other.move([10, 11, 6, 7])
    lab.decode(other, tokens=3)
    assert lab.is_true(other)
    assert lab.sim.violations == []


def test_poison_waits_for_the_forward_before_it(lab: Lab) -> None:
    proc = lab.story([0, 1, 2, 3])
    ticket = lab.start(proc)
    lab.poison(0, 1, 2, 3)
    lab.wait(ticket)
    proc.done = len(proc.tokens)
    proc.tokens.append(1)
    (result,) = lab.step(proc)
    assert result == RowFault("read poisoned frame 0")
    assert len(lab.sim.violations) == 1, "the first forward read sound frames"


@pytest.mark.parametrize(("strict", "waits", "reports"), [(0, 0, 0), (1, 0, 1), (1, 1, 0)])
def test_poison_is_known_to_be_done_by_what_follows_it(
    strict: int, waits: int, reports: int
) -> None:
    lab = Lab(strict_poison=bool(strict))
    proc = lab.story([0, 1, 2, 3])
    lab.swap_out((0, 0, 1))
    if waits:
        lab.wipe(0, 8)
    else:
        lab.poison(0, 8)
    lab.swap_in((0, 1, 0))
    assert len(lab.sim.violations) == reports
    lab.decode(proc, tokens=1)
    assert lab.is_true(proc)


def test_context_has_an_end() -> None:
    lab = Lab(max_context_tokens=8)
    assert lab.step(lab.proc(range(8), [0, 1], SamplingParams()))[0] is not None
    assert lab.sim.violations == []
    (result,) = lab.step(lab.proc(range(9), [0, 1, 2]))
    assert result == RowFault("position 8 is outside the context of 8")
