"""`tokenix bench startup`: its options and its tables."""

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.options import Json
from tokenix.cli.status import OK

if TYPE_CHECKING:
    from tokenix.bench import starts
    from tokenix.bench.startup import Report


def startup(
    model: Annotated[
        str | None,
        Parameter(help="Starts of this model until its first token, instead of short commands."),
    ] = None,
    *,
    weights: Annotated[str, Parameter(help="Of the model: how they are kept.")] = "auto",
    rounds: Annotated[
        int | None,
        Parameter(validator=COUNT, help="Runs of each: 20 of a command, 3 of a model."),
    ] = None,
    json: Json = False,
) -> int:
    """How long short commands take, beside an interpreter that does nothing; or starts of a model,
    with and without packed weights that an earlier one has kept, and their memory."""
    tell = _tell if sys.stderr.isatty() else None
    found: starts.Report | Report
    if model is None:
        from tokenix.bench import startup as measuring

        found = measuring.measure(rounds or 20, tell)
        text = _table(found)
    else:
        from tokenix.bench.starts import measure

        found = measure(model, rounds or 3, weights, tell)
        text = _table_of_starts(found)
    if json:
        stdout.write_json(found.as_json())
    else:
        stdout.write(text)
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


def _table_of_starts(report: "starts.Report") -> str:
    lines = [
        f"{report.model:<14} {'first token s':>13} {'least s':>8} {'peak MiB':>9} {'own MiB':>8} "
        f"{'mapped MiB':>11}"
    ]
    lines += [
        f"{each.way:<14} {each.first_token_s:>13.2f} {each.least_s:>8.2f} {each.peak_mib:>9.0f} "
        f"{each.own_mib:>8.0f} {each.mapped_mib:>11.0f}"
        for each in report.starts
    ]
    return "\n".join(lines) + "\n"
