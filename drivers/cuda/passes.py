"""A forward that was queued on the GPU: its answer is there when its tokens are."""

from collections.abc import Callable, Sequence

from tokenix.drivers.cuda.drawing import Take
from tokenix.drivers.intake import Batch
from tokenix.drivers.ops import Forward, ForwardDone
from tokenix.mm.ids import Pid


class Pass:
    """`batch` in flight; `take` waits for what it draws, `others` for other ranks, `spoiled` for a
    load beside it: which rows have read what it did not bring. `sure`: the next pass may be
    queued before that, and finds the tokens on the device."""

    def __init__(
        self,
        command: Forward,
        batch: Batch,
        take: Take,
        others: Callable[[], None],
        sure: bool,
        spoiled: Callable[[], Sequence[int]],
    ) -> None:
        self.sure = sure
        drawing = [row.pid for row in batch.good() if row.sample is not None]
        self.places: dict[Pid, int] = {pid: place for place, pid in enumerate(drawing)}
        """Of each process that draws, where its token is on the device."""
        self._command = command
        self._batch = batch
        self._take = take
        self._others = others
        self._spoiled = spoiled
        self._done: ForwardDone | None = None

    @property
    def is_running(self) -> bool:
        """Nobody has waited for it yet."""
        return self._done is None

    def done(self) -> ForwardDone:
        """Wait for it."""
        if self._done is None:
            drawn = self._take()
            self._others()
            self._done = self._batch.done(self._command, drawn, spoiled=self._spoiled())
        return self._done
