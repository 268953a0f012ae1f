"""`tokenix bench`: measurements of the kernel itself."""

import json as jsonlib
import sys
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT, check_image
from tokenix.cli.status import OK

if TYPE_CHECKING:
    from tokenix.bench.step import Report

bench = App(
    name="bench",
    help="Measure the kernel itself.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)


@bench.command
def step(
    *,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, Parameter(help="Write the curves to this image.")] = None,
    steps: Annotated[
        int, Parameter(validator=COUNT, help="Steps that each median is taken of.")
    ] = 200,
) -> int:
    """What one step of the kernel costs, from 16 processes to 10,000."""
    from tokenix.bench import step as measuring

    check_image(plot)
    report = measuring.measure(steps=steps, watch=_tell if sys.stderr.isatty() else None)
    if plot is not None:
        measuring.plot(report, plot)
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _table(report))
    return OK


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _table(report: "Report") -> str:
    head = ("processes", "running", "waiting", "paused", "steady ms", "32 arrive ms")
    lines = [" ".join(f"{name:>12}" for name in head)]
    for line in (report.reference, *report.table):
        *counts, steady_ms, arrivals_ms = astuple(line)
        cells = [*map(str, counts), f"{steady_ms:.3f}", f"{arrivals_ms:.3f}"]
        lines.append(" ".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines) + "\n"
