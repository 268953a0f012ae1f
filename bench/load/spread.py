"""How a quantity of a load is spread: a number, a range, or a lognormal tail, written as text.

128                  always 128
64-256               evenly between, both ends included
~180:0.9             lognormal with median 180 and sigma 0.9 of the logarithm
~180:0.9:4000        the same, never above 4000
"""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of numbers that are not negative."""

    low: float
    high: float
    sigma: float = 0.0
    """Positive: lognormal with median `low`, cut at `high`."""

    def draw(self, chance: random.Random) -> float:
        if self.sigma:
            return min(self.high, self.low * math.exp(self.sigma * chance.gauss()))
        return self.low if self.low == self.high else chance.uniform(self.low, self.high)

    def draw_count(self, chance: random.Random, least: int = 1) -> int:
        """A whole number, at least `least`."""
        if not self.sigma and self.low.is_integer() and self.high.is_integer():
            return max(least, chance.randint(int(self.low), int(self.high)))
        return max(least, round(self.draw(chance)))


def parse_spread(text: "str | float") -> Spread:
    """ValueError, in one line, for what is none."""
    words = str(text).strip()
    try:
        if words.startswith("~"):
            median, sigma, *cut = (float(part) for part in words[1:].split(":"))
            spread = Spread(median, cut[0] if cut else math.inf, sigma)
            good = len(cut) < 2 and 0 < median <= spread.high and 0 < sigma < 10
        else:
            low, _, high = words.partition("-")
            spread = Spread(float(low), float(high or low))
            good = 0 <= spread.low <= spread.high < math.inf
    except ValueError:
        good = False
    if not good:
        raise ValueError(
            f"{words!r} is no quantity: write 128, 64-256, or ~MEDIAN:SIGMA[:MOST] for a "
            "lognormal tail"
        )
    return spread
