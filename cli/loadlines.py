"""The file of `tokenix bench load --out`: a line of JSON for each request, as it ends."""

import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import Self

from tokenix.bench.load.record import Record, as_json


class LoadLines:
    """Lines are in the file at once, whatever becomes of the run. What cannot be written (a full
    disk) ends the file, not the load."""

    def __init__(self, path: Path) -> None:
        """OSError if it cannot be opened."""
        self._file = path.open("w", encoding="utf-8")
        self.count = 0
        """Lines that are in the file."""
        self.problem: OSError | None = None
        """Why no more are written."""

    def note(self, record: Record) -> None:
        if self.problem is not None:
            return
        try:
            print(json.dumps(as_json(record)), file=self._file, flush=True)
            self.count += 1
        except OSError as why:
            self.problem = why

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # what could not be written is tried once more
            self._file.close()
