"""A row's logits and KV are the same bits in every batch, every chunking and on all threads."""

import numpy as np
import pytest

from tokenix.drivers.cpu.chunks import Chunk
from tokenix.drivers.cpu.step import MAX_PASS_TOKENS
from tokenix.tests.cpu.conftest import CODED, FAMILIES, WEIGHTS, Model

BITS = np.int32


def same(a, b):
    return a.shape == b.shape and bool((a.view(BITS) == b.view(BITS)).all())


@pytest.mark.parametrize("size", [1, 3, 16, 37])
def test_chunks_give_the_bits_of_the_whole(tiny, tokens, size):
    whole = tiny.all_logits(0, tokens)
    pages = [tiny.page(0, vpn) for vpn in range(len(tokens) // 16)]
    assert np.isfinite(whole).all()
    assert same(tiny.all_logits(1, tokens, size), whole)
    for vpn, page in enumerate(pages):
        assert (tiny.page(1, vpn) == page).all()


@pytest.mark.parametrize("dense", WEIGHTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_chunk_invariant(family, dense, tokens):
    model = Model(FAMILIES[family], WEIGHTS[dense](FAMILIES[family]), dense=dense)
    assert same(model.all_logits(0, tokens[:40], 7), model.all_logits(1, tokens[:40]))


@pytest.mark.parametrize("family", ["llama", "qwen3", "one kv head"])
@pytest.mark.parametrize("kv", CODED)
def test_codes_do_not_depend_on_the_batch(kv, family, tokens, seed):
    """Nor on the chunking, the size of a page, or what the frame held before."""
    model = Model(FAMILIES[family], kv=kv, frames=48)
    wide = Model(FAMILIES[family], kv=kv, frames=24, page_tokens=32)
    whole = model.all_logits(0, tokens)
    assert np.isfinite(whole).all()
    pages = [model.page(0, vpn) for vpn in range(len(tokens) // 16)]
    for pfn in model.tables[1:].flat:
        model.arena.poison(pfn)
    rng, done = np.random.default_rng(seed), [0, 0, 0]
    while any(at < len(tokens) for at in done):
        chunks = [
            Chunk(row + 1, at, tuple(tokens[at : at + int(rng.choice([1, 1, 2, 5, 40]))]), True)
            for row, at in enumerate(done)
            if at < len(tokens)
        ]
        logits, first = model.run(*chunks), 0
        for chunk in chunks:
            count = len(chunk.tokens)
            done[chunk.table - 1] += count
            expected = whole[chunk.start : chunk.start + count]
            assert same(logits[first : first + count], expected)
            first += count
    for row in (1, 2, 3):
        assert all((model.page(row, vpn) == page).all() for vpn, page in enumerate(pages))
    assert same(wide.all_logits(0, tokens, 29), whole)


def test_random_batches_give_the_bits_of_a_row_alone(tiny, seed):
    rng = np.random.default_rng(seed)
    texts = [[int(t) for t in rng.integers(0, 203, 90)] for _ in range(5)]
    alone = [tiny.all_logits(0, text) for text in texts]
    done = [0] * 5
    while any(at < 90 for at in done):
        chunks = []
        for row in rng.permutation(5).tolist():
            size = int(rng.choice([0, 1, 1, 1, 2, 17, 33]))
            part = tuple(texts[row][done[row] : done[row] + size])
            if part:
                chunks.append(Chunk(row + 1, done[row], part, True))
        if not chunks:
            continue
        logits = tiny.run(*chunks)
        at = 0
        for chunk in chunks:
            row, end = chunk.table - 1, chunk.start + len(chunk.tokens)
            assert same(logits[at : at + len(chunk.tokens)], alone[row][chunk.start : end])
            at += len(chunk.tokens)
            done[row] = end


def test_the_number_of_workers_does_not_matter(tiny, tokens, monkeypatch):
    two = tiny.all_logits(0, tokens)
    monkeypatch.setattr(tiny.step, "_choose_workers", lambda count: 1)
    one = tiny.all_logits(1, tokens)
    monkeypatch.setattr(tiny.step, "_choose_workers", lambda count: 2)
    assert same(one, two)
    for _ in range(20):
        assert same(tiny.all_logits(2, tokens), two)


def test_only_wanted_logits_come(tiny, tokens):
    whole = tiny.all_logits(0, tokens)
    got = tiny.run(
        Chunk(1, 0, tuple(tokens[:16]), False),
        Chunk(2, 0, tuple(tokens[:20]), None),
        Chunk(3, 0, tuple(tokens[:3]), True),
    )
    assert same(got, np.stack([whole[19], *whole[:3]]))
    assert all((tiny.page(table, 0) == tiny.page(0, 0)).all() for table in (1, 2))
    assert tiny.run(Chunk(1, 16, (tokens[16],), False)).shape == (0, 203)
    assert same(tiny.run(Chunk(1, 17, (tokens[17],), None)), whole[17:18])


@pytest.mark.parametrize("dense", WEIGHTS)
def test_a_long_batch_is_run_in_passes(dense, tokens):
    model = Model(FAMILIES["llama"], dense=dense, frames=240)
    text = (tokens * 3)[:250]
    alone = model.all_logits(0, text)
    assert 3 * len(text) > MAX_PASS_TOKENS
    got = model.run(*[Chunk(table, 0, tuple(text), None) for table in (1, 2, 3)])
    assert same(got, np.stack([alone[-1]] * 3))


def test_junk_behind_a_query_is_never_read(tiny, tokens):
    clean = tiny.all_logits(0, tokens[:40])
    for pfn in tiny.tables[1]:
        tiny.arena.poison(pfn)
    assert same(tiny.all_logits(1, tokens[:40], 5), clean)


@pytest.mark.parametrize(("kv", "dense"), [("f16", "native"), *((kv, "f16") for kv in CODED)])
def test_a_poisoned_key_reaches_the_logits(kv, dense, tokens):
    model = Model(FAMILIES["llama"], kv=kv, dense=dense)
    for poisoned in (0, 1):
        model.all_logits(1, tokens[:40])
        model.arena.poison(model.tables[1, poisoned])
        assert np.isnan(model.run(Chunk(1, 40, (5,), None))).all()


def test_a_larger_page_gives_the_same_bits(tiny, tokens):
    wide = Model(tiny.config, tiny.weights, dense=tiny.dense, frames=48, page_tokens=32)
    assert same(wide.all_logits(0, tokens, 29), tiny.all_logits(0, tokens))
