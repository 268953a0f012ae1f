"""Pages leave the device and come back, to other frames, and nothing shows."""

import pytest

from tokenix.drivers.ops import CopyDone, CopyFailed, ForwardDone, RowFault, Sampled
from tokenix.tests.device.machine import Machine, same, words
from tokenix.tests.device.test_forward import NEW, agree, alone, prompts


def test_continuation_after_a_round_trip(machine: Machine) -> None:
    (prompt,) = prompts(machine, 2 * machine.page_tokens + 2)
    proc = machine.proc(prompt, [0, 1, 2, 3, 4])
    machine.decode(proc, tokens=2)
    done = machine.swap_out((0, 5, 1), (1, 9, 2), (2, 0, 3))
    assert isinstance(done, CopyDone)
    machine.wipe(0, 1, 2)
    done = machine.swap_in((5, 1, 12), (9, 2, 11), (0, 3, 10))
    assert isinstance(done, CopyDone)
    proc.move([12, 11, 10, 20, 21])
    machine.decode(proc, tokens=NEW)
    assert agree(machine, proc, alone(machine, prompt, NEW + 2))


def test_a_slot_is_read_many_times(machine: Machine) -> None:
    (prompt,) = prompts(machine, machine.page_tokens)
    first = machine.proc(prompt, [0, 1, 2])
    machine.decode(first, tokens=1)
    machine.swap_out((0, 3, 7))
    expected = alone(machine, [*prompt, 1])
    for frame in (5, 6):
        assert isinstance(machine.swap_in((3, 7, frame)), CopyDone)
        proc = machine.proc([*prompt, 1], [frame, 8, 9], done=machine.page_tokens)
        machine.decode(proc, tokens=NEW)
        assert agree(machine, proc, expected)
        machine.step(first, drop=(proc.pid,))


def test_swapped_pages_of_two_processes_do_not_mix(machine: Machine) -> None:
    several = prompts(machine, machine.page_tokens + 1, machine.page_tokens + 3)
    procs = [machine.proc(p, range(4 * i, 4 * i + 4)) for i, p in enumerate(several)]
    machine.decode(*procs, tokens=2)
    machine.swap_out((0, 0, 1), (4, 1, 1), (1, 2, 1), (5, 3, 1))
    machine.wipe(0, 4, 1, 5)
    machine.swap_in((1, 1, 0), (0, 1, 4), (3, 1, 1), (2, 1, 5))
    procs[0].move([4, 5, 2, 3])
    procs[1].move([0, 1, 6, 7])
    machine.decode(*procs, tokens=NEW)
    for proc, prompt in zip(procs, several, strict=True):
        assert agree(machine, proc, alone(machine, prompt, NEW + 2))


def test_a_page_of_another_generation_is_refused(machine: Machine) -> None:
    machine.expects_breach = True
    proc = machine.proc(prompts(machine, 3 * machine.page_tokens)[0], range(5))
    machine.decode(proc, tokens=1)
    machine.swap_out((0, 0, 1), (1, 1, 1), (2, 2, 1))
    failed = machine.swap_in((0, 1, 10), (1, 2, 11), (2, 1, 12))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (1,)
    assert failed.reason
    assert isinstance(machine.swap_in((1, 1, 11)), CopyDone)
    proc.move([10, 11, 12, 3, 4])
    machine.decode(proc, tokens=NEW)
    assert agree(machine, proc, alone(machine, proc.tokens[: proc.prompt], NEW + 1))


def test_a_slot_that_was_overwritten_does_not_serve_the_old_page(machine: Machine) -> None:
    machine.expects_breach = True
    proc = machine.proc(prompts(machine, 2 * machine.page_tokens)[0], range(3))
    machine.decode(proc, tokens=1)
    machine.swap_out((0, 0, 1))
    machine.swap_out((1, 0, 2))
    failed = machine.swap_in((0, 1, 10))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0,)
    assert isinstance(machine.swap_in((0, 2, 11)), CopyDone)


def test_a_slot_never_written_is_refused(machine: Machine) -> None:
    machine.expects_breach = True
    failed = machine.swap_in((4, 0, 1), (4, 1, 2))
    assert isinstance(failed, CopyFailed)
    assert failed.bad == (0, 1)


def test_a_partial_page_is_copied_on_write(machine: Machine) -> None:
    """A fork: full pages are shared, the tail is copied, and the branches go their own ways."""
    page = machine.page_tokens
    (prompt,) = prompts(machine, 2 * page + 2)
    parent = machine.proc(prompt, [0, 1, 2, 3, 4])
    machine.step(parent)
    machine.copy_frame(2, 7)
    child = machine.proc([*prompt, 5], [0, 1, 7, 8, 9], done=len(prompt))
    machine.decode(parent, child, tokens=NEW)
    assert agree(machine, child, alone(machine, [*prompt, 5]))
    assert agree(machine, parent, alone(machine, prompt, NEW + 1))


def test_a_read_of_a_poisoned_frame_fails_its_row_alone(machine: Machine) -> None:
    machine.expects_breach = True
    several = prompts(machine, machine.page_tokens + 2, machine.page_tokens + 3, 3)
    procs = [machine.proc(p, range(4 * i, 4 * i + 4)) for i, p in enumerate(several)]
    machine.decode(*procs, tokens=2)
    machine.wipe(4)
    results = machine.step(*procs)
    assert isinstance(results[1], RowFault)
    assert results[1].reason
    assert isinstance(results[0], Sampled)
    assert isinstance(results[2], Sampled)
    machine.decode(procs[0], procs[2], tokens=NEW)
    assert agree(machine, procs[0], alone(machine, several[0], NEW + 3))
    assert agree(machine, procs[2], alone(machine, several[2], NEW + 3))


def test_a_poisoned_frame_is_good_again_once_written(machine: Machine) -> None:
    machine.wipe(*range(8))
    (prompt,) = prompts(machine, machine.page_tokens + 2)
    proc = machine.proc(prompt, range(4))
    machine.decode(proc, tokens=NEW)
    assert agree(machine, proc, alone(machine, prompt))


@pytest.mark.parametrize("direction", ["out", "in"])
def test_an_empty_copy_completes(machine: Machine, direction: str) -> None:
    done = machine.swap_out() if direction == "out" else machine.swap_in()
    assert isinstance(done, CopyDone)


def test_copies_beside_forwards_do_not_matter(machine: Machine) -> None:
    """Each step runs with a copy out of cold pages and a copy in to free frames under way."""
    page = machine.page_tokens
    several = prompts(machine, 2 * page, 2 * page, page + 1)
    cold = machine.proc(several[0], [0, 1, 2, 3])
    colder = machine.proc(several[1], [4, 5, 6, 7])
    hot = machine.proc(several[2], [8, 9, 10, 11])
    machine.decode(cold, colder, tokens=1)
    machine.swap_out((4, 4, 1), (5, 5, 1))
    machine.wipe(4, 5)
    for generation in range(NEW):
        out = machine.copy_out((0, 0, generation), (1, 1, generation))
        back = machine.copy_in((4, 1, 20 + generation % 2), (5, 1, 22))
        tickets = [machine.submit(out), machine.start(hot), machine.submit(back)]
        copied, ran, restored = (machine.wait(ticket) for ticket in tickets)
        assert isinstance(copied, CopyDone)
        assert isinstance(restored, CopyDone)
        assert isinstance(ran, ForwardDone)
        (result,) = ran.results
        assert isinstance(result, Sampled)
        hot.done = len(hot.tokens)
        hot.tokens.append(result.token)
        hot.drawn.append(result)
    colder.move([20 + (NEW - 1) % 2, 22, 6, 7])
    machine.swap_in((0, NEW - 1, 0), (1, NEW - 1, 1))
    machine.decode(cold, colder, tokens=NEW)
    assert agree(machine, hot, alone(machine, several[2]))
    assert agree(machine, cold, alone(machine, several[0], NEW + 1))
    assert agree(machine, colder, alone(machine, several[1], NEW + 1))


def test_every_bit_of_a_page_survives(machine: Machine) -> None:
    """Out, in, out, in: eight times, over all frames, and log probabilities stay equal."""
    page = machine.page_tokens
    prompt = words(page, machine.harness.vocab, 3)
    proc = machine.proc(prompt, [0, 1])
    machine.step(proc)
    fresh = machine.proc([*prompt, 1], [0, 30], done=page)
    machine.decode(fresh, tokens=1)
    frame = 0
    for turn in range(8):
        machine.swap_out((frame, turn, turn))
        machine.wipe(frame)
        frame = 3 * turn + 2
        machine.swap_in((turn, turn, frame))
    moved = machine.proc([*prompt, 1], [frame, 31], done=page)
    machine.decode(moved, tokens=1)
    assert same(moved.drawn, fresh.drawn, 0.0)
