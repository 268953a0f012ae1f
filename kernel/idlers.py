"""Who waits for input, and when the image of each is to be written, or tried again."""

from heapq import heapify, heappop, heappush

from tokenix.kernel.params import DAY_S, Params
from tokenix.mm.ids import Pid

SLACK = 64
"""Entries out of date that may be kept beside as many as there are good ones."""


class Idlers:
    """Due `image_idle_s` after the wait has begun. After a failure it is due again, as often as
    `image_retries` says, with pauses that begin at `image_retry_s` and double."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._due: dict[Pid, float] = {}
        self._failed: dict[Pid, int] = {}
        """How often, in this wait."""
        self._queue: list[tuple[float, Pid]] = []
        """A heap; what is not in `_due` with that time is out of date."""

    def next_s(self) -> float | None:
        """When somebody is due; None: nobody will be."""
        while self._queue and self._due.get(self._queue[0][1]) != self._queue[0][0]:
            heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def take(self, now_s: float) -> Pid | None:
        """The one who has been due for longest, if anybody is."""
        next_s = self.next_s()
        if next_s is None or next_s > now_s:
            return None
        pid = heappop(self._queue)[1]
        del self._due[pid]
        return pid

    def note_waiting(self, pid: Pid, now_s: float) -> None:
        """Its wait begins, or begins anew."""
        self.drop(pid)
        if self._params.image_idle_s is not None:
            self._put(pid, now_s + self._params.image_idle_s)

    def note_failed(self, pid: Pid, now_s: float) -> None:
        """What was due has come to nothing; it waits still."""
        failed = self._failed.get(pid, 0)
        if failed < self._params.image_retries:
            self._failed[pid] = failed + 1
            self._put(pid, now_s + min(DAY_S, self._params.image_retry_s * 2**failed))

    def drop(self, pid: Pid) -> None:
        """It has an image, or waits no more."""
        self._due.pop(pid, None)
        self._failed.pop(pid, None)

    def _put(self, pid: Pid, due_s: float) -> None:
        self._due[pid] = due_s
        heappush(self._queue, (due_s, pid))
        if len(self._queue) > 2 * len(self._due) + SLACK:
            self._queue = [(due_s, pid) for pid, due_s in self._due.items()]
            heapify(self._queue)
