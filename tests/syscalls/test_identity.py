"""Outputs of the real model are the same tokens, whatever happens to a process on the way."""

import time
from collections.abc import Iterator

import pytest

import tokenix
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.mm.mass import NOTHING
from tokenix.sched.plan import PauseMode
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import SpawnOptions
from tokenix.tests.rude import RudeScheduler
from tokenix.tests.syscalls.conftest import PATIENT

SYSTEM = "You are a careful clerk who answers every question in one plain sentence. "
PROMPTS = (
    "What is a page fault?",
    "Name three rivers of Europe.",
    "Why does bread rise in the oven?",
    "Write a line about the sea.",
)
GREEDY: SpawnOptions = {"max_tokens": 20, "ignore_eos": True}
SEEDED: SpawnOptions = {
    "max_tokens": 20, "ignore_eos": True, "temperature": 0.9, "top_p": 0.95, "seed": 7,
    "repetition_penalty": 1.1, "frequency_penalty": 0.2, "logprobs": 2,
}  # fmt: skip
PAGES = 96
CASES = [(SYSTEM + prompt, options) for prompt in PROMPTS for options in (GREEDY, SEEDED)]
Drawn = list[tuple[int, float, tuple[tuple[int, float], ...]]]


def machine(prefix_cache: bool, kv_dtype: str = "f16", weights: str = "auto") -> Syscalls:
    return tokenix.boot(
        "smollm2",
        device_pages=PAGES,
        kv_dtype=kv_dtype,
        weights=weights,
        params=Params(prefix_cache=prefix_cache, poison=True),
        tunables=PATIENT,
    )


def drawn(k: Syscalls, pid: Pid) -> Drawn:
    """Everything that was drawn, to the last bit of its log probabilities."""
    found: Drawn = []
    while True:
        result = k.read(pid)
        found += [(output.token, output.logprob, output.top) for output in result.outputs]
        if result.eof:
            assert result.reason is not None and result.reason.value == "length", result.error
            return found


@pytest.fixture(scope="module")
def alone() -> list[Drawn]:
    """The reference: each process alone on the machine, never paused, no prefix cache."""
    with machine(prefix_cache=False) as k:
        return [drawn(k, k.spawn(prompt, **options)) for prompt, options in CASES]


@pytest.fixture(scope="module", params=[True, False], ids=["prefix-cache", "no-cache"])
def shared(request: pytest.FixtureRequest) -> Iterator[Syscalls]:
    with machine(prefix_cache=request.param) as k:
        yield k


def rude(k: Syscalls, every: int, *modes: PauseMode) -> RudeScheduler:
    """Put a rude scheduler in charge of an idle machine."""
    kernel = k.machine.kernel
    assert not kernel.processes
    kernel.scheduler = RudeScheduler(kernel.scheduler, every, modes)
    return kernel.scheduler


def test_batching_changes_nothing(shared: Syscalls, alone: list[Drawn]) -> None:
    pids = [shared.spawn(prompt, **options) for prompt, options in CASES]
    assert [drawn(shared, pid) for pid in pids] == alone


def test_asking_for_attention_changes_nothing(alone: list[Drawn]) -> None:
    """All cases at once; pages that were looked at are known to have been."""
    params = Params(prefix_policy="attention", attention_every=2, poison=True)
    with tokenix.boot("smollm2", device_pages=PAGES, params=params, tunables=PATIENT) as k:
        pids = [k.spawn(prompt, **options) for prompt, options in CASES]
        assert [drawn(k, pid) for pid in pids] == alone
        known = [page.use for page in k.machine.kernel.memory.index.pages() if page.use]
    first, *rest = sorted(known, key=lambda page: page.depth)
    assert first.depth == 0 and first.log_mass > max(page.log_mass for page in rest) > NOTHING


@pytest.mark.parametrize("every", [1, 3, 16, 0], ids=["every-1", "every-3", "every-16", "random"])
@pytest.mark.parametrize("mode", [PauseMode.SWAP, PauseMode.RECOMPUTE])
def test_preemption_changes_nothing(
    shared: Syscalls, alone: list[Drawn], every: int, mode: PauseMode
) -> None:
    scheduler = rude(shared, every, mode)
    dear = mode is PauseMode.RECOMPUTE and every in (1, 3)
    cases = CASES[:4] if dear else CASES
    pids = [shared.spawn(prompt, **options) for prompt, options in cases]
    assert [drawn(shared, pid) for pid in pids] == alone[: len(cases)]
    assert scheduler.forced[mode] >= len(cases), "every process was preempted"


@pytest.mark.parametrize("mode", [PauseMode.SWAP, PauseMode.RECOMPUTE])
def test_preemption_of_a_process_that_runs_alone(
    shared: Syscalls, alone: list[Drawn], mode: PauseMode
) -> None:
    scheduler = rude(shared, 2, mode)
    for (prompt, options), expected in list(zip(CASES, alone, strict=True))[:2]:
        assert drawn(shared, shared.spawn(prompt, **options)) == expected
    assert scheduler.forced[mode] >= 2


def stopped(k: Syscalls, pid: Pid) -> int:
    """Stop a process, let the pass that it is in end, and say how many tokens it has drawn."""
    k.kill(pid, tokenix.SIGSTOP)
    while k.stat(pid).state == "running":
        time.sleep(0.001)
    return k.stat(pid).output_tokens


def test_forks_continue_as_their_parent_would(shared: Syscalls, alone: list[Drawn]) -> None:
    """Greedy children repeat what is left of the parent's output, preempted or not."""
    rude(shared, 0, PauseMode.SWAP, PauseMode.RECOMPUTE)
    prompt, options = CASES[0]
    parent = shared.spawn(prompt, **options)
    first = shared.read(parent, max_tokens=5)
    known = stopped(shared, parent)
    children = shared.fork(parent, 3)
    for pid in (*children, parent):
        shared.kill(pid, tokenix.SIGCONT)
    expected = alone[0]
    for child in children:
        assert drawn(shared, child) == expected[known:]
    assert [output.token for output in first.outputs] + [token for token, _, _ in drawn(
        shared, parent
    )] == [token for token, _, _ in expected]  # fmt: skip


def test_seeded_forks_differ_and_repeat(shared: Syscalls) -> None:
    prompt, options = CASES[1]
    texts = []
    for _ in range(2):
        parent = shared.spawn(prompt, **options)
        shared.read(parent, max_tokens=1)
        known = stopped(shared, parent)
        children = shared.fork(parent, 2, seeds=(1, 2))
        for pid in (*children, parent):
            shared.kill(pid, tokenix.SIGCONT)
        texts.append((known, [drawn(shared, child) for child in children]))
        drawn(shared, parent)
    (known_1, first), (known_2, second) = texts
    assert first[0] != first[1], "children with different seeds go different ways"
    if known_1 == known_2:
        assert first == second, "the same seeds go the same way"


@pytest.mark.parametrize(
    ("kv_dtype", "weights"),
    [("int8", "auto"), ("fp8", "auto"), ("int4", "auto"), ("f16", "bf16")],
)
def test_every_format_survives_everything_too(kv_dtype: str, weights: str) -> None:
    """Alone, batched, swapped, computed again and forked: the same bits in every format."""
    cases = CASES[:2]
    with machine(prefix_cache=False, kv_dtype=kv_dtype, weights=weights) as k:
        expected = [drawn(k, k.spawn(prompt, **options)) for prompt, options in cases]
        scheduler = rude(k, 3, PauseMode.SWAP, PauseMode.RECOMPUTE)
        pids = [k.spawn(prompt, **options) for prompt, options in cases]
        assert [drawn(k, pid) for pid in pids] == expected
        assert min(scheduler.forced[mode] for mode in (PauseMode.SWAP, PauseMode.RECOMPUTE)) >= 2
        for pid in pids:
            k.wait(pid)
        prompt, options = cases[0]
        parent = k.spawn(prompt, **options)
        k.read(parent, max_tokens=5)
        known = stopped(k, parent)
        (child,) = k.fork(parent)
        k.kill(child, tokenix.SIGCONT)
        assert drawn(k, child) == expected[0][known:]


def test_memory_is_given_back(shared: Syscalls) -> None:
    for zombie in shared.ps():
        shared.wait(zombie.pid)
    stats = shared.vmstat()
    assert stats["frames.free"] + stats["frames.cached"] == PAGES
    assert stats["host.free"] + stats["host.spare"] == stats["host.total"]
