"""A device's place among those that compute a model together."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass

from tokenix.drivers.cuda.dense import Dense
from tokenix.drivers.cuda.ranks.peers import Peers
from tokenix.drivers.cuda.ranks.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class Rank:
    """Part `shard` of them. The default: there are no others."""

    shard: Shard = WHOLE
    memory: mmap.mmap | None = None
    """Host slots of whole pages, the same for all: [slot][shard][frame]."""
    meet: Callable[[Dense], Peers] | None = None
    """Wait until all have their weights, on the compute thread."""


ALONE = Rank()
