"""The oracle, and that the device agrees with it."""

from dataclasses import replace
from typing import Any

import pytest

from tokenix.drivers.ops import SampleSpec, SamplingParams
from tokenix.drivers.sim import SimDevice, expected_tokens
from tokenix.drivers.sim.model import SimModel
from tokenix.tests.device.machine import Harness, Machine, words

PROMPT = words(9, 100)
WARM = SamplingParams(temperature=0.8, seed=4)


@pytest.mark.parametrize("page_tokens", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        WARM,
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(logit_bias=((3, 2.0), (4, -100.0)), logprobs=3),
    ],
    ids=["greedy", "warm", "penalty", "bias"],
)
def test_the_device_draws_what_the_oracle_says(page_tokens: int, params: SamplingParams) -> None:
    machine = Machine(
        Harness("sim", 100, page_tokens, lambda f, s, p: SimDevice(f, s, p, 100, 7), virtual=True)
    )
    proc = machine.proc(PROMPT, range(32)[: -(-29 // page_tokens)], params)
    machine.decode(proc, tokens=20)
    expected = expected_tokens(PROMPT, 20, params, 100, eos_token=7, ignore_eos=True)
    assert proc.tokens[9:] == expected
    machine.close()


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.9},
        {"seed": 5},
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"logit_bias": ((3, 1.0),)},
    ],
    ids=str,
)
def test_each_parameter_matters(change: dict[str, Any]) -> None:
    changed = replace(WARM, **change)
    assert expected_tokens(PROMPT, 20, WARM, 100) != expected_tokens(PROMPT, 20, changed, 100)


def test_position_is_part_of_the_chance() -> None:
    """On one and the same prefix, so that nothing else can make the difference."""
    model = SimModel(100)
    drawn = {model.draw(1, SampleSpec(WARM, (), 0), position).token for position in range(20)}
    assert len(drawn) > 10
    still = SamplingParams()
    assert len({model.draw(1, SampleSpec(still, (), 0), p).token for p in range(20)}) == 1


def test_chance_does_not_matter_to_greedy() -> None:
    greedy = expected_tokens(PROMPT, 20, SamplingParams(), 100)
    assert greedy == expected_tokens(PROMPT, 20, SamplingParams(seed=9, top_p=0.1), 100)
    assert greedy == expected_tokens(PROMPT, 20, SamplingParams(logprobs=4), 100)


@pytest.mark.parametrize("index", range(9))
def test_each_prompt_token_matters(index: int) -> None:
    changed = [*PROMPT]
    changed[index] = (changed[index] + 1) % 100
    assert expected_tokens(changed, 8, vocab=100) != expected_tokens(PROMPT, 8, vocab=100)


@pytest.mark.parametrize("params", [SamplingParams(), WARM, SamplingParams(presence_penalty=1.0)])
def test_a_fork_continues_its_prefix(params: SamplingParams) -> None:
    whole = expected_tokens(PROMPT, 20, params, 100)
    rest = expected_tokens(PROMPT + whole[:8], 12, params, 100, prompt_tokens=len(PROMPT))
    assert rest == whole[8:]


def test_end_of_text_ends_the_output_at_a_rate_free_of_the_vocabulary() -> None:
    for vocab in (100, 50_000):
        lengths = [
            len(expected_tokens([seed], 1000, vocab=vocab, eos_token=7)) for seed in range(60)
        ]
        assert 15 < sum(lengths) / len(lengths) < 60


def test_end_of_text_may_be_put_off_or_ignored() -> None:
    short = expected_tokens([3], 1000, vocab=100, eos_token=7)
    assert short[-1] == 7
    later = expected_tokens([3], 1000, vocab=100, eos_token=7, min_tokens=len(short) + 5)
    assert later[: len(short) - 1] == short[:-1]
    assert len(later) > len(short)
    assert later.count(7) <= 1
    assert len(expected_tokens([3], 200, vocab=100, eos_token=7, ignore_eos=True)) == 200


def test_banned_tokens_never_come() -> None:
    banned = tuple(range(50))
    assert min(expected_tokens(PROMPT, 50, vocab=100, banned=banned)) >= 50


def test_draws_are_spread_over_the_vocabulary() -> None:
    drawn = expected_tokens(PROMPT, 5000, vocab=50)
    counts = [drawn.count(token) for token in range(50)]
    assert 60 < min(counts) <= max(counts) < 150
