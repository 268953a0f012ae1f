"""Drawing tokens: every option of SamplingParams, the random numbers, and faults."""

from dataclasses import replace

import numpy as np
import pytest

from tokenix.drivers.cpu.sampling import _draw, _draw_wide, largest, sample_rows, uniform
from tokenix.drivers.ops import RowFault, Sampled, SampleSpec, SamplingParams

VOCAB = 50


def spec(history=(), prompt=0, banned=(), **params):
    return SampleSpec(SamplingParams(**params), history, prompt, banned)


def draw(logits, position=10, **options):
    (result,) = sample_rows(np.array([logits], np.float32), [spec(**options)], [position])
    return result


def drawn(logits, count=400, **options):
    """The tokens drawn at `count` positions."""
    rows = np.array([logits] * count, np.float32)
    return [r.token for r in sample_rows(rows, [spec(**options)] * count, range(count))]


@pytest.fixture
def logits(seed):
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 3


def test_greedy_takes_the_highest_and_ties_the_lowest_id():
    assert draw([0, 3, 1, 3, -1]) == Sampled(1)
    assert draw([0, 3, 1, 3, -1], banned=(1,)) == Sampled(3)


def test_many_rows_are_drawn_each_for_itself(logits):
    specs = [
        spec(),
        spec(temperature=1.0, seed=3),
        spec(logprobs=2),
        spec(temperature=0.5, top_k=4),
    ]
    rows = np.stack([logits, -logits, logits[::-1], logits * 2])
    together = sample_rows(rows.copy(), specs, [10] * 4)
    for i in range(4):
        assert sample_rows(rows[i : i + 1].copy(), specs[i : i + 1], [10]) == [together[i]]


def test_the_distribution_is_the_softmax(logits):
    count = 20_000
    for temperature in (0.7, 1.5):
        expected = np.exp(logits.astype(np.float64) / temperature)
        expected /= expected.sum()
        tokens = drawn(logits, count, temperature=temperature, seed=5)
        found = np.bincount(tokens, minlength=VOCAB)
        likely = expected * count >= 5
        chi = ((found - expected * count)[likely] ** 2 / (expected * count)[likely]).sum()
        assert chi < likely.sum() + 5 * np.sqrt(2 * likely.sum())


def test_top_k(logits):
    best = set(np.argsort(-logits)[:3].tolist())
    assert set(drawn(logits, temperature=3.0, top_k=3)) == best
    assert set(drawn(logits, temperature=3.0, top_k=1)) == {int(logits.argmax())}
    assert draw(logits, temperature=1.0, top_k=1) == draw(logits)
    assert set(drawn(logits, temperature=5e-324)) == {int(logits.argmax())}
    assert drawn(logits, temperature=1.0, top_k=VOCAB) == drawn(logits, temperature=1.0)
    assert set(drawn([1, 1, 1, 1], temperature=1.0, top_k=2)) == {0, 1}


@pytest.mark.parametrize("vocab", [50, 3000])
def test_top_p_is_the_smallest_set_that_reaches_it(vocab, seed):
    logits = np.random.default_rng(seed).standard_normal(vocab).astype(np.float32)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    order = np.argsort(-p)
    for top_p in (0.05, 0.5, 0.95):
        size = int(np.searchsorted(p[order].cumsum(), top_p)) + 1
        found = set(drawn(logits, 3000, temperature=1.0, top_p=top_p))
        assert found <= set(order[:size].tolist())
        assert size > 40 or found == set(order[:size].tolist())
    assert set(drawn(logits, temperature=1.0, top_p=1e-9)) == {int(order[0])}


def test_top_p_counts_what_top_k_left():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert set(drawn(logits, temperature=1.0, top_k=2, top_p=0.6)) == {0, 1}
    assert set(drawn(logits, temperature=1.0, top_k=2, top_p=0.5)) == {0}


@pytest.mark.parametrize("vocab", [50, 513, 49152])
def test_what_is_drawn_is_what_sorting_all_gives(vocab, seed):
    """The kernels that look for candidates against plain numpy, on peaked and on flat rows."""
    chance = np.random.default_rng(seed)
    for number in range(40):
        row = (chance.standard_normal(vocab) * chance.choice([0.1, 1, 3, 8])).astype(np.float32)
        params = SamplingParams(
            temperature=float(chance.choice([0.1, 0.7, 1.0, 1.5])),
            top_k=int(chance.choice([0, 1, 40, 1000])),
            top_p=float(chance.choice([1.0, 0.9, 0.5, 1e-9])),
            min_p=float(chance.choice([0.0, 0.05, 1.0])),
            seed=number,
        )
        asked = SampleSpec(params, (), 0)
        (found,) = sample_rows(row[None].copy(), [asked], [7])
        sorted_all = _draw_wide(row.astype(np.float64), asked, uniform(number, 7))
        assert found == Sampled(sorted_all)
        (again,) = sample_rows(row[None], [replace(asked, banned=(int(row.argmax()),))], [7])
        row[row.argmax()] = -np.inf
        assert again == Sampled(_draw_wide(row.astype(np.float64), asked, uniform(number, 7)))


def test_logprobs_of_a_large_vocabulary(seed):
    row = (np.random.default_rng(seed).standard_normal(49152) * 3).astype(np.float32)
    wide = row.astype(np.float64)
    expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    for flat in (1, 300):  # 300: all are nearly alike, more than are collected
        (found,) = sample_rows(row[None] / np.float32(flat), [spec(logprobs=20)], [7])
        if flat == 1:
            assert found.logprob == pytest.approx(expected.max(), abs=1e-6)
            assert [p for _, p in found.top] == pytest.approx(np.sort(expected)[:-21:-1], abs=1e-6)
        assert [token for token, _ in found.top] == np.argsort(-wide, kind="stable")[:20].tolist()


@pytest.mark.parametrize("allowed", [1, 3, 100, 5000])
@pytest.mark.parametrize(
    "options",
    [{"top_k": 226}, {"top_k": 40_000}, {"top_p": 1 - 1e-12}, {"top_k": 50, "top_p": 0.3}],
)
def test_fewer_than_asked_for_may_be_drawn(allowed, options):
    """A grammar leaves few tokens of many: the others, -inf, are never candidates."""
    rng = np.random.default_rng(allowed)
    scores = np.full(49_152, -np.inf)
    left = rng.choice(len(scores), allowed, replace=False)
    scores[left] = rng.normal(0.0, 3.0, allowed)
    for position in range(20):
        told = spec(temperature=1.0, seed=position, **options)
        token = _draw(scores, told, position)
        assert token in left
        number = uniform(position, position)
        assert token == _draw_wide(scores, told, number)


def test_min_p():
    logits = np.log([0.5, 0.26, 0.24])
    assert set(drawn(logits, temperature=1.0, min_p=0.5)) == {0, 1}
    assert set(drawn(logits, temperature=1.0, min_p=1.0)) == {0}


def test_repetition_penalty_reads_prompt_and_output():
    options = {"history": [0, 1, 2], "position": 2, "prompt": 1, "repetition_penalty": 2.0}
    assert draw([3.0, 2.9, 2.5], **options) == Sampled(2), "0 is in the prompt, 1 in the output"
    assert draw([-1.0, -1.1, -2.1], **options) == Sampled(0), "negative logits are multiplied"


def test_presence_and_frequency_penalties_read_the_output():
    options = {"history": [0, 0, 0, 1, 2, 2], "position": 6, "prompt": 3}
    logits = [4.0, 3.0, 3.5, 2.2]
    assert draw(logits, **options, presence_penalty=1.0) == Sampled(0)
    logits[0] = 0.0
    assert draw(logits, **options, presence_penalty=1.0) == Sampled(2)
    assert draw(logits, **options, frequency_penalty=1.0) == Sampled(3)
    assert draw(logits, **options, frequency_penalty=0.6) == Sampled(1)


def test_history_behind_the_position_is_not_read():
    penalty = {"position": 1, "prompt": 0, "frequency_penalty": 5.0}
    assert draw([2, 1, 0], history=[2, 0, 0], **penalty) == Sampled(0)


def test_bias_and_bans():
    assert draw([0, 1, 2], logit_bias=((0, 100.0),)) == Sampled(0)
    assert draw([0, 1, 2], logit_bias=((0, 100.0),), banned=(0,)) == Sampled(2)
    assert 2 not in drawn([0, 1, 2], temperature=5.0, banned=(2,))
    assert isinstance(draw([0, 1], banned=(0, 1)), RowFault)


def test_logprobs_are_of_the_models_own_distribution():
    logits = np.log([0.5, 0.2, 0.3])
    result = draw(logits, logprobs=2, banned=(0,), temperature=0.0, repetition_penalty=1.3)
    assert result.token == 2
    assert result.logprob == pytest.approx(np.log(0.3), abs=1e-6)
    assert [token for token, _ in result.top] == [0, 2]
    assert result.top[0][1] == pytest.approx(np.log(0.5), abs=1e-6)
    assert draw(logits, logprobs=0).top == ()
    assert len(draw(logits, logprobs=99).top) == 3


@pytest.mark.parametrize("junk", [np.nan, np.inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"logprobs": 1}])
def test_logits_that_are_not_finite_fail_their_row_alone(junk, options, logits):
    rows = np.stack([logits, logits, logits])
    rows[1, 17] = junk
    results = sample_rows(rows, [spec(**options)] * 3, [10] * 3)
    assert isinstance(results[1], RowFault)
    assert results[0] == results[2] == draw(logits, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"banned": (VOCAB,)},
        {"logit_bias": ((-1, 1.0),)},
        {"history": [VOCAB], "repetition_penalty": 2.0},
        {"history": ["x"], "presence_penalty": 2.0},
    ],
)
def test_impossible_options_fail_their_row_alone(options, logits):
    results = sample_rows(np.stack([logits, logits]), [spec(**options), spec()], [1, 1])
    assert isinstance(results[0], RowFault)
    assert results[1] == draw(logits)


def test_all_minus_infinity_is_a_fault():
    assert isinstance(draw([-np.inf] * 4), RowFault)


def test_a_low_temperature_does_not_overflow():
    assert set(drawn([5e4, 4.9e4, -5e4], temperature=1e-5)) == {0}


def test_seed_and_position_decide():
    flat = np.zeros(VOCAB)
    first = drawn(flat, temperature=1.0, seed=1)
    assert first == drawn(flat, temperature=1.0, seed=1)
    assert first != drawn(flat, temperature=1.0, seed=2)
    assert len(set(first)) == VOCAB


def test_uniform_is_uniform_and_uncorrelated():
    grid = np.array([[uniform(seed, at) for at in range(200)] for seed in range(200)])
    assert 0 <= grid.min() < grid.max() < 1
    assert abs(grid.mean() - 0.5) < 0.01
    for one, other in ((grid[:-1], grid[1:]), (grid[:, :-1], grid[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
    assert uniform(2**70 + 3, 5) == uniform(3, 5)


def test_largest_is_ordered_with_ties_to_the_lowest_id(seed):
    scores = np.random.default_rng(seed).integers(0, 9, 200).astype(np.float64)
    order = sorted(range(200), key=lambda i: (-scores[i], i))
    for count in (0, 1, 7, 50, 200):
        assert largest(scores, count).tolist() == order[:count]
