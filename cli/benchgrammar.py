"""`tokenix bench grammar`: what it costs to hold outputs to a grammar."""

import json as jsonlib
from typing import Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.status import OK


def grammar(
    model: Annotated[str, Parameter(help="A name, a .gguf file or a directory.")] = "smollm2",
    *,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What it costs to hold outputs to a grammar."""
    from tokenix.bench import grammar as measuring

    report = measuring.measure(model)
    if json:
        stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n")
        return OK
    free_ms = report.free_ms
    stdout.write(
        f"vocabulary   {report.vocab_tokens} tokens, made ready in {report.prepare_s:.2f} s\n"
        f"a schema     compiled in {report.compile_ms:.1f} ms\n"
        f"a mask       {report.mask_us:.0f} us, median {report.mask_median_us:.0f}, "
        f"worst {report.mask_worst_us:.0f}\n"
        f"a step of {measuring.STREAMS}  {free_ms:.2f} ms free, {report.held_ms:.2f} ms held "
        f"({report.held_ms / free_ms:.3f}), {report.half_ms:.2f} ms half "
        f"({report.half_ms / free_ms:.3f})\n"
    )
    return OK
