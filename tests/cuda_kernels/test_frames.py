"""Frames copied and poisoned, pieces gathered: the same bytes as NumPy."""

import numpy as np

from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.frames import (
    THREADS,
    make_copy,
    make_gather,
    make_poison,
)
from tokenix.tests.cuda_kernels.simt import launch
from tokenix.tests.cuda_kernels.world import frozen

FRAME_WORDS = 1540
"""No multiple of what a block moves in a turn."""


def draw_words(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


def test_copy_moves_whole_frames_and_nothing_else(seed: int) -> None:
    arena = draw_words(seed, 6 * FRAME_WORDS)
    pairs = frozen(np.array([4, 0, 1, 5], np.int32))
    wanted = arena.copy()
    oracles.copy(wanted, pairs, FRAME_WORDS)
    grid = (2, 2)
    launch(make_copy(), grid, THREADS, arena, pairs, FRAME_WORDS, seed=seed)
    assert (arena == wanted).all()


def test_copy_by_one_block(seed: int) -> None:
    arena = draw_words(seed, 2 * FRAME_WORDS)
    pairs = frozen(np.array([0, 1], np.int32))
    launch(make_copy(), (1, 1), THREADS, arena, pairs, FRAME_WORDS, seed=seed)
    assert (arena[:FRAME_WORDS] == arena[FRAME_WORDS:]).all()


def test_poison_covers_its_frames_and_nothing_else(seed: int) -> None:
    arena = draw_words(seed, 4 * FRAME_WORDS)
    frames = frozen(np.array([3, 1], np.int32))
    wanted = arena.copy()
    oracles.poison(wanted, frames, FRAME_WORDS, 0x7FC07FC0)
    grid = (2, 2)
    launch(make_poison(), grid, THREADS, arena, frames, FRAME_WORDS, 0x7FC07FC0, seed=seed)
    assert (arena == wanted).all() and (arena[FRAME_WORDS : 2 * FRAME_WORDS] == 0x7FC07FC0).all()


def test_gather_takes_pieces_from_anywhere_to_anywhere(seed: int) -> None:
    random = np.random.default_rng(seed)
    source, target = frozen(draw_words(seed, 12000)), np.zeros(12000, np.uint32)
    piece_words, pieces = 1036, 5
    source_at = frozen(random.permutation(11)[:pieces] * piece_words)
    target_at = frozen(random.permutation(11)[:pieces] * piece_words)
    wanted = target.copy()
    oracles.gather(source, wanted, source_at, target_at, pieces, piece_words)
    launch(
        make_gather(), (2,), THREADS, source, target, source_at, target_at, pieces, piece_words,
        seed=seed,
    )  # fmt: skip
    assert (target == wanted).all() and (target != 0).sum() > pieces * piece_words * 0.9
