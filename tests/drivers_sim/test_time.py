"""Virtual time: three queues, each one after another, all at once."""

from itertools import pairwise

import pytest

from tokenix.drivers.ops import CopyFrame, CopyIn, CopyOut, Forward
from tokenix.drivers.sim import CostModel, SimDevice
from tokenix.drivers.sim.costs import beside_s
from tokenix.mm.ids import Pfn
from tokenix.tests.drivers_sim.lab import Lab


def test_commands_of_one_queue_follow_each_other(lab: Lab) -> None:
    lab.story([0, 1, 2, 3], tokens=1)
    start_s = lab.now_s
    first = lab.submit(Forward(lab.ticket(), ()))
    second = lab.submit(CopyFrame(lab.ticket(), Pfn(0), Pfn(9)))
    third = lab.submit(Forward(lab.ticket(), ()))
    for ticket, end_s in ((first, 1.0), (second, 1.5), (third, 2.5)):
        assert lab.sim.next_completion_s() == start_s + end_s
        lab.wait(ticket)
        assert lab.now_s == start_s + end_s


def test_queues_do_not_wait_for_each_other(lab: Lab) -> None:
    lab.story([0, 1, 2, 3], tokens=1)
    lab.swap_out((0, 0, 1), (1, 1, 1))
    start_s = lab.now_s
    slow = lab.submit(lab.copy_out((0, 2, 1), (1, 3, 1), (0, 4, 1)))
    medium = lab.submit(lab.copy_in((0, 1, 10), (1, 1, 11)))
    fast = lab.submit(Forward(lab.ticket(), ()))
    assert [done.ticket for done in lab.pass_s(3.0)] == [fast, medium, slow]
    assert lab.now_s == start_s + 3.0


@pytest.mark.parametrize(
    ("begin_s", "took_s", "load", "end_s"),
    [
        (0.0, 8.0, (0.0, 4.0), 8.5),
        (0.0, 4.0, (0.0, 8.0), 8.5),
        (4.0, 8.0, (0.0, 8.0), 12.0),
        (0.0, 8.0, (4.0, 8.0), 12.5),
        (9.0, 8.0, (0.0, 8.0), 17.0),
    ],
)
def test_groups_of_layers_wait_for_their_part_of_a_load(
    begin_s: float, took_s: float, load: tuple[float, float], end_s: float
) -> None:
    """The longer of the two, and an eighth of the other one."""
    assert beside_s(begin_s, took_s, *load) == end_s


def test_a_forward_beside_a_load_ends_behind_it(lab: Lab) -> None:
    proc = lab.story(range(8), prompt=range(1, 30))
    lab.swap_out(*((i, i, 1) for i in range(6)))
    start_s = lab.now_s
    load = lab.load_by_layers(*((i, 1, 10 + i) for i in range(6)))
    proc.move([10, 11, 12, 13, 14, 15, 6, 7])
    forward = lab.start(proc, beside=load)
    assert [done.ticket for done in lab.drain(2)] == [load, forward]
    assert lab.now_s == start_s + 6.0 + 1 / 8


def test_ties_complete_in_order_of_tickets(lab: Lab) -> None:
    lab.story([0, 1, 2, 3], tokens=1)
    lab.swap_out((0, 0, 1))
    commands: list[Forward | CopyOut | CopyIn] = [
        Forward(lab.ticket(), ()),
        lab.copy_out((0, 1, 1)),
        lab.copy_in((0, 1, 9)),
    ]
    for command in reversed(commands):
        lab.submit(command)
    assert [done.ticket for done in lab.pass_s(1.0)] == [command.ticket for command in commands]


def test_nothing_completes_early(lab: Lab) -> None:
    ticket = lab.submit(Forward(lab.ticket(), ()))
    assert lab.pass_s(0.999) == []
    assert [done.ticket for done in lab.pass_s(0.001)] == [ticket]
    assert lab.sim.next_completion_s() is None


def test_an_idle_queue_starts_at_once(lab: Lab) -> None:
    lab.pass_s(100.0)
    lab.wait(lab.submit(Forward(lab.ticket(), ())))
    assert lab.now_s == 101.0


def test_a_completion_not_polled_is_due_in_the_past(lab: Lab) -> None:
    lab.submit(Forward(lab.ticket(), ()))
    lab._now_s = 5.0
    lab.submit(Forward(lab.ticket(), ()))
    assert lab.sim.next_completion_s() == 1.0
    assert len(lab.poll()) == 1
    assert lab.sim.next_completion_s() == 6.0


def test_time_does_not_go_back(lab: Lab) -> None:
    lab.pass_s(2.0)
    with pytest.raises(AssertionError, match="time went back"):
        lab.sim.poll(1.0)


def test_a_forward_costs_what_it_computes() -> None:
    cost = CostModel(
        base_s=1.0, prefill_token_s=10.0, decode_row_s=100.0, kv_token_s=1000.0, in_page_s=0.5
    )
    assert cost.forward_s(0, 0, 0) == 1.0
    assert cost.forward_s(3, 2, 5) == 1.0 + 30.0 + 200.0 + 5000.0
    lab = Lab(cost=cost)
    prefill = lab.proc([1, 2, 3], [0, 1])
    lab.step(prefill)
    assert lab.now_s == 1.0 + 30.0 + 3000.0
    start_s = lab.now_s
    lab.step(prefill, lab.proc([1, 2], [2]))
    assert lab.now_s == start_s + 1.0 + 20.0 + 100.0 + 4000.0 + 2000.0


def test_info_gives_the_rates_of_the_costs() -> None:
    cost = CostModel()
    info = SimDevice(8, 4, cost=cost).info()
    assert info.step_s == cost.forward_s(0, 1, 0)
    assert info.copy_in_s_per_page == pytest.approx(cost.in_page_s, rel=0.1)
    assert info.copy_out_s_per_page == pytest.approx(cost.out_page_s, rel=0.1)
    assert info.prefill_tokens_per_s == pytest.approx(
        1 / (cost.prefill_token_s + cost.base_s / 256), rel=0.01
    )


def test_a_closed_device_gives_and_takes_nothing(lab: Lab) -> None:
    lab.submit(Forward(lab.ticket(), ()))
    lab.sim.close()
    assert lab.sim.poll(10.0) == []
    assert lab.sim.next_completion_s() is None
    with pytest.raises(AssertionError, match="closed"):
        lab.sim.submit(Forward(lab.ticket(), ()), 10.0)


def test_pages_of_a_copy_are_read_one_after_another_at_moments_of_the_seed() -> None:
    """Watch when each page is read, by poisoning nothing and sampling the event heap."""
    moments = []
    for seed in (1, 1, 2):
        lab = Lab(seed=seed)
        lab.story([0, 1, 2, 3], tokens=1)
        start_s = lab.now_s
        lab.submit(lab.copy_out((0, 0, 1), (1, 1, 1), (0, 2, 1)))
        times = sorted(at_s - start_s for at_s, _, _ in lab.sim._events)
        assert len(times) == 5, "start, three reads, end"
        assert all(a <= b for a, b in pairwise(times))
        assert all(i <= times[i + 1] <= i + 1 for i in range(3))
        moments.append(times)
    assert moments[0] == moments[1] != moments[2]
