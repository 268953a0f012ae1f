"""A token depends on the process's own tokens and on nothing else: not on chunks, batches, order,
frames or neighbours."""

from functools import lru_cache

import pytest

from tokenix.drivers.ops import Forward, ForwardDone, RowFault, Sampled
from tokenix.tests.device.machine import Harness, Machine, Proc, same, words

NEW = 6


def alone(machine: Machine, prompt: list[int], tokens: int = NEW) -> list[Sampled]:
    """What a process draws by itself, prefilled whole, in the first frames of a new device."""
    return _alone(machine.harness, tuple(prompt), tokens)


@lru_cache
def _alone(harness: Harness, prompt: tuple[int, ...], tokens: int) -> list[Sampled]:
    machine = Machine(harness)
    proc = machine.proc(prompt, range(-(-(len(prompt) + tokens) // machine.page_tokens)))
    machine.decode(proc, tokens=tokens)
    machine.close()
    return proc.drawn


def prompts(machine: Machine, *lengths: int) -> list[list[int]]:
    return [words(n, machine.harness.vocab, seed) for seed, n in enumerate(lengths)]


def agree(machine: Machine, proc: Proc, expected: list[Sampled]) -> bool:
    return same(proc.drawn, expected, machine.harness.tolerance)


@pytest.mark.parametrize("pages", [0.4, 1, 1.5, 3])
def test_decoding_equals_prefill_of_the_same_tokens(machine: Machine, pages: float) -> None:
    (prompt,) = prompts(machine, int(pages * machine.page_tokens))
    proc = machine.proc(prompt, range(8))
    machine.decode(proc, tokens=NEW)
    for i in range(NEW):
        again = machine.proc(proc.tokens[: len(prompt) + i], range(8, 16))
        machine.decode(again, tokens=1)
        assert agree(machine, again, proc.drawn[i : i + 1])


def test_attention_mass_is_told_of_rows_that_draw_and_changes_nothing(machine: Machine) -> None:
    """A device may tell nothing. If it does, a row's pages share what its last token looks at."""
    size = machine.page_tokens
    first, second = prompts(machine, 2 * size + 1, 3 * size)
    procs = [machine.proc(first, range(5)), machine.proc(second, range(8, 13))]
    lengths = [(3, 0), (3, 3), (3, 4)]
    for chunk, pages in zip((2 * size + 1, None, None), lengths, strict=True):
        rows = tuple(proc.row(chunk) for proc in procs)
        deltas = tuple(delta for proc in procs for delta in proc.take_delta())
        done = machine.wait(machine.submit(Forward(machine.ticket(), rows, deltas, weigh=True)))
        assert isinstance(done, ForwardDone)
        for proc, row, drawn in zip(procs, rows, done.results, strict=True):
            proc.done = row.end
            if isinstance(drawn, Sampled):
                proc.tokens.append(drawn.token)
                proc.drawn.append(drawn)
        assert tuple(len(mass) for mass in done.masses) in ((), pages)
        for mass in done.masses:
            assert not mass or sum(mass) == pytest.approx(1, abs=1e-5)
            assert all(type(share) is float and share >= 0 for share in mass)
    machine.decode(*procs, tokens=NEW - 3)
    assert agree(machine, procs[0], alone(machine, first)[:NEW])
    machine.decode(procs[1], tokens=1)
    assert agree(machine, procs[1], alone(machine, second))


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 64])
def test_chunks_of_a_prefill_do_not_matter(machine: Machine, chunk: int) -> None:
    (prompt,) = prompts(machine, 2 * machine.page_tokens + 3)
    proc = machine.proc(prompt, range(5))
    while proc.done < len(prompt) - chunk:
        assert machine.step(proc, chunk=chunk) == [None], "a chunk that is not the last one"
    machine.decode(proc, tokens=NEW)
    assert agree(machine, proc, alone(machine, prompt))


def test_a_different_token_is_seen_from_afar(machine: Machine) -> None:
    """The suite's own check: a change in the first page must show in what is drawn."""
    (prompt,) = prompts(machine, 3 * machine.page_tokens)
    changed = [*prompt]
    changed[1] = (changed[1] + 1) % machine.harness.vocab
    assert not same(alone(machine, prompt), alone(machine, changed), machine.harness.tolerance)


def test_a_batch_does_not_matter(machine: Machine) -> None:
    page = machine.page_tokens
    several = prompts(machine, 3, page, 2 * page + 1, 5, page - 1, page + 2)
    procs = [machine.proc(p, range(5 * i, 5 * i + 5)) for i, p in enumerate(several)]
    machine.decode(*procs, tokens=NEW)
    for proc, prompt in zip(procs, several, strict=True):
        assert agree(machine, proc, alone(machine, prompt))


def test_prefill_and_decode_mix(machine: Machine) -> None:
    first, second = prompts(machine, 5, 2 * machine.page_tokens + 1)
    early = machine.proc(first, range(4))
    late = machine.proc(second, range(4, 9))
    machine.decode(early, tokens=2)
    while late.done < len(second) - 3:
        machine.step(early, late, chunk=3)
    machine.decode(early, late, tokens=NEW)
    count = len(early.drawn)
    assert agree(machine, early, alone(machine, first, count))
    assert agree(machine, late, alone(machine, second))


def test_order_of_rows_does_not_matter(machine: Machine) -> None:
    several = prompts(machine, 3, machine.page_tokens + 1, 9)
    procs = [machine.proc(p, range(4 * i, 4 * i + 4)) for i, p in enumerate(several)]
    for step in range(NEW):
        turned = procs[step % 3 :] + procs[: step % 3]
        machine.step(*(reversed(turned) if step % 2 else turned))
    for proc, prompt in zip(procs, several, strict=True):
        assert agree(machine, proc, alone(machine, prompt))


@pytest.mark.parametrize("frames", [(31, 0, 17, 4, 9), (4, 3, 2, 1, 0), (8, 30, 1, 29, 2)])
def test_frames_do_not_matter(machine: Machine, frames: tuple[int, ...]) -> None:
    (prompt,) = prompts(machine, 3 * machine.page_tokens + 1)
    proc = machine.proc(prompt, frames)
    machine.decode(proc, tokens=NEW)
    assert agree(machine, proc, alone(machine, prompt))


def test_table_grows_a_page_at_a_time(machine: Machine) -> None:
    (prompt,) = prompts(machine, machine.page_tokens - 1)
    proc = machine.proc(prompt, [7])
    count = 2 * machine.page_tokens
    for _ in range(count):
        if len(proc.tokens) > len(proc.frames) * machine.page_tokens:
            proc.frames.append(proc.frames[-1] + 3)
        machine.decode(proc, tokens=1)
    assert agree(machine, proc, alone(machine, prompt, count))


def test_table_is_cut_and_continued(machine: Machine) -> None:
    """keep < pages: the last pages are elsewhere now, computed again there."""
    page = machine.page_tokens
    (prompt,) = prompts(machine, 2 * page + 2)
    proc = machine.proc(prompt, [3, 4, 5, 6])
    machine.decode(proc, tokens=2)
    del proc.tokens[len(prompt) :]
    proc.drawn.clear()
    proc.move([10, 11, 12], keep=1)
    proc.done = page
    machine.decode(proc, tokens=NEW)
    assert agree(machine, proc, alone(machine, prompt))


def test_table_is_replaced_after_its_process_was_dropped(machine: Machine) -> None:
    first, second = prompts(machine, 6, 7)
    gone = machine.proc(first, range(3))
    machine.decode(gone, tokens=1)
    proc = machine.proc(second, [2, 1, 0, 3, 4])
    machine.step(proc, drop=(gone.pid,))
    machine.decode(proc, tokens=NEW - 1)
    assert agree(machine, proc, alone(machine, second))


def test_prefix_frames_are_shared(machine: Machine) -> None:
    page = machine.page_tokens
    (prefix,) = prompts(machine, 2 * page)
    first = machine.proc([*prefix, 1, 2], [0, 1, 2, 3, 4])
    machine.step(first)
    second = machine.proc([*prefix, 3], [0, 1, 5, 6, 7], done=2 * page)
    third = machine.proc([*prefix, 4, 5, 6], [0, 1, 8, 9, 10], done=2 * page)
    machine.decode(first, second, third, tokens=NEW)
    assert agree(machine, first, alone(machine, [*prefix, 1, 2], NEW + 1))
    assert agree(machine, second, alone(machine, [*prefix, 3]))
    assert agree(machine, third, alone(machine, [*prefix, 4, 5, 6]))


def test_a_whole_prompt_in_shared_frames_samples_from_its_last_token(machine: Machine) -> None:
    """The last token runs again, over a private copy of the page that it is in."""
    page = machine.page_tokens
    (prompt,) = prompts(machine, 2 * page)
    first = machine.proc(prompt, range(5))
    machine.decode(first, tokens=NEW)
    machine.copy_frame(1, 9)
    second = machine.proc(prompt, [0, 9, 10, 11, 12], done=2 * page - 1)
    machine.decode(second, tokens=NEW)
    assert agree(machine, second, alone(machine, prompt))
    assert agree(machine, first, alone(machine, prompt))


def test_an_empty_forward_completes(machine: Machine) -> None:
    ticket = machine.ticket()
    machine.submit(Forward(ticket, ()))
    assert machine.wait(ticket) == ForwardDone(ticket, ())


def test_context_may_be_filled_to_its_last_token(harness: Harness) -> None:
    machine = Machine(harness, frames=40)
    limit = min(machine.device.info().max_context_tokens, 40 * machine.page_tokens)
    (prompt,) = prompts(machine, limit)
    proc = machine.proc(prompt, range(limit // machine.page_tokens))
    machine.decode(proc, tokens=1)
    assert proc.done == limit
    machine.close()


def test_a_row_beyond_its_table_fails_alone(machine: Machine) -> None:
    machine.expects_breach = True
    page = machine.page_tokens
    first, second = prompts(machine, page + 1, page + 2)
    procs = [machine.proc(first, range(3)), machine.proc(second, [8])]
    results = machine.step(*procs)
    assert isinstance(results[1], RowFault)
    assert isinstance(results[0], Sampled)
    machine.decode(procs[0], tokens=NEW - 1)
    assert agree(machine, procs[0], alone(machine, first))
