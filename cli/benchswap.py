"""`tokenix bench swap`: its options and its table."""

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.status import OK, UsageError

if TYPE_CHECKING:
    from tokenix.bench.swap import Report


def swap(
    *,
    swap_dir: Annotated[Path, Parameter(help="Where the swap file goes.")] = Path(),
    longest: Annotated[
        int, Parameter(validator=COUNT, help="Tokens of the longest context of the ways back.")
    ] = 8192,
    length: Annotated[
        int, Parameter(validator=COUNT, help="Tokens of the contexts that are preempted.")
    ] = 1024,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What preempting and coming back cost, against memory and disk."""
    from tokenix.bench import swap as measuring

    if not swap_dir.is_dir():
        raise UsageError(f"--swap-dir {swap_dir} is not a directory")
    watch = _tell if sys.stderr.isatty() else None
    report = measuring.measure(str(swap_dir), longest, length, watch=watch)
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _table(report))
    return OK


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _table(report: "Report") -> str:
    lines = [
        f"preempt {report.preempt_ms_p50:.2f} ms (P95 {report.preempt_ms_p95:.2f}), a decode step "
        f"{report.decode_step_ms_p50:.1f} ms; {report.clean_share:.1%} of the pages were clean",
        f"back from the host tier {report.resume_ms_per_1k_p50:.2f} ms per 1k tokens (P95 "
        f"{report.resume_ms_per_1k_p95:.2f}), {report.resume_rate_of_memcpy:.2f} of a plain copy",
        f"back from the swap file {report.disk_resume_ms_per_1k_p50:.2f} ms per 1k tokens (P95 "
        f"{report.disk_resume_ms_per_1k_p95:.2f}), {report.resume_rate_of_disk:.2f} of the disk",
        " ".join(f"{name:>12}" for name in ("tokens", "swap-in s", "recompute s", "split s",
                                            "chosen", "s", "of the best")),
    ]  # fmt: skip
    for way in report.planner:
        cells = (
            str(way.tokens), f"{way.swap_in_s:.3f}", f"{way.recompute_s:.3f}",
            f"{way.split_s:.3f}", way.chosen, f"{way.auto_s:.3f}", f"{way.auto_s / way.best_s:.2f}",
        )  # fmt: skip
        lines.append(" ".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines) + "\n"
