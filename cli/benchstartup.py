"""`tokenix bench startup`: its options and its table."""

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.options import Json
from tokenix.cli.status import OK

if TYPE_CHECKING:
    from tokenix.bench.startup import Report


def startup(
    *,
    rounds: Annotated[int, Parameter(validator=COUNT, help="Runs of each command.")] = 20,
    json: Json = False,
) -> int:
    """How long short commands take, beside an interpreter that does nothing."""
    from tokenix.bench import startup as measuring

    report = measuring.measure(rounds, _tell if sys.stderr.isatty() else None)
    if json:
        stdout.write_json(report.as_json())
    else:
        stdout.write(_table(report))
    return OK


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _table(report: "Report") -> str:
    lines = [f"{'command':<24} {'median ms':>10} {'least ms':>9} {'ratio':>6}"]
    lines += [
        f"{line.command:<24} {line.median_ms:>10.0f} {line.least_ms:>9.0f} {line.ratio:>6.1f}"
        for line in report.lines
    ]
    return "\n".join(lines) + "\n"
