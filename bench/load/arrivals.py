"""When requests arrive in an open loop: gamma gaps at a rate that may ramp.

Gaps of mean 1 are drawn in operational time, in which one request is due per unit, and mapped to
seconds by the inverse of the rate's integral:

    u(t) = rate t + (rate_to - rate) t^2 / (2 ramp_s)        until ramp_s, linear after it

so that burstiness and ramp do not mix. Gaps are gamma with shape k = `burstiness`: 1 is a Poisson
process, less is more bursty (the gaps' coefficient of variation is 1/sqrt(k)).
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A rate in requests a second."""

    rate: float
    burstiness: float = 1.0
    rate_to: float | None = None
    """At the end of the ramp; None: the rate stays."""
    ramp_s: float = 0.0

    def times_s(self, chance: random.Random) -> Iterator[float]:
        """Seconds since the start, without end (but a ramp down to nothing ends)."""
        due = 0.0
        while True:
            due += chance.gammavariate(self.burstiness, 1.0 / self.burstiness)
            at_s = self._at_s(due)
            if at_s is None:
                return
            yield at_s

    def _at_s(self, due: float) -> float | None:
        """The inverse of u; None where u never gets there."""
        if self.rate_to is None or self.ramp_s == 0:
            return due / self.rate
        slope = (self.rate_to - self.rate) / self.ramp_s
        ramped = (self.rate + self.rate_to) / 2 * self.ramp_s
        if due > ramped:
            return self.ramp_s + (due - ramped) / self.rate_to if self.rate_to else None
        # The smaller root of slope/2 t^2 + rate t - due, in the form that does not cancel.
        root = math.sqrt(max(0.0, self.rate**2 + 2 * slope * due))
        return 2 * due / (self.rate + root)
