"""The multi-level feedback queue, as `ps` and `top` show it. Feedback comes from the reader.

level 0       nobody has seen a token yet (among them: shortest prefill first)
level 1       due: the lead is nearly used up
levels 2 ..   bands of lead, each twice as wide: a process sinks as it runs ahead of its
              reader and rises as the reader catches up; the deepest is paused first
last but one  batch
last          idle
"""

import math
from typing import NamedTuple

from tokenix.sched import reader
from tokenix.sched.entity import SchedEntity
from tokenix.sched.rates import Rates
from tokenix.sched.tunables import Tunables


class Placement(NamedTuple):
    level: int
    quantum_left_tokens: int
    """Tokens until it sinks one level while its reader stands still; at the bottom: all."""
    reason: str


def place(entity: SchedEntity, now_s: float, tunables: Tunables, rates: Rates) -> Placement:
    """Where `entity` stands at `now_s`. Changes nothing."""
    left = max(0, entity.max_tokens - entity.delivered_tokens)
    tier = reader.tier_of(entity)
    if tier:
        return Placement(tunables.level_bands + 1 + tier, left, ("batch", "idle")[tier - 1])
    if reader.before_first_token(entity):
        return Placement(0, 1, "no token yet")
    lead = reader.lead_s(entity, now_s, tunables, rates)
    rate = reader.rate_of(entity)
    due = tunables.margin_s + rates.step_s
    if lead <= due:
        return Placement(1, max(1, math.ceil((due - lead) * rate)), "due")
    end = tunables.level_band_s
    for band in range(tunables.level_bands - 1):
        if lead < end:
            quantum = max(1, math.ceil((end - lead) * rate))
            return Placement(2 + band, quantum, f"lead under {end:g} s")
        end *= 2
    return Placement(tunables.level_bands + 1, left, f"lead over {end / 2:g} s")
