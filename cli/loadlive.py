"""The live view of `tokenix bench load`: a bar, and what the server makes of the load."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column

from tokenix.bench.load.player import Progress
from tokenix.bench.metrics import percentile

BAR_CELLS = 12
LATEST = 50
"""First tokens whose median is shown."""


class LiveLoad:
    """Redraws itself while a load is played; use as a context manager."""

    def __init__(self) -> None:
        self._bars = Bars(
            TimeElapsedColumn(Column(no_wrap=True, min_width=7)), BarColumn(BAR_CELLS),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            console=Console(stderr=True), transient=True, auto_refresh=False,
        )  # fmt: skip
        self._task = self._bars.add_task("", total=None)
        self._before = (0.0, 0)
        """(time, pieces) of the last look."""
        self._pace = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, now: Progress) -> None:
        passed_s = now.time_s - self._before[0]
        if passed_s > 0:
            self._pace = (now.pieces - self._before[1]) / passed_s
            self._before = (now.time_s, now.pieces)
        middle = percentile(now.ttfts_s[-LATEST:], 50)
        ttft = "-" if middle is None else f"{middle * 1e3:.0f} ms"
        words = (
            f"{now.ended} done  {now.streaming} streaming  {now.waiting} waiting  "
            f"{self._pace:.0f} tok/s  TTFT {ttft}"
        )
        for count, ending in ((now.refused, "refused"), (now.failed, "failed")):
            if count:
                words = f"{count} {ending}  {words}"
        self._bars.update(
            self._task, total=now.expected, completed=now.ended, description=words, refresh=True
        )
