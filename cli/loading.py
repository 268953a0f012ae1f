"""The bar on stderr while a machine boots. Only where somebody can see it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tokenix.syscalls.types import Progress


@contextmanager
def loading(quiet: bool = False) -> Iterator[Progress | None]:
    """What `boot` reports its progress to; None without a terminal. At the end the bar goes."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("loading", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bars.update(task, description=stage, completed=done, total=total)

        yield show
