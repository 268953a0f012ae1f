"""What newcomers find of what others have computed: whole pages, and the beginning of one."""

import pytest

from tokenix.drivers.sim import CostModel
from tokenix.kernel.answers import Rusage
from tokenix.kernel.calls import Spawn
from tokenix.kernel.params import Params
from tokenix.tests.sim.machine import SimMachine

PAGE = 8
COMMON = tuple(range(20, 20 + 2 * PAGE + 6))


def machine(cache: bool, token_s: float = 0.01) -> SimMachine:
    cost = CostModel(base_s=0.01, prefill_token_s=token_s)
    params = Params(poison=True, prefix_cache=cache)
    return SimMachine(24, 24, "progress", params, page_tokens=PAGE, cost=cost)


@pytest.mark.parametrize("alive", [True, False])
def test_the_beginning_of_a_page_is_copied(alive: bool) -> None:
    """Two prompts part in the middle of a page: six tokens of it are not computed again."""
    box = machine(cache=True)
    first = box.spawn((*COMMON, 90, 91, 92), 20 if alive else 2)
    box.run(until_s=0.5 if alive else 30.0)
    second = box.spawn((*COMMON, 80, 81, 82), 4)
    box.run(until_s=60.0)
    assert box.process(second).usage.cached_tokens == len(COMMON)
    box.check_output(first)
    box.check_output(second)


def test_it_is_computed_where_that_is_quicker_or_nothing_is_cached() -> None:
    for box, cached in ((machine(True, token_s=1e-4), 2 * PAGE), (machine(False), 0)):
        box.spawn((*COMMON, 90, 91, 92), 2)
        box.run(until_s=30.0)
        second = box.spawn((*COMMON, 80, 81, 82), 4)
        box.run(until_s=60.0)
        assert box.process(second).usage.cached_tokens == cached
        box.check_output(second)


def crowd(box: SimMachine) -> list[str]:
    """Eight ask about one document at once, which takes 0.3 s to compute; how each has ended."""
    document = tuple(range(60))
    asked = [Spawn((*document, 200 + n), max_tokens=2, ignore_eos=True) for n in range(8)]
    calls = [box.start(request) for request in asked]
    box.run(until_s=box.now_s + 60.0)
    replies = [box.replies[call] for call in calls]
    return ["refused" if reply.error else "served" for reply in replies]


def test_what_is_known_is_no_work_for_admission() -> None:
    """Behind a document that is cached nobody is refused for the time that computing it would take;
    where it is not, those are who come too late."""
    box = machine(cache=True, token_s=5e-3)
    assert "refused" in crowd(box), "nothing is known yet"
    assert crowd(box) == ["served"] * 8
    assert "refused" in crowd(machine(cache=False, token_s=5e-3))


def test_where_a_prefix_was_found_is_told() -> None:
    """On the device; then in the host tier, when another has had its frames."""
    box = machine(cache=True)
    document = tuple(range(20, 20 + 4 * PAGE))

    def ask(last: int) -> Rusage:
        pid = box.spawn((*document, last), 2)
        box.run(until_s=box.now_s + 30.0)
        return box.process(pid).usage

    assert ask(90).cached_tokens == 0
    usage = ask(91)
    assert (usage.cached_tokens, usage.cached_host_tokens) == (4 * PAGE, 0)
    box.spawn(tuple(range(255, 255 - 22 * PAGE, -1)), 2)
    box.run(until_s=box.now_s + 30.0)
    usage = ask(92)
    assert usage.cached_tokens >= usage.cached_host_tokens >= PAGE
