"""What the check has found: lines for people, values for machines."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. `good`: None if it has no bound."""

    section: str
    name: str
    value: float | str
    unit: str = ""
    bound: str = ""
    good: bool | None = None


def in_a_line(error: Exception) -> str:
    """Whatever a library has to say."""
    said = str(error).splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}"


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass
class Report:
    """Figures in the order in which they are found; each is shown, and saved, at once."""

    write: Callable[[str], None] = _write
    saved: Path | None = None
    lines: list[Line] = field(default_factory=list)
    _section: str = ""

    def section(self, name: str) -> None:
        self._section = name
        self.write(f"\n{name}")

    def add(
        self,
        name: str,
        value: float | str,
        unit: str = "",
        least: float | None = None,
        most: float | None = None,
    ) -> None:
        """A figure, and what it should be."""
        good: bool | None = None
        bounds: list[str] = []
        if isinstance(value, float | int):
            if least is not None:
                bounds.append(f">= {least:g}")
                good = value >= least
            if most is not None:
                bounds.append(f"<= {most:g}")
                good = (good is not False) and value <= most
        line = Line(self._section, name, value, unit, " ".join(bounds), good)
        self._keep(line)
        shown = value if isinstance(value, str) else f"{value:.4g}"
        verdict = "" if good is None else ("met" if good else "NOT MET")
        self.write(f"  {name:<44} {shown:>14} {unit:<10} {line.bound:<10} {verdict}".rstrip())

    def fail(self, name: str, why: str) -> None:
        """What could not be found out."""
        self._keep(Line(self._section, name, why, good=False))
        self.write(f"  {name:<44} FAILED: {why}")

    @contextlib.contextmanager
    def row(self, name: str) -> Iterator[None]:
        """What fails inside is said in a line of that name, and others follow; but nothing can
        follow on a GPU that is lost."""
        try:
            yield
        except Exception as error:
            self.fail(name, in_a_line(error))
            if getattr(error, "lost", False):
                raise

    def sum_up(self) -> None:
        """How many goals were met, and again which were not."""
        judged = [line for line in self.lines if line.good is not None]
        missed = self.missed()
        self.add("goals met", f"{len(judged) - len(missed)} of {len(judged)}")
        for line in missed:
            value = line.value if isinstance(line.value, str) else f"{line.value:.4g} {line.unit}"
            goal = f", and the goal is {line.bound}" if line.bound else ""
            self.write(f"  not met: {line.section}: {line.name}: {value.strip()}{goal}")

    def missed(self) -> list[Line]:
        return [line for line in self.lines if line.good is False]

    def _keep(self, line: Line) -> None:
        self.lines.append(line)
        if self.saved is not None:
            found = json.dumps([asdict(line) for line in self.lines], indent=1)
            self.saved.write_text(found + "\n")


def read_lines(saved: Path) -> list[Line]:
    """What another process has found; nothing if it has not come to it."""
    with contextlib.suppress(OSError, ValueError):
        return [Line(**line) for line in json.loads(saved.read_text())]
    return []
