"""`tokenix bench kv-quality`: its options and its table."""

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.status import OK

if TYPE_CHECKING:
    from tokenix.bench.kvquality import Report


def kv_quality(
    *,
    model: Annotated[str, Parameter(help="Model to measure.")] = "smollm2",
    quick: Annotated[bool, Parameter(help="Little of everything, for a first look.")] = False,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What each format of keys and values costs in quality, bytes and time."""
    from tokenix.bench import kvquality as measuring

    size = measuring.QUICK if quick else measuring.Size()
    report = measuring.measure(model, size, _tell if sys.stderr.isatty() else None)
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _table(report))
    return OK


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _table(report: "Report") -> str:
    head = ("bytes/token", "perplexity", "change", "mean KL", "top-1", "exact mean", "median")
    lines = [f"{'format':<6} " + " ".join(f"{name:>11}" for name in (*head, "step ms", "of f16"))]
    for line in report.lines:
        cells = (
            f"{line.bytes_per_token:.0f}", f"{line.perplexity:.4f}",
            f"{line.perplexity_change:+.3%}", f"{line.mean_kl:.2e}", f"{line.top1_agreement:.2%}",
            f"{line.exact_tokens_mean:.1f}", f"{line.exact_tokens_median:g}",
            f"{line.step_ms:.1f}", f"{line.step_ratio:.2f}",
        )  # fmt: skip
        lines.append(f"{line.kind:<6} " + " ".join(f"{cell:>11}" for cell in cells))
    size = report.size
    lines.append(
        f"{size.text_tokens} tokens of text (Python {report.python}); exact: of "
        f"{size.answer_tokens} tokens, {size.prompts} prompts; step: {size.streams} streams of "
        f"{size.text_tokens // 2} tokens"
    )
    return "\n".join(lines) + "\n"
