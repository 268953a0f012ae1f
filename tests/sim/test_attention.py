"""Attention mass in the kernel: who asks for it, and which prefix stays for it."""

import pytest

from tokenix.kernel.calls import Kill, Signal
from tokenix.kernel.params import Params
from tokenix.tests.sim.machine import SimMachine

PAGE = 4
MUCH = tuple(range(20, 20 + 2 * PAGE))
LATE = tuple(range(60, 60 + 2 * PAGE))


def machine(policy: str) -> SimMachine:
    params = Params(poison=True, prefix_policy=policy, attention_every=2)
    return SimMachine(12, 0, "fcfs", params, page_tokens=PAGE)


def run(box: SimMachine, *requests: tuple[tuple[int, ...], int]) -> list[int]:
    """One after the other; tokens of each prompt that were found."""
    found = []
    for prompt, tokens in requests:
        pid = box.spawn((*prompt, 90, 91), tokens)
        box.run()
        found.append(box.process(pid).usage.cached_tokens)
    return found


@pytest.mark.parametrize(("policy", "stays"), [("attention", MUCH), ("lru", LATE)])
def test_what_was_looked_at_most_stays(policy: str, stays: tuple[int, ...]) -> None:
    """Two prompts were used, one much, the other one lately; then the pool is filled."""
    box = machine(policy)
    run(box, (MUCH, 14), (LATE, 2), (tuple(range(100, 100 + 8 * PAGE)), 3))
    whole = 2 * PAGE
    goes = LATE if stays is MUCH else MUCH
    assert run(box, (stays, 1)) == [whole]
    assert run(box, (goes, 1))[0] < whole
    box.finish()


@pytest.mark.parametrize(("policy", "share"), [("attention", 0.5), ("lru", 0), ("hit-density", 0)])
def test_only_the_policy_that_wants_it_asks(policy: str, share: float) -> None:
    box = machine(policy)
    told = []
    submit = box.device.submit
    box.device.submit = lambda command, now_s: (told.append(command), submit(command, now_s))[1]
    run(box, (MUCH, 20))
    asked = [command.weigh for command in told if hasattr(command, "weigh")]
    assert sum(asked) == len(asked) * share and len(asked) == 20


def test_a_process_that_is_gone_or_paused_when_its_pass_ends_is_no_trouble() -> None:
    """Pages that were unmapped while the pass ran get nothing."""
    box = machine("attention")
    first = box.spawn((*MUCH, 90, 91), 30)
    second = box.spawn((*LATE, 90, 91), 30)
    box.run(until_s=0.05)
    assert box.kernel.in_flight is not None
    box.call(Kill(first, Signal.KILL))
    box.call(Kill(second, Signal.STOP))
    box.run(until_s=0.1)
    box.call(Kill(second, Signal.KILL))
    box.finish()
