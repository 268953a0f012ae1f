"""Quotas by table: counts, ceilings, floors, and what cannot be."""

import pytest

from tokenix.mm.ids import Block, Pfn, Slot, Ticket
from tokenix.mm.page import Page
from tokenix.mm.quota import Quota, Quotas


def test_pages_are_counted_where_they_are_or_are_going_to() -> None:
    quotas, page = Quotas(), Page("red")
    counts = []
    for change in (
        {"pfn": Pfn(0)}, {"leaving": Ticket(1)}, {"leaving": None, "slot": Slot(0)},
        {"storing": Ticket(2)}, {"storing": None, "block": Block(0), "pfn": None},
        {"slot": None}, {"rising": Ticket(3)}, {"rising": None, "slot": Slot(1), "block": None},
        {"slot": None},
    ):  # fmt: skip
        for name, value in change.items():
            setattr(page, name, value)
        quotas.note(page)
        counts.append("".join(str(quotas.used("red", tier)) for tier in ("frames", "host", "disk")))
    assert counts == ["100", "110", "110", "111", "011", "001", "011", "010", "000"]


def test_a_ceiling_leaves_out_what_is_beyond_it() -> None:
    quotas = Quotas()
    quotas.set("red", "host", Quota(0, 3), 10)
    held = Page("red", slot=Slot(0))
    quotas.note(held)
    pages = [Page("red"), Page("blue"), Page("red"), Page("red"), Page("blue")]
    assert quotas.within(pages, "host") == [pages[0], pages[1], pages[2], pages[4]]
    assert quotas.within(pages, "disk") == pages
    assert quotas.left("red", "host") == 2 and quotas.left("blue", "host") is None


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        (Quota(-1), "at least 0"),
        (Quota(4, 3), "the floor"),
        (Quota(0, 0), "at least 1"),
        (Quota(10**30), "at most"),
        (Quota(0, 10**30), "at most"),
        (Quota(7), "floors of frames would be 11 pages, it has 10"),
    ],
)
def test_b16_quotas_that_cannot_be(quota: Quota, words: str) -> None:
    """B16: the floors of all tenants fit into the tier."""
    quotas = Quotas()
    quotas.set("blue", "frames", Quota(4), 10)
    with pytest.raises(ValueError, match=words):
        quotas.set("red", "frames", quota, 10)
    assert quotas.get("red", "frames") == Quota()
    quotas.set("red", "frames", Quota(6, 10), 10)
    quotas.set("red", "frames", Quota(), 10)
    quotas.set("red", "frames", Quota(700), None)
    assert quotas.floors("frames") == 704 and quotas.floors("host") == 0
    quotas.set("red", "frames", Quota(), 10)
    assert [tenant for tenant, _, _ in quotas.listed()] == ["blue"]
