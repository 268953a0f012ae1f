"""Loading, shown: a bar on a terminal, lines of the log elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from structlog.typing import FilteringBoundLogger

from tokenix.syscalls.types import Progress

LINE_S = 1.0
"""At most one line of the log in so long, and one for each stage."""


@contextmanager
def loading(log: FilteringBoundLogger) -> Iterator[Progress]:
    """What `boot` reports its progress to."""
    if not sys.stderr.isatty():
        yield _Lines(log)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    console = Console(stderr=True)
    with Bars(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task("loading", total=None)
        yield lambda stage, done, total: bars.update(
            task, description=stage, completed=done, total=total
        )


class _Lines:
    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._stage = ""
        self._next_s = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if stage == self._stage and now_s < self._next_s:
            return
        self._stage, self._next_s = stage, now_s + LINE_S
        percent = round(100 * done / total, 1) if total else None
        self._log.info("loading", stage=stage, done=done, total=total, percent=percent)
