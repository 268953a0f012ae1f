"""`tokenix bench profile`: its options and its table."""

import json as jsonlib
from typing import Annotated, Literal

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.machine import DEFAULT_MODEL
from tokenix.cli.status import OK, UsageError


def profile(
    model: Annotated[str, Parameter(help="Name of a model, or a path.")] = DEFAULT_MODEL,
    *,
    batch: Annotated[str, Parameter(help="Streams at once, with commas.")] = "1,8,32",
    context: Annotated[int, Parameter(validator=COUNT, help="Tokens of each, about.")] = 192,
    steps: Annotated[int, Parameter(validator=COUNT, help="Decode steps of each batch.")] = 96,
    threads: Annotated[
        int | None, Parameter(validator=COUNT, help="Of the device; default: all.")
    ] = None,
    weights: Annotated[
        Literal["native", "bf16", "f16"] | None,
        Parameter(help="How they are stored; default: the device's."),
    ] = None,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """Where the time of a decode step goes: the model, Python around it, the kernel, hand-overs."""
    from tokenix.bench import profile as measuring
    from tokenix.syscalls.anatomy import PARTS

    words = [word.strip() for word in batch.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--batch {batch}: whole numbers from 1 on, with commas between them")
    lines = measuring.measure(
        model, [int(word) for word in words], context, steps, threads, weights
    )
    if json:
        stdout.write(jsonlib.dumps([line.as_json() for line in lines], indent=2) + "\n")
        return OK
    head = ("batch", "output", "step ms", *PARTS, "around")
    rows = [" ".join(f"{name:>8}" for name in head)]
    for line in lines:
        cells = [str(line.batch), "read" if line.read else "unread", f"{line.whole_ms:.2f}"]
        cells += [f"{line.parts_ms[name]:.3f}" for name in PARTS]
        rows.append(" ".join(f"{cell:>8}" for cell in (*cells, f"{line.around_share:.1%}")))
    stdout.write("\n".join(rows) + "\n")
    return OK
