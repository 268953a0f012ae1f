"""`tokenix bench top`: its options and its table."""

import sys
from typing import Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.options import Json
from tokenix.cli.status import OK


def top(
    *,
    rounds: Annotated[int, Parameter(validator=COUNT, help="Slices with and without it.")] = 8,
    json: Json = False,
) -> int:
    """What tokenix top costs, itself and the kernel that it looks at."""
    from tokenix.bench import top as measuring

    report = measuring.measure(rounds=rounds, watch=_tell if sys.stderr.isatty() else None)
    if json:
        stdout.write_json(report.as_json())
        return OK
    names = ("processes", "of a core", "at most", "a look", "a pass", "watched", "ratio")
    head = "{:>9} {:>10} {:>8} {:>9} {:>9} {:>9} {:>6}".format(*names)
    lines = [
        f"{line.processes:>9} {100 * line.cpu_share:>9.1f}% {100 * line.cpu_share_most:>7.1f}% "
        f"{line.look_ms:>6.2f} ms "
        f"{line.pass_alone_ms:>6.2f} ms {line.pass_watched_ms:>6.2f} ms {line.ratio:>6.3f}"
        for line in report.lines
    ]
    stdout.write("\n".join([head, *lines]) + "\n")
    return OK


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
