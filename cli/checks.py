"""What is wrong with an option is said before anything runs."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenix.cli.status import Failure, UsageError

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Within:
    """A validator of options: numbers from `low` on; NaN is none, and infinity only if it may."""

    low: float = -INFINITE
    above: bool = False
    """More than `low`."""
    infinite: bool = False

    def __call__(self, kind: Any, value: float | None) -> None:
        if value is None:
            return
        bounded = value > self.low if self.above else value >= self.low
        if not bounded or (not self.infinite and not -INFINITE < value < INFINITE):
            raise ValueError(f"It must be {self}")

    def __str__(self) -> str:
        word = "a number" if self.infinite else "a finite number"
        if self.low == -INFINITE:
            return word
        return f"{word} above {self.low:g}" if self.above else f"{word}, at least {self.low:g}"


FINITE = Within()
POSITIVE = Within(0, above=True)
NOT_NEGATIVE = Within(0)
COUNT = Within(1)


def need_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise Failure("--plot needs matplotlib; run: pip install 'tokenix[report]'")


def check_image(path: Path | None) -> None:
    """A plot can be written there, as far as one can see before. Failure."""
    if path is None:
        return
    need_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.is_dir():
        raise UsageError(f"--plot {path}: that is a folder; name a file")
    if path.suffix.lower().removeprefix(".") not in known:
        raise UsageError(f"--plot {path}: it must end in one of .{', .'.join(sorted(known))}")
    if not path.parent.is_dir():
        raise Failure(f"--plot {path}: No such file or directory: {path.parent}")
    if not os.access(path.resolve().parent, os.W_OK):
        raise Failure(f"--plot {path}: Permission denied")
