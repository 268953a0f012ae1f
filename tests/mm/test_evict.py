"""Policies as sort keys, the container against a naive sort, ghosts, what hit-density learns."""

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenix.mm.density import (
    AGES_S,
    Group,
    HitDensity,
    Price,
    Stretch,
    curve_of,
    group_of,
    hazards_of,
    learn,
    spend,
)
from tokenix.mm.evict import (
    LEAST_GHOSTS,
    LOWEST,
    Attention,
    IdlePages,
    Known,
    Lfu,
    Lru,
    Policy,
    Ranking,
    Slru,
    TailAware,
    Watch,
)
from tokenix.mm.mass import HALF_LIFE_S, NOTHING, add_mass

POLICIES = [Lru, Lfu, Slru, TailAware, HitDensity, Attention]


def known(uses: int = 1, used_s: float = 0.0, depth: int = 0, **rest: float) -> Known[None]:
    return Known(None, b"", None, 0, depth, uses=uses, used_s=used_s, **rest)


# ---- sort keys ----


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        pytest.param(Lru(), known(9, 1.0), known(1, 2.0), id="lru: last use alone"),
        pytest.param(Lfu(), known(1, 9.0), known(2, 1.0), id="lfu: uses"),
        pytest.param(Lfu(), known(2, 1.0), known(2, 2.0), id="lfu: equal uses, last use"),
        pytest.param(Slru(), known(1, 9.0), known(2, 1.0), id="slru: once goes before twice"),
        pytest.param(
            Slru(), known(9, 1.0), known(2, 2.0), id="slru: among the protected, last use"
        ),
        pytest.param(TailAware(), known(depth=9), known(depth=8), id="tail: deeper first"),
        pytest.param(TailAware(), known(1, depth=9), known(2, depth=9), id="tail: unshared first"),
        pytest.param(Attention(), known(9, 1.0), known(1, 2.0), id="attention: lru if unweighed"),
        pytest.param(
            Attention(), known(9, 9.0), known(1, 1.0, log_mass=-9.0), id="attention: mass first"
        ),
        pytest.param(HitDensity(), known(9, 1.0), known(1, 2.0), id="density: lru if unlearned"),
    ],
)
def test_goes_first(policy: Policy, first: Known[None], second: Known[None]) -> None:
    assert policy.rank(first, LOWEST) < policy.rank(second, LOWEST)


def test_a_long_tail_ages_past_a_short_head() -> None:
    tails = TailAware()
    old_head = tails.rank(known(depth=0), LOWEST)
    assert tails.rank(known(used_s=1.0, depth=99), LOWEST) < old_head
    assert tails.rank(known(used_s=1.0, depth=99), (1.0,)) > old_head


# ---- the container ----


class Pages:
    """Chains of pages in a ranking and a container, as a prefix index would keep them."""

    def __init__(self, policy: Policy, room: int) -> None:
        self.ranking: Ranking[None] = Ranking(policy, room)
        self.idle: IdlePages[None] = IdlePages()
        self.found: dict[bytes, Known[None]] = {}

    def visit(self, keys: Sequence[bytes], now_s: float, masses: Sequence[float] = ()) -> None:
        before: Known[None] | None = None
        chain = []
        for key in keys:
            page = self.found.get(key)
            if page is None:
                page = self.found[key] = self.ranking.meet(None, key, before, now_s)
            else:
                self.idle.remove(page)
                self.ranking.note_use(page, now_s)
            chain.append(page)
            before = page
        self.ranking.note_mass(chain, masses, now_s)
        for page in chain:
            self.ranking.note_idle(page, now_s)
            self.idle.add(page)

    def evict(self, now_s: float) -> Known[None] | None:
        page = self.idle.take()
        if page is not None:
            del self.found[page.key]
            self.ranking.note_evicted(page, now_s, len(self.idle))
        return page


def chain(number: int, length: int) -> list[bytes]:
    """Chains of one family share their first pages."""
    family, branch, cut = number % 3, number // 3, number % 4
    return [
        f"{family}.{depth}{'' if depth <= cut else f'.{branch}'}".encode()
        for depth in range(length)
    ]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("visit"), st.integers(0, 11), st.integers(1, 9)),
        st.tuples(st.just("evict"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 30), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(events=EVENTS)
def test_against_a_naive_sort(policy: type[Policy], events: list[tuple[str, int, int]]) -> None:
    pages = Pages(policy(), 16)
    for now_s, (what, number, length) in enumerate(events):
        if what == "visit":
            pages.visit(chain(number, length), float(now_s))
        elif what == "lose" and pages.found:
            # From the end of a chain, as what is behind a lost page cannot be found either.
            lost = min(pages.idle, key=lambda page: (-page.depth, page.serial + number % 2))
            pages.idle.remove(lost)
            del pages.found[lost.key]
        for _ in range(number if what == "evict" else 0):
            expected = min(
                pages.found.values(),
                key=lambda page: (page.rank, -page.depth, page.serial),
                default=None,
            )
            assert pages.idle.peek() is expected
            assert pages.evict(float(now_s)) is expected
        order = [(page.rank, -page.depth, page.serial) for page in pages.idle]
        assert order == sorted(order)
        assert len(order) == len(pages.idle) == len(pages.found)
        assert len(pages.idle._heap) <= 2 * len(pages.idle) + 65
        for page in pages.found.values():
            assert page.parent is None or page.parent.rank >= page.rank, "an ancestor is worth more"
            assert page.parent is None or page.parent in pages.idle, "out of reach"


def test_adding_and_removing_twice_is_nothing() -> None:
    pages = Pages(Lru(), 4)
    pages.visit([b"a", b"b"], 0.0)
    page = pages.found[b"a"]
    pages.idle.add(page)
    assert len(pages.idle) == 2
    pages.idle.remove(page)
    pages.idle.remove(page)
    assert len(pages.idle) == 1 and page not in pages.idle
    assert pages.idle.peek() is pages.found[b"b"]
    pages.idle.take()
    assert pages.idle.take() is None and pages.idle.peek() is None


def test_a_rank_that_rose_elsewhere_is_put_right_when_it_comes_up() -> None:
    pages = Pages(Lfu(), 4)
    pages.visit([b"a", b"b"], 0.0)
    pages.visit([b"c"], 1.0)
    pages.found[b"a"].rank = pages.found[b"b"].rank = (5.0, 5.0)
    assert [page.key for page in (pages.idle.take(), pages.idle.take())] == [b"c", b"b"]


def test_the_first_of_many_are_found_without_sorting_all() -> None:
    pages = Pages(Lru(), 4)
    for number in range(5000):
        pages.visit([b"%d" % number], float(number % 97))
    for number in range(0, 5000, 7):  # an entry in seven is to be put right
        pages.found[b"%d" % number].rank = (200.0 + number,)
    looked = 0

    class Looking(IdlePages[None]):
        def _is_valid(self, entry: Any) -> bool:
            nonlocal looked
            looked += 1
            return super()._is_valid(entry)

    idle = Looking(pages.idle._heap, pages.idle._entries, pages.idle._added)
    first = list(islice(idle, 50))
    assert first == sorted(pages.found.values(), key=lambda page: (page.rank, page.serial))[:50]
    assert looked < 200


# ---- attention ----


def test_a_page_counts_with_what_is_behind_it() -> None:
    """`b` is looked at most, but it is not found without `a`; what is behind `c` was not looked at
    and goes first, then the sequence that was looked at once only."""
    pages = Pages(Attention(), 8)
    pages.visit([b"a", b"b", b"c"], 0.0, [0.1, 0.8, 0.1])
    pages.visit([b"x", b"y"], 1.0, [0.5, 0.5])
    pages.visit([b"a", b"b", b"c", b"d"], 2.0, [0.1, 0.8, 0.1])
    order = [page.key for page in pages.idle]
    assert order == [b"d", b"c", b"y", b"x", b"b", b"a"]
    expected = [mass_of(page, 2.0) for page in map(pages.found.get, (b"a", b"b", b"c")) if page]
    assert expected == pytest.approx([2.0, 1.8, 0.2], rel=0.01)


def mass_of(page: Known[None], now_s: float) -> float:
    return float(2.0 ** (page.log_mass - now_s / HALF_LIFE_S))


def test_masses_of_pages_that_cannot_be_found_count_for_those_before_them() -> None:
    ranking: Ranking[None] = Ranking(Attention(), 8)
    page = ranking.meet(None, b"a", None, 0.0)
    ranking.note_mass([page, None], [0.25, 0.25, 0.5], 0.0)
    assert mass_of(page, 0.0) == pytest.approx(1.0)
    ranking.note_mass([page], [], 0.0)
    ranking.note_mass([page], [0.0], 0.0)
    assert mass_of(page, 0.0) == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-6, 100.0)), min_size=1, max_size=30),
    st.floats(0, 1e5),
)
def test_a_decayed_mass_against_the_sum(added: list[tuple[float, float]], later_s: float) -> None:
    added.sort()
    log_mass = NOTHING
    for at_s, mass in added:
        log_mass = add_mass(log_mass, mass, at_s)
    now_s = added[-1][0] + later_s
    total = sum(mass * 2.0 ** ((at_s - now_s) / HALF_LIFE_S) for at_s, mass in added)
    assert 2.0 ** (log_mass - now_s / HALF_LIFE_S) == pytest.approx(total, rel=1e-6)
    assert add_mass(log_mass, 0.0, now_s) == log_mass


# ---- ghosts ----


@pytest.mark.parametrize(("policy", "uses"), [(Lfu(), 1), (Lfu(remembers=True), 3)])
def test_use_counts_outlive_the_page_if_the_policy_wants_it(policy: Policy, uses: int) -> None:
    pages = Pages(policy, 4)
    pages.visit([b"a"], 0.0)
    pages.visit([b"a"], 1.0)
    pages.evict(2.0)
    pages.visit([b"a"], 3.0)
    assert pages.found[b"a"].uses == uses


def test_ghosts_are_bounded_and_the_oldest_is_forgotten() -> None:
    pages = Pages(HitDensity(), 1)
    for number in range(LEAST_GHOSTS + 1):
        pages.visit([b"%d" % number], float(number))
        pages.evict(float(number))
    assert len(pages.ranking._ghosts) == LEAST_GHOSTS
    pages.visit([b"0", b"1"], 1e6)
    assert [page.uses for page in pages.found.values()] == [1, 2]


# ---- what hit-density learns ----


def watches(group: int, back: int, of: int, after_s: float, worth: float = 1.0) -> list[Watch]:
    """`back` of `of` return after `after_s`, the others have been seen not to for 1,000 s."""
    return [
        Watch(group, 0.0, 1.0, worth, after_s if number < back else 1000.0, number < back)
        for number in range(of)
    ]


def test_groups_by_use_count() -> None:
    assert [group_of(uses) for uses in (1, 2, 3, 4, 7, 8, 1000)] == [1, 2, 2, 3, 3, 4, 6]


def test_a_curve_begins_where_pages_return_and_is_concave() -> None:
    hazards = hazards_of([*watches(1, 20, 100, 50.0), *watches(1, 5, 50, 400.0)], 1000.0)
    curve = curve_of(hazards)
    assert curve[0].from_s == 0 and curve[0].until_s == min(age for age in AGES_S if age > 50)
    densities = [stretch.density for stretch in curve]
    assert densities == sorted(densities, reverse=True) and densities[-1] > 0
    assert sum(stretch.hits for stretch in curve) == pytest.approx(25 / 150)


def test_nothing_returns_nothing_is_kept() -> None:
    assert curve_of(hazards_of(watches(1, 0, 10, 1.0), 1000.0)) == ()
    assert curve_of(hazards_of([], 1000.0)) == ()


def test_where_nobody_has_lived_so_long_the_group_below_tells() -> None:
    """All of the hot group return within 2 s. Which of them would return later is not known, but
    half of those used once that are still there after 50 s do; many watches outweigh that."""
    once, hot = watches(1, 50, 100, 50.0), watches(2, 10, 10, 2.0)
    alone = hazards_of(hot, 1000.0)
    below = hazards_of(once, 1000.0)
    told = hazards_of(hot, 1000.0, below)
    at = next(i for i, age_s in enumerate(AGES_S) if age_s > 50)
    assert alone[at] == 0 and told[at] == pytest.approx(below[at]) == pytest.approx(0.5)
    lasting = [*hot, *watches(2, 0, 99, 2.0)]
    assert hazards_of(lasting, 1000.0, below)[at] == pytest.approx(0.5 / 100)
    assert learn([*once, *hot], 1000.0)[2].curve[-1].until_s > 50, "kept that long, if it fits"


@pytest.mark.parametrize(
    ("frames", "price", "share"),
    [(5.0, 0.1, 0.5), (20.0, 0.01, 0.25), (1000.0, 0.0, 1.0)],
    ids=["half of the hot", "all hot, a quarter of the cold", "all fit"],
)
def test_frames_go_where_they_bring_most(frames: float, price: float, share: float) -> None:
    groups = {
        1: Group(400.0, 1.0, (Stretch(0, 10, 10.0, 0.1),)),
        2: Group(100.0, 1.0, (Stretch(0, 10, 10.0, 1.0),)),
    }
    spent = spend(groups, 100.0, frames)
    assert (spent.worth_per_s, spent.share) == pytest.approx((price, share))


def test_worth_and_weight_move_the_price_line() -> None:
    price = Price(0.1, 0.5)
    assert [price.share_of(density) for density in (0.05, 0.1, 0.2)] == [0.0, 0.5, 1.0]
    cheap = learn(watches(1, 10, 20, 50.0, worth=1.0), 1000.0)[1]
    dear = learn(watches(1, 10, 20, 50.0, worth=3.0), 1000.0)[1]
    assert (cheap.worth, dear.worth) == (1.0, 3.0)
    taught = HitDensity()
    taught._groups, taught._price = {1: cheap}, Price(2 * cheap.curve[0].density, from_s=1.0)
    assert taught.keep_s(known()) == 0
    assert taught.keep_s(known(weight=3.0)) == taught.keep_s(known(recompute_s=3.0)) > 50


def play(policy: Policy, room: int, minutes: int = 60) -> int:
    """Chats of two pages that return after 60 s, among 12 pages a second that never do."""
    pages, hits = Pages(policy, room), 0
    for now_s in range(60 * minutes):
        keys = [b"chat%d.%d" % (now_s % 60, depth) for depth in range(2)]
        hits += sum(key in pages.found for key in keys)
        pages.visit(keys, float(now_s))
        pages.visit([b"once%d.%d" % (now_s, depth) for depth in range(12)], now_s + 0.5)
        while len(pages.idle) > room:
            pages.evict(now_s + 0.5)
    return hits


def test_it_learns_what_lru_cannot_hold() -> None:
    assert play(Lru(), 200) == 0
    assert play(HitDensity(), 200) > 0.5 * 2 * 60 * 59


def test_the_sample_is_bounded_and_reaches_back_by_thinning() -> None:
    few = HitDensity(most_watches=64)
    play(few, 200, minutes=10)
    assert len(few._watches) <= 64
    assert few._stride > 1
    assert few._watches[0].since_s < 300


SCRIPT = """
from tokenix.bench.evict import make_chats
from tokenix.syscalls.prefixcache import POLICIES, count_hits
visits = make_chats(1, 200.0)
print({policy: count_hits(visits, policy, 300) for policy in POLICIES})
"""


def test_any_hash_seed_gives_the_same_hits() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1")
    ]  # fmt: skip
    assert told[0] == told[1] and "hit-density" in told[0]
