"""`tokenix bench attention`: its options and its tables."""

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.status import OK

if TYPE_CHECKING:
    from tokenix.bench.attention import Report


def attention(
    *,
    model: Annotated[str, Parameter(help="Model that reads and answers.")] = "smollm2",
    quick: Annotated[bool, Parameter(help="Two short documents, for a first look.")] = False,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """Whether attention tells which cached pages to keep, on long prompts."""
    from tokenix.bench import attention as measuring

    size = measuring.QUICK if quick else measuring.Size()
    report = measuring.measure(model, size, _tell if sys.stderr.isatty() else None)
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _tables(report))
    return OK


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _tables(report: "Report") -> str:
    told = report.foretold
    lines = [
        f"{len(report.size.lengths)} documents, prompts of {report.prompt_tokens:.0f} tokens on "
        f"average; the first page gets {told.first_page:.1%} of all attention, the rest of the "
        f"document {told.document:.1%}",
        f"{'pages looked at later, foretold by':<44} {'rank corr.':>10} {'top tenth':>10}",
    ]
    for name, rank, top in (
        ("mass early in the same answer", told.same_rank, told.same_top),
        ("mass in the answer to another question", told.other_rank, told.other_top),
        ("position, the last ones most", told.place_rank, told.place_top),
    ):
        lines.append(f"{name:<44} {rank:>10.2f} {top:>10.2f}")
    names = list(report.lines[0].found)
    head = " ".join(f"{name:>11}" for name in ("belady", *names))
    lines.append(f"{'order':<9} {'pages':>6} {head}")
    for line in report.lines:
        shares = " ".join(f"{share:>11.3f}" for share in (line.belady, *line.found.values()))
        lines.append(f"{line.order:<9} {line.pages:>6} {shares}")
        tokens = " ".join(f"{each:>11.0f}" for each in line.computed.values())
        lines.append(f"{'  tokens computed':<28} {tokens}")
        wins = " ".join(f"{line.better_than.get(name, ''):>11}" for name in names)
        lines.append(f"{'  attention found more in':<28} {wins}")
    lines.append(
        f"shares of all pages asked for that were found; tokens per request; "
        f"{report.size.orders} orders of {report.size.requests} requests"
    )
    return "\n".join(lines) + "\n"
