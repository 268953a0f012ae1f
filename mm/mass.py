"""A decayed sum as one number: what was added halves every HALF_LIFE_S.

    mass(t)  = sum of m[i] * 2 ** ((t[i] - t) / HALF_LIFE_S)
    log_mass = log2(mass(t)) + t / HALF_LIFE_S

All sums decay alike, so `log_mass` changes only when something is added, and sums that were last
added to at different times can be compared without a clock: it can be a sort key.
"""

import math

HALF_LIFE_S = 600.0
"""Also about the age at which a page of lru is evicted in a pool of middling size."""

NOTHING = -math.inf
"""The logarithm of no mass."""


def add_mass(log_mass: float, mass: float, now_s: float) -> float:
    """`log_mass` after `mass` >= 0 was added now. Time may not run backwards."""
    if mass <= 0:
        return log_mass
    age = now_s / HALF_LIFE_S
    return math.log2(2.0 ** (log_mass - age) + mass) + age
