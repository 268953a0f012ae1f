"""What the check has found: lines for people, values for machines."""

import json
import sys
from collections.abc import Callable
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


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass
class Report:
    """Figures in the order in which they are found; each is shown at once."""

    write: Callable[[str], None] = _write
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
        self.lines.append(line)
        shown = value if isinstance(value, str) else f"{value:.4g}"
        verdict = "" if good is None else ("ok" if good else "MISSED")
        self.write(f"  {name:<44} {shown:>14} {unit:<10} {line.bound:<10} {verdict}".rstrip())

    def fail(self, name: str, why: str) -> None:
        """What could not be found out."""
        self.lines.append(Line(self._section, name, why, good=False))
        self.write(f"  {name:<44} FAILED: {why}")

    def missed(self) -> list[Line]:
        return [line for line in self.lines if line.good is False]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(line) for line in self.lines], indent=1) + "\n")
