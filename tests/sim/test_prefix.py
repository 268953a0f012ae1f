"""What newcomers find of what others have computed: whole pages, and the beginning of one."""

import pytest

from tokenix.drivers.sim import CostModel
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
