"""The swap lanes of ranks: each copies its part of a page, rank 0 looks at pages as wholes.

    slot   [part of rank 0 | part of rank 1 | ...]      one memory, which all processes have

Rank 0 publishes a slot when all have written their parts, and lets all load what it has verified.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenix.drivers.cuda.arena import FrameArena
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.fence import Fence
from tokenix.drivers.cuda.ranks.team import Asked, Team
from tokenix.drivers.cuda.swap import SwapLanes
from tokenix.drivers.ops import CopyIn, CopyOut, PageIn, PageOut
from tokenix.drivers.slots import HostSlots
from tokenix.mm.ids import Ticket

_ANY = Ticket(0)


class LeadingLanes(SwapLanes):
    """Those of rank 0."""

    def __init__(
        self,
        driver: CudaDriver,
        arena: FrameArena,
        slots: HostSlots,
        computed: Fence,
        team: Team,
    ) -> None:
        super().__init__(driver, arena, slots, computed)
        self._team = team
        self._asked: dict[bool, list[Asked]] = {False: [], True: []}
        """Of the command under way, whether it is one out."""

    def _copy_out(self, pages: list[PageOut]) -> Any:
        asked = self._team.ask(CopyOut(_ANY, tuple(pages)))
        self._asked[True].append(asked)
        return super()._copy_out(pages), asked

    def _settle(self, event: Any) -> None:
        ours, asked = event
        super()._settle(ours)
        asked.wait()

    def _copy_in(self, pages: list[PageIn]) -> None:
        self._asked[False].append(self._team.ask(CopyIn(_ANY, tuple(pages))))
        super()._copy_in(pages)

    @contextmanager
    def _all_done(self, stream: Any) -> Iterator[None]:
        asked = self._asked[stream is self._out]
        asked.clear()
        try:
            with super()._all_done(stream):
                yield
        finally:
            for each in asked:
                each.settle()
        for each in asked:
            each.wait()


class MemberLanes(SwapLanes):
    """Those of another rank: what is copied was checked, or will be."""

    def publish(self, pages: Sequence[PageOut]) -> list[str | None]:
        self._computed.hold(self._out)
        with self._all_done(self._out):
            self._settle(self._copy_out(list(pages)))
        return [None] * len(pages)

    def load(self, pages: Sequence[PageIn]) -> list[str | None]:
        self._computed.hold(self._in)
        with self._all_done(self._in):
            self._copy_in(list(pages))
        return [None] * len(pages)
