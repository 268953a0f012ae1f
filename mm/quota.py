"""Quotas: how many pages of each tier a tenant keeps longest, and how many it may have at most.

    floor      below it, pages of the tenant that nobody maps are given up last (never is a process
               kept from running for the sake of what nobody uses)
    ceiling    frames: its processes are not brought in together if they might grow beyond it
               host, disk: what is beyond it is not copied there, and is computed again

A page belongs to the tenant in whose namespace it is named; pages of different tenants are never
shared. The floors of a tier add up to at most its places; those of a tier that is off are kept for
when it comes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenix.mm.page import Page

TIERS = ("frames", "host", "disk")
MOST = 1 << 62
"""Pages in a quota."""


@dataclass(frozen=True, slots=True)
class Quota:
    floor: int = 0
    ceiling: int | None = None
    """None: there is none."""


NO_QUOTA = Quota()


class Quotas:
    """What tenants have, and what they may have. Counts are kept by `note`."""

    def __init__(self) -> None:
        self.counting = False
        """Whether anybody ever had a quota: only then are pages counted."""
        self._quotas: tuple[dict[str, Quota], ...] = ({}, {}, {})
        self._used: tuple[dict[str, int], ...] = ({}, {}, {})

    # ---- look only ----

    def get(self, tenant: str, tier: str) -> Quota:
        return self._quotas[TIERS.index(tier)].get(tenant, NO_QUOTA)

    def listed(self) -> list[tuple[str, str, Quota]]:
        """(tenant, tier, quota) of all that are set."""
        return [
            (tenant, tier, quota)
            for tier, quotas in zip(TIERS, self._quotas, strict=True)
            for tenant, quota in sorted(quotas.items())
        ]

    def used(self, tenant: str, tier: str) -> int:
        """Places of the tier that hold pages of the tenant, or are being written with them."""
        return self._used[TIERS.index(tier)].get(tenant, 0)

    def left(self, tenant: str, tier: str) -> int | None:
        """Pages below the ceiling; None: there is none."""
        ceiling = self.get(tenant, tier).ceiling
        return None if ceiling is None else max(0, ceiling - self.used(tenant, tier))

    def protects(self, tenant: str, tier: str) -> bool:
        """Whether the tenant has no more than its floor."""
        floor = self.get(tenant, tier).floor
        return floor > 0 and self.used(tenant, tier) <= floor

    def floors(self, tier: str) -> int:
        """Pages of all floors together."""
        return sum(quota.floor for quota in self._quotas[TIERS.index(tier)].values())

    def ceilings(self, tier: str) -> dict[str, int]:
        """Of the tenants that have one."""
        quotas = self._quotas[TIERS.index(tier)]
        return {t: quota.ceiling for t, quota in quotas.items() if quota.ceiling is not None}

    def within(self, pages: Iterable[Page], tier: str) -> list[Page]:
        """Those that can still go to the tier, in the order given."""
        ceilings = self.ceilings(tier)
        if not ceilings:
            return list(pages)
        left = {t: ceiling - self.used(t, tier) for t, ceiling in ceilings.items()}
        chosen = []
        for page in pages:
            if page.tenant in left:
                if left[page.tenant] <= 0:
                    continue
                left[page.tenant] -= 1
            chosen.append(page)
        return chosen

    # ---- changes ----

    def set(self, tenant: str, tier: str, quota: Quota, places: int | None) -> None:
        """ValueError: it makes no sense, or the floors are more than the tier's `places`; None: it
        is off, and whoever brings it sees to that."""
        if max(quota.floor, quota.ceiling or 0) > MOST:
            raise ValueError(f"at most {MOST} pages")
        if quota.floor < 0 or (quota.ceiling is not None and quota.ceiling < max(1, quota.floor)):
            raise ValueError("a floor is at least 0, a ceiling at least 1 and the floor")
        quotas = self._quotas[TIERS.index(tier)]
        others = self.floors(tier) - quotas.get(tenant, NO_QUOTA).floor
        if quota.floor and places is not None and others + quota.floor > places:
            raise ValueError(
                f"the floors of {tier} would be {others + quota.floor} pages, it has {places}"
            )
        if quota == NO_QUOTA:
            quotas.pop(tenant, None)
        else:
            quotas[tenant] = quota

    def start_counting(self, pages: Iterable[Page]) -> None:
        """The first quota is about to be set; `pages`: all that are in any tier or on the way."""
        self.counting = True
        for page in pages:
            self.note(page)

    def note(self, page: Page) -> None:
        """The page has changed. Only while `counting`."""
        host = page.slot is not None or page.leaving is not None or page.rising is not None
        disk = page.block is not None or page.storing is not None
        now = (page.pfn is not None, host, disk)
        if now == page.booked:
            return
        for used, was, here in zip(self._used, page.booked, now, strict=True):
            if was != here:
                count = used.get(page.tenant, 0) + (1 if here else -1)
                if count:
                    used[page.tenant] = count
                else:
                    del used[page.tenant]
        page.booked = now
