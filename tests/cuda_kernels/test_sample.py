"""The token that the CPU's sampling draws, whatever asks for it; simulated."""

from dataclasses import dataclass

import numpy as np
import pytest

from tokenix.drivers.cpu.sampling import uniform as cpu_uniform
from tokenix.drivers.cuda.kernels import oracles, sample
from tokenix.drivers.cuda.kernels.abi import FAULT, NOTHING
from tokenix.tests.cuda_kernels.simt import launch
from tokenix.tests.cuda_kernels.world import frozen

THREADS, COPIES = 64, 2


@dataclass(frozen=True)
class Row:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 5


def draw(
    logits: np.ndarray, rows: list[Row], seed: int, threads: int = THREADS
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the kernel and of the oracle."""
    vocab = logits.shape[1]
    given = [
        frozen(np.array([getattr(row, name) for row in rows], kind))
        for name, kind in (
            ("temperature", np.float64),
            ("top_k", np.int32),
            ("top_p", np.float64),
            ("min_p", np.float64),
            ("seed", np.uint64),
            ("position", np.int32),
        )
    ]
    flat = frozen(logits.astype(np.float32).reshape(-1))
    tokens, wanted = np.full((2, len(rows)), -7, np.int32)
    kernel = sample.make_sample(threads, COPIES)
    launch(kernel, (len(rows),), threads, flat, *given, tokens, vocab, seed=seed)
    oracles.sample(flat, *given, wanted, vocab)
    return tokens, wanted


def draw_logits(seed: int, rows: int, vocab: int) -> np.ndarray:
    """With many ties, as a 16-bit head gives them."""
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, vocab)) * 3).astype(np.float16)


KINDS = [
    Row(),
    Row(temperature=1.0),
    Row(temperature=0.3, min_p=0.05),
    Row(temperature=0.8, top_k=7),
    Row(temperature=1.5, top_p=0.9),
    Row(temperature=1.0, top_k=40, top_p=0.5, min_p=0.1),
    Row(temperature=2.0, top_k=1),
    Row(temperature=1.0, top_p=0.0),
    Row(temperature=1e-9),
    Row(temperature=1.0, top_k=99999, min_p=1.0),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_cpus_token_is_drawn(kind: Row, seed: int) -> None:
    places = [(seed + i, 1000 * i) for i in range(2)] + [((1 << 64) - 1, (1 << 31) - 1)]
    rows = [Row(**(vars_of(kind) | {"seed": s, "position": at})) for s, at in places]
    found, wanted = draw(draw_logits(seed, len(rows), 150), rows, seed)
    assert found.tolist() == wanted.tolist()


def vars_of(row: Row) -> dict[str, float]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


@pytest.mark.parametrize("seed_", [0, 1, (1 << 64) - 1, 0x123456789ABCDEF0])
@pytest.mark.parametrize("position", [0, 1, 4095, (1 << 31) - 1])
def test_random_numbers_are_the_cpus(seed_: int, position: int) -> None:
    with np.errstate(over="ignore"):
        assert sample.uniform(np.uint64(seed_), position) == cpu_uniform(seed_, position)


def test_ties_go_to_the_lowest_id(seed: int) -> None:
    logits = np.zeros((3, 250), np.float32)
    logits[1, 7:] = -0.0
    logits[2, [20, 240]] = 5.0
    found, wanted = draw(logits, [Row(), Row(1.0, top_k=9), Row(1.0, top_k=1)], seed)
    assert found.tolist() == wanted.tolist() and found[0] == 0 and found[2] == 20


def test_minus_infinity_is_never_drawn(seed: int) -> None:
    logits = np.full((3, 250), -np.inf, np.float32)
    logits[:, 249] = -3.0
    found, wanted = draw(logits, [Row(), Row(1.0), Row(1.0, top_p=0.9)], seed)
    assert found.tolist() == wanted.tolist() == [249, 249, 249]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_told(bad: float, seed: int) -> None:
    logits = draw_logits(seed, 3, 250)
    logits[1, 200] = bad
    found, wanted = draw(logits, [Row(1.0), Row(1.0), Row()], seed)
    assert found.tolist() == wanted.tolist() and found[1] == FAULT
    nowhere = np.full((1, 250), -np.inf)
    assert draw(nowhere, [Row(1.0)], seed)[0].tolist() == [FAULT]


def test_padding_draws_nothing(seed: int) -> None:
    logits = draw_logits(seed, 2, 250)
    logits[1] = np.nan
    found, _ = draw(logits, [Row(1.0), Row(1.0, position=NOTHING)], seed)
    assert found[1] == 0


def test_a_cut_in_the_middle_of_equals(seed: int) -> None:
    """Ten of 250 are likely, all alike: top_p and top_k leave those with the lowest ids."""
    logits = np.full((4, 250), -1e9)
    logits[:, 40:240:20] = 2.5
    rows = [Row(1.0, top_p=0.5, seed=i) for i in range(2)]
    rows += [Row(1.0, top_k=12, top_p=0.9, seed=3), Row(1.0, top_k=3, seed=4)]
    found, wanted = draw(logits, rows, seed)
    assert found.tolist() == wanted.tolist()
    assert all(token in range(40, 140, 20) for token in found[:2])


@pytest.mark.parametrize("kind", [Row(1.0, top_p=0.99), Row(0.7, top_k=280, top_p=0.999)], ids=str)
def test_a_wide_set_is_drawn_from_like_any(kind: Row, seed: int) -> None:
    """Nearly all of a flat vocabulary, on both sides of zero, is in it."""
    rows = [Row(**(vars_of(kind) | {"seed": s})) for s in range(2)]
    logits = np.random.default_rng(seed).uniform(-0.05, 0.05, (len(rows), 300))
    found, wanted = draw(logits, rows, seed)
    assert found.tolist() == wanted.tolist()


def test_a_draw_does_not_depend_on_who_adds_first(seed: int) -> None:
    """Sums of what threads have are exact: blocks of other sizes add in another order."""
    logits = draw_logits(seed, 3, 250)
    rows = [Row(1.3, top_p=0.97, seed=s) for s in range(3)]
    found = [draw(logits, rows, seed, threads)[0].tolist() for threads in (32, 128)]
    assert found[0] == found[1]
