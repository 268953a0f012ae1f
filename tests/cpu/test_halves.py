"""Passes in two halves: the same bits as a row alone, whoever computes which rows."""

from itertools import chain

import numpy as np
import pytest

from tokenix.drivers.cpu import step
from tokenix.drivers.cpu.chunks import Chunk, Gathering, split
from tokenix.drivers.cpu.claims import begin, claim, finish, new_claims
from tokenix.drivers.cpu.team import MAX_HELPERS
from tokenix.tests.cpu.conftest import FAMILIES, WEIGHTS, Model

BITS = np.int32
NO_ANGLES = np.zeros((0, 8), np.float32)


def gathering(page_tokens=16, most=5, row_keys=100):
    return Gathering(page_tokens, most, 3, row_keys, NO_ANGLES, NO_ANGLES)


def chunk(table, start, count, logits=None):
    return Chunk(table, start, tuple(range(count)), logits)


def rows_of(chunks):
    return [(c.table, c.start + i, t) for c in chunks for i, t in enumerate(c.tokens)]


@pytest.mark.parametrize(
    ("counts", "starts", "cut", "follows"),
    [
        ([1] * 8, [10] * 8, 4, False),
        ([1] * 7, [0] * 7, 4, False),
        ([1] * 8, [400] * 2 + [0] * 6, 2, False),  # long contexts are more work
        ([64], [0], 36, True),  # later tokens are more work
        ([64], [10_000], 32, True),
        ([1, 1, 40], [0, 0, 0], 23, True),
        ([40, 1, 1], [0, 0, 0], 22, True),
        ([20, 20], [0, 0], 20, False),
        ([1], [0], 1, False),
    ],
)
def test_halves_are_about_even(counts, starts, cut, follows):
    chunks = [chunk(i, *both) for i, both in enumerate(zip(starts, counts, strict=True))]
    first, second, cut_inside = gathering().halve(chunks)
    assert rows_of(first) + rows_of(second) == rows_of(chunks)
    assert (len(rows_of(first)), cut_inside) == (cut, follows)


def test_a_cut_chunk_asks_for_the_same_logits():
    for logits, expected in ((True, (True, True)), (None, (False, None)), (False, (False, False))):
        first, second, follows = gathering().halve([chunk(0, 7, 30, logits)])
        assert follows and (first[0].logits, second[0].logits) == expected


def test_rows_are_those_of_the_chunks(seed):
    """Against plain loops."""
    rng = np.random.default_rng(seed)
    tables = rng.permutation(60).astype(np.int32).reshape(6, 10)
    for _ in range(30):
        page_tokens, most = int(rng.choice([16, 32])), int(rng.integers(1, 9))
        chunks = [
            chunk(
                int(table),
                int(rng.integers(0, 80)),
                int(rng.choice([1, 1, 1, 4, 70])),
                rng.choice(np.array([True, None, False], object)),
            )
            for table in rng.permutation(6)[: int(rng.integers(0, 7))]
        ]
        weigh = bool(rng.integers(2))
        got = gathering(page_tokens, most).gather(chunks, tables, weigh, follows=True)
        rows = rows_of(chunks)
        assert got.ids.tolist() == [token for _, _, token in rows]
        assert got.positions.tolist() == [position for _, position, _ in rows]
        assert got.frames.tolist() == [tables[t, at // page_tokens] for t, at, _ in rows]
        pages = [-(-(c.start + len(c.tokens)) // page_tokens) for c in chunks]
        reads = [tables[c.table, :n].tolist() for c, n in zip(chunks, pages, strict=True)]
        assert got.reads.tolist() == list(chain(*reads))
        every, last, kept, asks = [], [], [], 0
        for c in chunks:
            at, wanted = len(kept), sum(row >= 0 for row in kept)
            count = len(c.tokens)
            first = 0 if c.logits else count - 1 if c.logits is None else count
            mass, asks = (asks, asks + 1) if weigh and c.logits is None else (-1, asks)
            kept += [-1] * first + list(range(wanted, wanted + count - first))
            for found, begin_at, out in ((every, 0, at), (last, first, wanted - first)):
                for i in range(begin_at, count, most):
                    queries = min(most, count - i)
                    own = mass if i + queries == count else -1
                    found.append((c.table, at + i, c.start + i, queries, own, out + i))
        assert (got.kept.tolist(), got.follows) == (kept, 1)
        assert got.wanted == sum(row >= 0 for row in kept)
        assert got.masses.shape[:2] == (asks, 3)
        for blocks, expected in ((got.blocks, every), (got.last_blocks, last)):
            assert sorted(map(tuple, blocks.tolist())) == sorted(expected)
            keys = blocks[:, 2] + blocks[:, 3]
            assert (np.diff(keys) <= 0).all()


def test_passes_have_so_many_tokens_at_most():
    chunks = [chunk(0, 3, 10), chunk(1, 0, 1), chunk(2, 5, 9, True)]
    passes = split(chunks, 8)
    assert [sum(len(c.tokens) for c in each) for each in passes] == [8, 8, 4]
    assert rows_of(chain(*passes)) == rows_of(chunks)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dense", WEIGHTS)
def test_halves_give_the_bits_of_a_row_alone(dense, family, seed, monkeypatch):
    model = Model(FAMILIES[family], WEIGHTS[dense](FAMILIES[family]), dense=dense)
    monkeypatch.setattr(step, "HALVED_ROWS", 2)
    rng = np.random.default_rng(seed)
    texts = [[int(t) for t in rng.integers(0, 203, 90)] for _ in range(5)]
    monkeypatch.setattr(model.step, "_choose_workers", lambda rows: 1)
    alone = [model.all_logits(0, text) for text in texts]
    monkeypatch.setattr(model.step, "_choose_workers", lambda rows: min(2, MAX_HELPERS + 1))
    done = [0] * 5
    while any(at < 90 for at in done):
        chunks, expected = [], []
        for row in rng.permutation(5).tolist():
            part = tuple(texts[row][done[row] : done[row] + int(rng.choice([0, 1, 1, 2, 17, 60]))])
            if not part:
                continue
            wants = rng.choice(np.array([True, None, False], object))
            first = done[row] + len(part) * (wants is False) + (len(part) - 1) * (wants is None)
            chunks.append(Chunk(row + 1, done[row], part, wants))
            done[row] += len(part)
            expected.append(alone[row][first : done[row]])
        if chunks:
            logits, masses = model.step.forward(model.tables, chunks).rows.copy(), []
            assert (logits.view(BITS) == np.concatenate(expected).view(BITS)).all()
            again = model.step.forward(model.tables, chunks, masses).rows
            assert (again.view(BITS) == logits.view(BITS)).all()
            assert len(masses) == sum(c.logits is None for c in chunks)
            assert all(mass.sum() == pytest.approx(1, abs=1e-5) for mass in masses)


def test_a_prompt_in_two_halves_waits_for_its_own_keys(monkeypatch):
    """Both threads are at the same layer at about the same time, so a half that did not wait would
    often miss what the other is about to write."""
    config = FAMILIES["llama"]
    model = Model(config, WEIGHTS["native"](config), dense="native", frames=240)
    text = tuple(int(t) for t in np.random.default_rng(5).integers(0, 203, 250))
    monkeypatch.setattr(model.step, "_choose_workers", lambda rows: 1)
    alone = model.run(Chunk(0, 0, text, True))
    monkeypatch.setattr(model.step, "_choose_workers", lambda rows: min(2, MAX_HELPERS + 1))
    for turn in range(30):
        for pfn in model.tables[1]:
            model.arena.poison(pfn)
        found = model.run(Chunk(1, 0, text, True))
        assert (found.view(BITS) == alone.view(BITS)).all(), turn


def test_who_comes_late_begins_where_the_others_are():
    claims = new_claims(9, 2)
    assert begin(claims) == 0
    for phase in range(9):
        done, items = 0, phase % 3
        while claim(claims, phase, 0, items) >= 0:
            done += 1
        finish(claims, phase, 0, done, items)
        assert begin(claims) == phase + 1
