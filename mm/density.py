"""The score `hit-density`: keep a page while its frame brings more hits than another page would.

Most pages never return, and those that do return after a while. How soon differs by how many
requests have used a page. That is learned: a sample of uses is watched, and gives for each group
of use counts a curve of hits over frame-seconds.

    hits per page            of 100 pages that were used once and are kept until 45 s old, none
      |        ____----      returns: 4,500 frame-seconds for nothing; those kept until 200 s bring
      |     _/               20 hits for 16,000 frame-seconds
      |   _/
      |__/______________     frame-seconds per page

Where few watches of a group have lived so long, what the group below them does at that age counts
as one watch more: a page that is used all the time is seldom watched at an age of a minute, but
what has happened to nobody yet is not what never happens.

The frames are spent where the (concave hulls of the) curves are steepest, until all are spent. The
slope where that ends is the price of a frame-second, and a page is worth keeping until the next
stretch of its curve does not pay it. A page's rank is the time when that will be. Two things put
the plan right where it is wrong: if frames run short, victims have not expired yet, and the clock
from which new pages expire is that of the last victim (greedy-dual), so that all groups lose alike;
if frames are left, expired pages outlast those that are worth nothing from the beginning.

A first stretch for which the frames suffice in part is given to that share of sequences, each of
them whole or not at all: halfway through it they would all go before any had returned.

- recency: expiry counts from the last use. Frequency: the group.
- depth: a page never expires before the pages behind it, and prefill costs more the deeper it is.
- recompute cost and tenant weight: a hit counts `Known.worth`; what is worth more is kept longer.

Sources: the rate of hits per frame-second as a rank is LHD (Beckmann, NSDI 2018); curves of return
with censored watches are Kaplan and Meier (1958); expiry times that share one price are utility-
optimal TTL caches (Dehghan, INFOCOM 2016). Use counts outlive the page (`Ghosts`): without them
nearly all pages of a small cache look new.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenix.mm.evict import Known, P, Rank, Watch

AGES_S = tuple(2.0 ** (half / 2) for half in range(35))
"""Ages at which a page may expire: 1 s to 36 hours."""
MOST_WATCHES = 8192
LEARN_EVERY = 1024
"""Watches between two looks at all of them, which take some 10 ms; the first ones come sooner."""
LEARN_FIRST = 64
MOST_GROUPS = 6
MOST_SLACK = 1.5
GOLDEN = 0.6180339887498949


def group_of(uses: int) -> int:
    """Use counts 1, 2-3, 4-7, 8-15, 16-31 and more."""
    return min(uses.bit_length(), MOST_GROUPS)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Keeping a page on, from one age to another."""

    from_s: float
    until_s: float
    frame_s: float
    """Frame-seconds that it costs per page used, of those that have not returned before."""
    hits: float
    """Per page used."""

    @property
    def density(self) -> float:
        """Hits per frame-second."""
        return self.hits / self.frame_s


@dataclass(frozen=True, slots=True)
class Group:
    """How pages of a group return."""

    pages: float
    """Watched."""
    worth: float
    """Of a hit, on average."""
    curve: tuple[Stretch, ...]
    """From age 0 on, densities falling."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a frame-second costs when the frames have been spent."""

    worth_per_s: float = 0.0
    share: float = 1.0
    """Of the sequences at the price that are kept."""
    from_s: float = 0.0
    """Where the stretch at the price begins."""
    worth: float = 0.0
    """Of all hits that the frames then bring, per second."""

    def share_of(self, worth_per_s: float) -> float:
        """Of pages that bring so much, the share that is kept."""
        if abs(worth_per_s - self.worth_per_s) <= 1e-9 * self.worth_per_s:
            return self.share
        return float(worth_per_s > self.worth_per_s)

    def slack_of(self, worth_per_s: float) -> float:
        """How many times longer than planned pages are kept. Where some sequences are kept and
        others like them are not, those at the price go before those well above it: if the plan does
        not quite fit, all would else go shortly before they return."""
        if self.from_s > 0:
            return 1.0
        if worth_per_s >= MOST_SLACK * self.worth_per_s:
            return MOST_SLACK
        return max(1.0, worth_per_s / self.worth_per_s)


def learn(watches: Iterable[Watch], now_s: float) -> dict[int, Group]:
    """The curves of all groups."""
    by_group: dict[int, list[Watch]] = {}
    for watch in watches:
        by_group.setdefault(watch.group, []).append(watch)
    groups: dict[int, Group] = {}
    below: Hazards | None = None
    for group, mine in sorted(by_group.items()):
        pages = sum(watch.pages for watch in mine)
        below = hazards_of(mine, now_s, below)
        worth = sum(watch.worth for watch in mine) / pages
        groups[group] = Group(pages, worth, curve_of(below))
    return groups


Hazards = list[float]
"""For each of AGES_S: of the pages that have come to the age before it without returning, the share
that returns until it."""


def hazards_of(watches: Sequence[Watch], now_s: float, below: Hazards | None = None) -> Hazards:
    """Of a group, with censored watches. `below`: those of the group of lower use counts, which
    count as one average watch."""
    returned = [0.0] * (len(AGES_S) + 1)
    unseen = [0.0] * (len(AGES_S) + 1)
    for watch in watches:
        age_s = (now_s if watch.until_s is None else watch.until_s) - watch.since_s
        (returned if watch.returned else unseen)[bisect_right(AGES_S, age_s)] += watch.pages
    at_risk = sum(returned) + sum(unseen)
    one = at_risk / max(1, len(watches)) if below is not None else 0.0
    hazards: Hazards = []
    for back, lost, prior in zip(returned, unseen, below or [0.0] * len(AGES_S), strict=False):
        exposed = max(0.0, at_risk - lost / 2)
        hazards.append((back + one * prior) / (exposed + one) if exposed + one > 0 else 0.0)
        at_risk -= back + lost
    return hazards


def curve_of(hazards: Hazards) -> tuple[Stretch, ...]:
    """Hits over frame-seconds by the age until which pages are kept (Kaplan-Meier), its concave
    hull."""
    hull: list[Stretch] = []
    alive, from_s = 1.0, 0.0
    for until_s, hazard in zip(AGES_S, hazards, strict=True):
        if alive <= 0:
            break
        hits = alive * hazard
        stretch = Stretch(from_s, until_s, (until_s - from_s) * (alive - hits / 2), hits)
        alive -= hits
        while hull and hull[-1].hits * stretch.frame_s <= stretch.hits * hull[-1].frame_s:
            before = hull.pop()
            stretch = Stretch(
                before.from_s, until_s, before.frame_s + stretch.frame_s, before.hits + stretch.hits
            )
        hull.append(stretch)
        from_s = until_s
    return tuple(stretch for stretch in hull if stretch.hits > 0)


def spend(groups: Mapping[int, Group], span_s: float, frames: float) -> Price:
    """Give `frames` to the stretches of highest worth. `span_s`: in which the watched uses were."""
    offers = sorted(
        (stretch.density * group.worth, -number, stretch.from_s, stretch.frame_s * group.pages)
        for number, group in groups.items()
        for stretch in group.curve
    )
    left = frames * span_s
    worth = 0.0
    for worth_per_s, _, from_s, frame_s in reversed(offers):
        if frame_s > left:
            worth += worth_per_s * left
            return Price(worth_per_s, left / frame_s, from_s, worth / span_s)
        left -= frame_s
        worth += worth_per_s * frame_s
    return Price(worth=worth / span_s)


class HitDensity:
    """The policy. Until it has learned something it is lru."""

    remembers = True
    weighs = False

    def __init__(self, most_watches: int = MOST_WATCHES) -> None:
        self._most = most_watches
        self._watches: deque[Watch] = deque()
        self._stride = 1
        """Of so many sequences one is watched."""
        self._recognised_s = AGES_S[-1]
        """How old the watches were that ended because an evicted page was forgotten."""
        self._due = LEARN_FIRST
        self._sequences = 0
        self._last: Known[Any] | None = None
        """The page that became idle last; pages of one sequence and group share watch and draw."""
        self._draw = 0.0
        self._groups: Mapping[int, Group] = {}
        self._price = Price()
        self._room = 0.0
        self._rooms = 0

    def rank(self, page: Known[P], base: Rank) -> Rank:
        kept_s = self.keep_s(page)
        clock_s = base[0] if base else 0.0
        if kept_s > 0:
            clock_s = max(clock_s, page.used_s) + kept_s
        return (clock_s, page.used_s)

    def keep_s(self, page: Known[P]) -> float:
        """How long it is worth its frame after its last use. Of pages at the price itself, as many
        as the page that became idle last stands for."""
        group = self._groups.get(group_of(page.uses))
        kept_s = 0.0
        for stretch in group.curve if group is not None else ():
            worth_per_s = stretch.density * page.worth
            share = self._price.share_of(worth_per_s)
            if stretch.from_s == 0:
                share = float(self._draw < share)
            kept_s += share * self._price.slack_of(worth_per_s) * (stretch.until_s - stretch.from_s)
            if share < 1:
                break
        return kept_s

    def note_idle(self, page: Known[P]) -> None:
        last, number = self._last, group_of(page.uses)
        self._last = page
        if (
            last is not None
            and (page.parent is last or last.parent is page)
            and last.used_s == page.used_s
            and group_of(last.uses) == number
        ):
            self._extend(last, page)
            return
        self._sequences += 1
        self._draw = self._sequences * GOLDEN % 1.0
        if self._sequences % self._stride == 0:
            self._watch(page, Watch(number, page.used_s, self._stride, self._stride * page.worth))

    def note_end(self, watch: Watch, now_s: float, returned: bool) -> None:
        watch.until_s = now_s
        watch.returned = returned
        if not returned:
            self._recognised_s = now_s - watch.since_s

    def note_room(self, pages: int) -> None:
        self._rooms += 1
        self._room += (pages - self._room) / self._rooms

    def _extend(self, last: Known[P], page: Known[P]) -> None:
        """One more page of the same sequence; the deepest one ends the watch."""
        watch = last.watch
        if watch is not None:
            watch.pages += self._stride
            watch.worth += self._stride * page.worth
            if page.depth > last.depth:
                last.watch, page.watch = None, watch

    def _watch(self, page: Known[P], watch: Watch) -> None:
        page.watch = watch
        if len(self._watches) == self._most:
            self._make_place(page.used_s)
        self._watches.append(watch)
        self._due -= 1
        if self._due <= 0:
            self._learn(page.used_s)

    def _make_place(self, now_s: float) -> None:
        """The sample reaches a few times as far back as pages are recognised: forget the oldest, or
        every other one."""
        reach = (now_s - self._watches[0].since_s) / self._recognised_s
        if reach >= 4:
            self._watches.popleft()
            if reach >= 16 and self._stride > 1:
                self._stride //= 2
            return
        self._stride *= 2
        self._watches = deque(list(self._watches)[1::2])
        for watch in self._watches:
            watch.pages *= 2
            watch.worth *= 2

    def _learn(self, now_s: float) -> None:
        self._due = min(LEARN_EVERY, len(self._watches))
        span_s = now_s - self._watches[0].since_s
        if span_s > 0 and self._rooms:
            self._groups = learn(self._watches, now_s)
            self._price = spend(self._groups, span_s, self._room)
            self._rooms = min(self._rooms, 1)
