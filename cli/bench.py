"""`tokenix bench`: measurements of the kernel itself."""

import json as jsonlib
import sys
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT, check_image
from tokenix.cli.status import OK, UsageError

if TYPE_CHECKING:
    from tokenix.bench.evict import Report as Evictions
    from tokenix.bench.step import Report

bench = App(
    name="bench",
    help="Measure the kernel itself.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)
for _name, _place in (
    ("attention", "tokenix.cli.benchattention:attention"),
    ("compare", "tokenix.cli.benchcompare:compare"),
    ("decode", "tokenix.cli.benchdecode:decode"),
    ("gateway", "tokenix.cli.benchgateway:gateway"),
    ("grammar", "tokenix.cli.benchgrammar:grammar"),
    ("kv-quality", "tokenix.cli.kvquality:kv_quality"),
    ("load", "tokenix.cli.benchload:load"),
    ("profile", "tokenix.cli.benchprofile:profile"),
    ("quality", "tokenix.cli.benchquality:quality"),
    ("socket", "tokenix.cli.benchsocket:socket"),
    ("startup", "tokenix.cli.benchstartup:startup"),
    ("swap", "tokenix.cli.benchswap:swap"),
    ("storm", "tokenix.cli.benchstorm:storm"),
    ("top", "tokenix.cli.benchtop:top"),
):
    bench.command(_place, name=_name)


@bench.command
def step(
    *,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, Parameter(help="Write the curves to this image.")] = None,
    steps: Annotated[
        int, Parameter(validator=COUNT, help="Steps that each median is taken of.")
    ] = 200,
) -> int:
    """What one step of the kernel costs, from 16 processes to 10,000."""
    from tokenix.bench import step as measuring

    check_image(plot)
    report = measuring.measure(steps=steps, watch=_tell if sys.stderr.isatty() else None)
    if plot is not None:
        measuring.plot(report, plot)
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _table(report))
    return OK


@bench.command
def evict(
    *,
    trace: Annotated[
        Path | None, Parameter(help="A trace with prefix hashes; else made chats and documents.")
    ] = None,
    sizes: Annotated[
        str,
        Parameter(help="Blocks that the cache has room for, with commas; default: 500 to 64000."),
    ] = "",
    seed: Annotated[int, Parameter(help="Of the chats and documents.")] = 1,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What a prefix cache finds, by what it evicts."""
    from tokenix.bench import evict as measuring
    from tokenix.bench.traces import read_trace

    numbers = _counts("--sizes", sizes) if sizes else measuring.SIZES
    try:
        if trace is None:
            name, visits = f"chats and documents, seed {seed}", measuring.make_chats(seed)
        else:
            name, visits = trace.stem, measuring.visits_of(read_trace(trace).requests)
        watch = _tell if sys.stderr.isatty() else None
        report = measuring.study(name, visits, numbers, watch)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _evictions(report))
    return OK


def _counts(option: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{option} {text}: whole numbers from 1 on, with commas between them")
    return [int(word) for word in words]


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _table(report: "Report") -> str:
    head = ("processes", "running", "waiting", "paused", "steady ms", "32 arrive ms")
    lines = [" ".join(f"{name:>12}" for name in head)]
    for line in (report.reference, *report.table):
        *counts, steady_ms, arrivals_ms = astuple(line)
        cells = [*map(str, counts), f"{steady_ms:.3f}", f"{arrivals_ms:.3f}"]
        lines.append(" ".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines) + "\n"


def _evictions(report: "Evictions") -> str:
    names = ("belady", "foreseeable", *report.lines[0].policies)
    lines = [
        f"{report.name}: {report.requests} requests, {report.accesses} blocks, "
        f"{report.distinct} distinct; infinite {report.infinite:.3f}",
        " ".join(f"{name:>11}" for name in ("blocks", *names)),
    ]
    for line in report.lines:
        shares = (line.belady, line.foreseeable, *line.policies.values())
        lines.append(" ".join([f"{line.blocks:>11}", *(f"{share:>11.3f}" for share in shares)]))
    return "\n".join(lines) + "\n"
