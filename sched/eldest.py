"""Who waits for first frames, by class: how many there are, and since when the eldest. Kept as they
come and go, so that whoever asks looks at nobody.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final

from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, SchedEntity

SLACK: Final = 64
"""So many entries of those who have left a heap may keep, beside as many as it has others."""


@dataclass(slots=True)
class Eldest:
    _since_s: dict[Qos, dict[Pid, float]] = field(default_factory=lambda: {qos: {} for qos in Qos})
    """Of those who wait now."""
    _heaps: dict[Qos, list[tuple[float, Pid]]] = field(
        default_factory=lambda: {qos: [] for qos in Qos}
    )
    """Their times, and some of who has left."""

    def put(self, entity: SchedEntity) -> None:
        """It waits, since its own `waiting_since_s`."""
        here, heap = self._since_s[entity.qos], self._heaps[entity.qos]
        here[entity.pid] = entity.waiting_since_s
        heapq.heappush(heap, (entity.waiting_since_s, entity.pid))
        if len(heap) > SLACK + 2 * len(here):
            heap[:] = [(since_s, pid) for pid, since_s in here.items()]
            heapq.heapify(heap)

    def drop(self, entity: SchedEntity) -> None:
        del self._since_s[entity.qos][entity.pid]

    def count(self, qos: Qos) -> int:
        return len(self._since_s[qos])

    def since_s(self, qos: Qos) -> float | None:
        """Since when the eldest of a class waits; None: nobody does."""
        here, heap = self._since_s[qos], self._heaps[qos]
        while heap and here.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None
