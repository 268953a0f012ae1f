"""`tokenix bench quality`: its options and its table."""

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.status import OK, UsageError

if TYPE_CHECKING:
    from tokenix.bench.quality import Report


def quality(
    *,
    model: Annotated[str, Parameter(help="Model to measure.")] = "smollm2",
    windows: Annotated[
        int, Parameter(validator=COUNT, help="Windows of 512 tokens that are read.")
    ] = 10,
    peer: Annotated[
        list[str] | None,
        Parameter(help="NAME=FILE.npy: logits of another engine for these tokens; repeatable."),
    ] = None,
    tokens: Annotated[
        Path | None, Parameter(help="Only write the windows to this file, as JSON.")
    ] = None,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What each way to keep weights costs in quality, beside float32 and other engines."""
    from tokenix.bench import quality as measuring

    peers = dict(_pair(each) for each in peer or ())
    try:
        if tokens is not None:
            tokens.write_text(jsonlib.dumps(measuring.read_windows(model, windows)))
            return OK
        watch = _tell if sys.stderr.isatty() else None
        report = measuring.measure(model, windows, peers, watch)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _table(report))
    return OK


def _pair(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise UsageError(f"--peer {text}: give NAME=FILE.npy")
    return name, Path(path)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _table(report: "Report") -> str:
    names = ("weights", "perplexity", "change", "mean KL", "worst KL", "top-1")
    lines = [" ".join(f"{name:>11}" for name in names)]
    for line in report.lines:
        cells = (
            line.name, f"{line.perplexity:.4f}", f"{line.perplexity_change:+.3%}",
            f"{line.mean_kl:.2e}", f"{line.worst_kl:.2e}", f"{line.top1_agreement:.2%}",
        )  # fmt: skip
        lines.append(" ".join(f"{cell:>11}" for cell in cells))
    lines.append(f"{report.positions} positions, against this file's weights in float32")
    return "\n".join(lines) + "\n"
