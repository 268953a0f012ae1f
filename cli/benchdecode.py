"""`tokenix bench decode`: its options and its table."""

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.status import OK

if TYPE_CHECKING:
    from tokenix.bench.decode import Report


def decode(
    *,
    model: Annotated[str, Parameter(help="Model to measure.")] = "smollm2",
    rounds: Annotated[
        int, Parameter(validator=COUNT, help="Steps that each median is taken of.")
    ] = 20,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What a step of the model costs, beside what the machine could do at best."""
    from tokenix.bench import decode as measuring

    watch = _tell if sys.stderr.isatty() else None
    report = measuring.measure(model, rounds=rounds, watch=watch)
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _table(report))
    return OK


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _table(report: "Report") -> str:
    names = ("weights", "batch", "ms", "best ms", "floor ms", "of floor", "bound by", "tokens/s")
    lines = [" ".join(f"{name:>10}" for name in names)]
    for step in report.steps:
        cells = (
            step.weights, str(step.batch), f"{step.ms:.2f}", f"{step.best_ms:.2f}",
            f"{step.floor_ms:.2f}", f"{step.of_floor:.2f}", step.bound,
            f"{1e3 * step.batch / step.ms:.0f}",
        )  # fmt: skip
        lines.append(" ".join(f"{cell:>10}" for cell in cells))
    for step in report.steps:
        parts = (f"{name} {ms:.2f}" for name, ms in step.phases_ms.items())
        lines.append(f"{step.weights} {step.batch}, ms: {', '.join(parts)}")
    for weights, rate in report.prefill_tokens_per_s.items():
        lines.append(f"prefill of 512 tokens, {weights}: {rate:.0f} tokens/s")
    lines.append(
        f"context {report.context}; memory {report.read_gb_per_s:.1f} GB/s, dots of bytes "
        f"{report.dot_gmacs_per_s:.0f} GMAC/s, pairs of bfloat16 {report.pair_gmacs_per_s:.0f}, "
        f"float32 {report.fma_gmacs_per_s:.0f} GMAC/s"
    )
    return "\n".join(lines) + "\n"
