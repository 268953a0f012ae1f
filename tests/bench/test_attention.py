"""`bench attention`: what is measured of known masses, and the command on the real model."""

import json

import numpy as np
import pytest

pytest.importorskip("numba")

from tokenix.bench import attention
from tokenix.bench.attention import PAGE_TOKENS, Answer, Size, as_requests, draw_order, foretell
from tokenix.cli.main import main

SHARED = 20


def answer(document, order, tokens=16, question_pages=2):
    """An answer whose queries look at the document's pages in this order, the first one most."""
    pages = SHARED + question_pages
    mass = np.zeros(pages, np.float32)
    mass[list(order)] = np.arange(SHARED, 0, -1)
    mass /= mass.sum()
    return Answer(document, SHARED, pages * PAGE_TOKENS, [mass] * tokens)


def test_masses_that_stay_are_foretold():
    forward = list(range(SHARED))
    told = foretell([answer(0, forward), answer(0, forward[::-1])])
    assert (told.same_rank, told.same_top) == pytest.approx((1, 1))
    assert (told.other_rank, told.other_top) == pytest.approx((-1, 0))
    assert (told.place_rank, told.place_top) == pytest.approx((0, 0.5))
    assert told.first_page + told.document == pytest.approx(1)


def test_requests_share_a_documents_pages_and_nothing_else():
    first, second, other = as_requests([answer(d, range(SHARED)) for d in (0, 0, 1)])
    assert first.blocks[:SHARED] == second.blocks[:SHARED]
    assert len({*first.blocks, *second.blocks, *other.blocks}) == 2 * SHARED + 3 * 2
    assert len(first.blocks) == SHARED + 2 and first.made == ()
    assert len(first.masses) == 2 and first.counted().masses[0] == (*[0] * (SHARED + 1), 1)


def test_an_order_is_skewed_and_drifts():
    order = draw_order(10, 4000, 2000, seed=3)
    assert order == draw_order(10, 4000, 2000, seed=3) and order == sorted(order)
    counts = [
        np.bincount([which // 4 for _, which in part], minlength=10)
        for part in (order[:2000], order[2000:])
    ]
    for count in counts:
        assert count.max() / count.min() == pytest.approx(10, rel=0.4)
    assert (counts[0].argsort() != counts[1].argsort()).any()


def test_a_cache_of_everything_finds_what_was_there_before():
    asked = as_requests([answer(d, range(SHARED)) for d in (0, 0, 1)])
    order = [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 0)]
    for policy in attention.POLICIES:
        assert attention._replay(asked, order, policy, 1000) == 2 * SHARED + 2
        assert attention._replay(asked, order, policy, 1) < 4


def test_the_command(capsys):
    assert main(["bench", "attention", "--quick", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0.05 < told["foretold"]["first_page"] < 0.9
    assert 0.3 < told["foretold"]["same_rank"] <= 1
    assert len(told["lines"]) == 2 * len(attention.POOLS)
    for line in told["lines"]:
        assert set(line["found"]) == {*attention.POLICIES, attention.COUNT}
        assert max(line["found"].values()) <= line["belady"]


def test_the_table(capsys, monkeypatch):
    answers = [answer(d, range(SHARED)) for d in (0, 1) for _ in attention.QUESTIONS]
    monkeypatch.setattr(attention, "read", lambda size, model, tell: answers)
    assert main(["bench", "attention", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[5].split() == ["order", "pages", "belady", *attention.POLICIES, attention.COUNT]
    assert len(lines) == 7 + 3 * 2 * len(attention.POOLS)
    assert Size().requests > attention.QUICK.requests
