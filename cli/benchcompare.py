"""`tokenix bench compare`: its options, and where it keeps what it needs."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.status import FAILED, OK, Failure, UsageError

if TYPE_CHECKING:
    from tokenix.bench.compare.peer import Peer

PEERS = (
    "llama-q4_0", "openvino", "tokenix", "tokenix-noswap", "llama-q4_1", "llama-bf16", "vllm",
)  # fmt: skip
DEFAULT_PEERS = "llama-q4_0,openvino,tokenix"


def compare(
    *,
    peers: Annotated[str, Parameter(help=f"With commas: {', '.join(PEERS)}.")] = DEFAULT_PEERS,
    scenarios: Annotated[
        str,
        Parameter(
            help="With commas: prefill, one, eight, many, mix, overload; default: all. mix:1 plays "
            "one round at most."
        ),
    ] = "",
    rounds: Annotated[int, Parameter(validator=COUNT, help="Of each scenario, in turn.")] = 3,
    threads: Annotated[
        int | None, Parameter(validator=COUNT, help="Of each server; default: all cores.")
    ] = None,
    jobs: Annotated[int, Parameter(name=["--jobs", "-j"], validator=COUNT, help="Compilers.")] = 1,
    out: Annotated[Path, Parameter(help="The report; its runs are beside it, as lines.")] = Path(
        "compare.md"
    ),
    cache: Annotated[
        Path | None, Parameter(help="Where peers are installed; default: in the user's cache.")
    ] = None,
    install: Annotated[bool, Parameter(help="Install the peers, and measure nothing.")] = False,
    quick: Annotated[bool, Parameter(help="Short loads: whether all works, no figures.")] = False,
    again: Annotated[bool, Parameter(help="Forget the runs that are in the file.")] = False,
) -> int:
    """Play the same loads against this server and others, in turn; runs go on where they were."""
    from tokenix.bench.compare import machine
    from tokenix.bench.compare import scenarios as loads
    from tokenix.bench.compare.report import render
    from tokenix.bench.compare.rounds import Comparison

    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: {out.parent} is no folder")
    cores = threads or len(os.sched_getaffinity(0))
    try:
        picked = loads.chosen(_words(scenarios), quick)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    made = _peers(_words(peers), cache or _cache_folder(), jobs)
    lines = out.with_suffix(".jsonl")
    if again:
        lines.unlink(missing_ok=True)
    comparison = Comparison(made, picked, rounds, cores, lines, _tell)
    if install:
        return OK if len(comparison.install()) == len(made) else FAILED
    runs = comparison.run()
    about = {
        "machine": machine.describe(), "threads": cores, "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["tokenix", *sys.argv[1:]]),
    }  # fmt: skip
    out.write_text(render(runs, picked, about), encoding="utf-8")
    stdout.write(out.read_text(encoding="utf-8"))
    return OK if comparison.is_whole() else FAILED


def _peers(names: list[str], cache: Path, jobs: int) -> "list[Peer]":
    from tokenix.bench.compare.choice import make_peer

    for name in names:
        if name not in PEERS:
            raise UsageError(f"--peers {name}: no such server; there are {', '.join(PEERS)}")
    try:
        return [make_peer(name, cache, jobs) for name in names]
    except FileNotFoundError as why:
        raise Failure(str(why)) from None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("tokenix") / "peers"


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
