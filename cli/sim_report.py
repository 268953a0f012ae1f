"""What `tokenix sim report` does."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tokenix.bench.report import QUICK, TRACES, Lab, make_report
from tokenix.bench.sections import SECTIONS
from tokenix.bench.sweep import SIZE
from tokenix.cli import stdout
from tokenix.cli.checks import need_matplotlib
from tokenix.cli.sim_run import SHARED_TRACES, bars, read_named
from tokenix.cli.status import OK, UsageError


def run_report(out: Path, only: Sequence[str], quick: bool, folder: Path | None, jobs: int) -> int:
    need_matplotlib()
    unknown = sorted(set(only) - set(SECTIONS))
    if unknown:
        raise UsageError(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    chosen = {name: write for name, write in SECTIONS.items() if not only or name in only}
    try:
        traces = read_named(folder or SHARED_TRACES, TRACES)
        lab = Lab(traces, out, QUICK if quick else SIZE, jobs, bars)
        path = make_report(lab, chosen, lambda line: print(line, file=sys.stderr, flush=True))
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    stdout.write(f"{path}\n")
    return OK
