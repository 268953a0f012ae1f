"""Queues, completions and the end of a device."""

from collections import Counter

from tokenix.drivers.ops import CopyDone, CopyFrame, Forward, ForwardDone, RowFault, Sampled
from tokenix.mm.ids import Pfn
from tokenix.tests.device.machine import Harness, Machine, same
from tokenix.tests.device.test_forward import alone, prompts


def test_info_is_sane(machine: Machine) -> None:
    info = machine.device.info()
    assert info.name
    assert (info.frames, info.host_slots) == (32, 16)
    assert info.page_tokens == machine.page_tokens
    assert info.vocab_tokens == machine.harness.vocab
    assert info.max_context_tokens > 0
    assert info.frame_bytes > 0
    assert 0 < info.step_s < 60
    assert info.prefill_tokens_per_s > 0
    assert 0 < info.copy_in_s_per_page < 60
    assert 0 < info.copy_out_s_per_page < 60


def test_compute_runs_in_the_order_of_submission(machine: Machine) -> None:
    """Prefill, copy of its tail, a child on the copy, poison: submitted at once."""
    page = machine.page_tokens
    (prompt,) = prompts(machine, page + 2)
    parent = machine.proc(prompt, [0, 1, 2, 3])
    child = machine.proc([*prompt, 9], [0, 4, 5, 6], done=len(prompt))
    tickets = [machine.start(parent)]
    tickets.append(machine.submit(CopyFrame(machine.ticket(), Pfn(1), Pfn(4))))
    tickets.append(machine.start(child))
    machine.poison(0, 1, 4)
    done = machine.drain(3)
    assert [completion.ticket for completion in done] == tickets
    first, copied, second = done
    assert isinstance(first, ForwardDone)
    assert isinstance(copied, CopyDone)
    assert isinstance(second, ForwardDone)
    tolerance = machine.harness.tolerance
    for forward, tokens in ((first, prompt), (second, [*prompt, 9])):
        (result,) = forward.results
        assert isinstance(result, Sampled)
        assert same([result], alone(machine, tokens, 1), tolerance)
    machine.expects_breach = True
    child.tokens.append(1)
    child.done = len(prompt) + 1
    (result,) = machine.step(child)
    assert isinstance(result, RowFault)


def test_each_ticket_completes_once(machine: Machine) -> None:
    procs = [machine.proc(p, [2 * i, 2 * i + 1]) for i, p in enumerate(prompts(machine, 3, 4, 5))]
    for proc in procs:
        machine.decode(proc, tokens=1)
    tickets = []
    for turn in range(4):
        tickets.append(machine.submit(machine.copy_out((0, turn, 1))))
        tickets.append(machine.start(procs[1]))
        tickets.append(machine.submit(machine.copy_in()))
        tickets.append(machine.submit(CopyFrame(machine.ticket(), Pfn(4), Pfn(20 + turn))))
    done = machine.drain(len(tickets))
    assert Counter(completion.ticket for completion in done) == Counter(tickets)
    assert machine.poll() == []
    assert machine.device.next_completion_s() is None


def test_poll_of_an_idle_device_is_empty(machine: Machine) -> None:
    assert machine.poll() == []
    assert machine.device.next_completion_s() is None


def test_poison_alone_completes_nothing(machine: Machine) -> None:
    machine.poison(3)
    ticket = machine.submit(Forward(machine.ticket(), ()))
    assert [completion.ticket for completion in machine.drain(1)] == [ticket]
    assert machine.poll() == []


def test_close_is_idempotent(harness: Harness) -> None:
    machine = Machine(harness)
    machine.device.close()
    machine.device.close()


def test_close_with_work_pending_does_not_hang(harness: Harness) -> None:
    machine = Machine(harness)
    (prompt,) = prompts(machine, 3 * machine.page_tokens)
    proc = machine.proc(prompt, range(4))
    machine.decode(proc, tokens=1)
    for turn in range(4):
        machine.start(proc)
        machine.submit(machine.copy_out((0, turn, 1)))
        machine.submit(machine.copy_in())
    machine.device.close()
    machine.device.close()
