"""A load by layers, and forwards beside it: nothing shows but that they are done sooner."""

import pytest

from tokenix.drivers.ops import CopyDone, CopyFailed, ForwardDone, RowFault, Sampled, SamplingParams
from tokenix.mm.ids import Ticket
from tokenix.tests.device.line import Line
from tokenix.tests.device.machine import Machine, Proc
from tokenix.tests.device.test_forward import NEW, agree, alone, prompts

PLAIN = SamplingParams()
"""Of rows that the next forward goes on with."""


@pytest.fixture
def covering(machine: Machine) -> Machine:
    if not machine.device.info().covers_loads:
        pytest.skip("this device covers no loads")
    return machine


def leave(machine: Machine, proc: Proc, tokens: int) -> list[tuple[int, int, int]]:
    """All that `proc` has computed of its first `tokens` goes to slots and nowhere else. Returns
    (slot, generation, new frame)s to bring it back with; its table names those."""
    machine.wait(machine.start(proc, chunk=tokens))
    proc.done = tokens
    pages = -(-tokens // machine.page_tokens)
    old, new = proc.frames[:pages], [20 + 2 * i for i in range(pages)]
    out = machine.swap_out(*((frame, 3 * i, 1) for i, frame in enumerate(old)))
    assert isinstance(out, CopyDone)
    machine.wipe(*old)
    proc.move([*new, *proc.frames[pages:]])
    return [(3 * i, 1, frame) for i, frame in enumerate(new)]


def land(machine: Machine, load: Ticket, forward: Ticket) -> ForwardDone:
    """Both, in the order in which they must be told."""
    copied, ran = machine.drain(2)
    assert isinstance(copied, CopyDone | CopyFailed) and copied.ticket == load
    assert isinstance(ran, ForwardDone) and ran.ticket == forward
    return ran


def draw(proc: Proc, result: Sampled | RowFault | None) -> None:
    assert isinstance(result, Sampled), result
    proc.done = len(proc.tokens)
    proc.tokens.append(result.token)
    proc.drawn.append(result)


def tokens_of(drawn: list[Sampled]) -> list[int]:
    return [one.token for one in drawn]


@pytest.mark.parametrize("restored", [1.0, 2.0, 1.4, 2.7], ids=lambda pages: f"{pages}-pages")
@pytest.mark.parametrize("todo", [1, 9, 40], ids=lambda tokens: f"{tokens}-tokens")
def test_a_prompt_runs_beside_the_load_of_what_is_before_it(
    covering: Machine, restored: float, todo: int
) -> None:
    """Also behind a page that is loaded and written on; also if there is a token only to do."""
    machine, tokens = covering, int(restored * covering.page_tokens)
    prompt, other = prompts(machine, tokens + todo, 5)
    proc, beside = machine.proc(prompt, range(15)), machine.proc(other, [16, 17, 18])
    machine.decode(beside, tokens=1)
    pages = leave(machine, proc, tokens)
    load = machine.load_by_layers(*pages)
    done = land(machine, load, machine.start(beside, proc, beside=load))
    for one, result in zip((beside, proc), done.results, strict=True):
        draw(one, result)
    machine.decode(proc, beside, tokens=NEW - 1)
    assert agree(machine, proc, alone(machine, prompt))
    assert agree(machine, beside, alone(machine, other, NEW + 1))


def test_two_forwards_beside_one_load(covering: Machine) -> None:
    machine = covering
    (prompt,) = prompts(machine, 3 * machine.page_tokens + 2)
    proc = machine.proc(prompt, range(6), PLAIN)
    pages = leave(machine, proc, 2 * machine.page_tokens)
    line = Line(machine)
    load = machine.load_by_layers(*pages)
    line.launch([proc], beside=load)
    line.launch([proc], beside=load)
    assert isinstance(machine.wait(load), CopyDone)
    line.land()
    line.land()
    machine.decode(proc, tokens=NEW - 2)
    assert tokens_of(proc.drawn) == tokens_of(alone(machine, prompt))


def test_a_page_that_is_not_loaded_fails_the_row_that_reads_it_and_no_other(
    covering: Machine,
) -> None:
    """And the row that goes on with it. The page's frame is as good as any, afterwards."""
    machine = covering
    machine.expects_breach = True
    prompt, other = prompts(machine, 3 * machine.page_tokens + 2, 5)
    proc, beside = machine.proc(prompt, range(6), PLAIN), machine.proc(other, [8, 9, 10, 11], PLAIN)
    machine.decode(beside, tokens=1)
    first, (slot, generation, frame) = leave(machine, proc, 2 * machine.page_tokens)
    load = machine.load_by_layers(first, (slot, generation + 1, frame))
    line = Line(machine)
    line.launch([beside, proc], beside=load)
    line.launch([proc, beside], beside=load)
    failed = machine.wait(load)
    assert isinstance(failed, CopyFailed) and failed.bad == (1,) and failed.reason
    fine, fault = line.land()
    assert isinstance(fine, Sampled) and isinstance(fault, RowFault) and fault.reason
    fault, fine = line.land()
    assert isinstance(fine, Sampled) and isinstance(fault, RowFault)
    assert tokens_of(beside.drawn) == tokens_of(alone(machine, other)[:3])
    proc.done = machine.page_tokens
    machine.decode(proc, beside, tokens=NEW)
    assert tokens_of(proc.drawn) == tokens_of(alone(machine, prompt))


def test_a_load_by_layers_is_a_load(covering: Machine) -> None:
    """Whether or not anything runs beside it."""
    machine = covering
    (prompt,) = prompts(machine, 2 * machine.page_tokens + 3)
    proc = machine.proc(prompt, range(5))
    load = machine.load_by_layers(*leave(machine, proc, 2 * machine.page_tokens + 1))
    assert isinstance(machine.wait(load), CopyDone)
    machine.decode(proc, tokens=NEW)
    assert agree(machine, proc, alone(machine, prompt))
    assert isinstance(machine.wait(machine.load_by_layers()), CopyDone), "of nothing"
