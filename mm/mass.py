"""A decayed sum as one number: what was added halves every HALF_LIFE_S.

    mass(t)  = sum of m[i] * 2 ** ((t[i] - t) / HALF_LIFE_S)
    log_mass = log2(mass(t)) + t / HALF_LIFE_S

All sums decay alike, so `log_mass` changes only when something is added, and sums that were last
added to at different times can be compared without a clock: it can be a sort key.
"""

import math

HALF_LIFE_S = 100.0
"""Of 25, 60, 150 and 600 s those around 100 were best in `tokenix bench attention`, with a request
every 10 s: longer ones keep what was popular once, shorter ones are lru."""

NOTHING = -math.inf
"""The logarithm of no mass."""


def add_mass(log_mass: float, mass: float, now_s: float) -> float:
    """`log_mass` after `mass` >= 0 was added now. Time may not run backwards."""
    if mass <= 0:
        return log_mass
    age = now_s / HALF_LIFE_S
    return math.log2(2.0 ** (log_mass - age) + mass) + age
