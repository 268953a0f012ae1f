"""`tokenix bench load`: its options, the files it writes, its table."""

import contextlib
import json as jsonlib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT, NOT_NEGATIVE, POSITIVE
from tokenix.cli.status import FAILED, INTERRUPTED, OK, Failure, UsageError

if TYPE_CHECKING:
    from tokenix.bench.load.clients import Clients
    from tokenix.bench.load.run import Options, Report
    from tokenix.cli.loadlines import LoadLines

MaybePositive = Annotated[float | None, Parameter(validator=POSITIVE)]
MaybeCount = Annotated[int | None, Parameter(validator=COUNT)]
QUANTITY = "128, 64-256, or ~MEDIAN:SIGMA[:MOST] for a lognormal tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group of clients, as options; more of them are a TOML file (bench/load/clients.py)."""

    rate: Annotated[MaybePositive, Parameter(help="Sessions a second that arrive, open loop.")] = (
        None
    )
    burstiness: Annotated[
        float,
        Parameter(validator=POSITIVE, help="Gamma shape of the gaps; 1: Poisson, less: bursts."),
    ] = 1.0
    rate_to: Annotated[
        float | None, Parameter(validator=NOT_NEGATIVE, help="The rate moves there within --ramp.")
    ] = None
    ramp_s: Annotated[
        float, Parameter(name="--ramp", validator=NOT_NEGATIVE, help="Seconds of the ramp.")
    ] = 60.0
    concurrency: Annotated[
        MaybeCount,
        Parameter(help="Closed loop of so many; with arrivals: at most so many at once."),
    ] = None
    trace: Annotated[
        str | None, Parameter(help="Arrivals and lengths of a trace: Azure, BurstGPT, JSONL ...")
    ] = None
    rate_scale: Annotated[
        float, Parameter(validator=POSITIVE, help="Times the trace's own rate.")
    ] = 1.0
    requests: Annotated[MaybeCount, Parameter(help="Sessions; default 100, or the trace's.")] = None
    duration_s: Annotated[
        MaybePositive, Parameter(name="--duration", help="Seconds in which sessions begin.")
    ] = None
    input_tokens: Annotated[
        str,
        Parameter(name=["--input", "--input-tokens"], help=f"New tokens of a turn: {QUANTITY}."),
    ] = "128"
    output_tokens: Annotated[
        str, Parameter(name=["--output", "--output-tokens"], help="Tokens of an answer, likewise.")
    ] = "128"
    prefix_tokens: Annotated[
        int, Parameter(validator=NOT_NEGATIVE, help="With which all sessions of a group begin.")
    ] = 0
    prefix_groups: Annotated[int, Parameter(validator=COUNT, help="Groups of prefixes.")] = 1
    turns: Annotated[str, Parameter(help="Turns of a session, likewise.")] = "1"
    think_s: Annotated[
        str, Parameter(name="--think", help="Seconds between answer and next turn, likewise.")
    ] = "0"
    tool_s: Annotated[
        str, Parameter(name="--tool", help="The same where a tool works, likewise.")
    ] = "0"
    tool_share: Annotated[
        float, Parameter(validator=NOT_NEGATIVE, help="Share of the turns that a tool answers.")
    ] = 0.0
    reader_tokens_per_s: Annotated[
        float, Parameter(name="--reader", validator=POSITIVE, help="Tokens/s that readers read.")
    ] = 10.0
    tell_pace: Annotated[bool, Parameter(help="Tell the server how fast they read.")] = False
    stalled_share: Annotated[
        float, Parameter(name="--stalled", validator=NOT_NEGATIVE, help="Share that stops reading.")
    ] = 0.0
    stall_s: Annotated[
        float, Parameter(name="--stall", validator=NOT_NEGATIVE, help="For so many seconds.")
    ] = 5.0
    leaving_share: Annotated[
        float, Parameter(name="--leaving", validator=NOT_NEGATIVE, help="Share that hangs up.")
    ] = 0.0
    qos: Annotated[
        Literal["", "interactive", "stream", "batch", "idle"],
        Parameter(help="Class; over HTTP the service_tier."),
    ] = ""
    nice: Annotated[int | None, Parameter(help="Nice value; over HTTP the priority.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the load goes, and how it is put."""

    url: Annotated[str, Parameter(help="A server of OpenAI's API.")] = "http://127.0.0.1:8000"
    socket: Annotated[Path | None, Parameter(help="A kernel's socket in place of a server.")] = None
    model: Annotated[str, Parameter(help="Default: the first that the server lists.")] = ""
    api_key: Annotated[str, Parameter(env_var="OPENAI_API_KEY", help="Bearer token.")] = ""
    api: Annotated[Literal["completions", "chat"], Parameter(help="Which path is asked.")] = (
        "completions"
    )
    prompt: Annotated[
        Literal["ids", "text"] | None,
        Parameter(help="Token ids (exact lengths), or words; default: ids, of chats text."),
    ] = None
    vocabulary: Annotated[int, Parameter(validator=COUNT, help="Ids are drawn below it.")] = 30_000
    temperature: Annotated[float, Parameter(validator=NOT_NEGATIVE, help="0: greedy.")] = 0.0
    stop_at_eos: Annotated[bool, Parameter(help="Let answers end before their length.")] = False
    extra_body: Annotated[str, Parameter(help="JSON object, added to each request.")] = ""
    limit_s: Annotated[
        float, Parameter(name="--limit", validator=POSITIVE, help="Seconds a request may take.")
    ] = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What is good, and what it costs."""

    good_ttft_s: Annotated[
        float, Parameter(name="--good-ttft", validator=POSITIVE, help="First token within (s).")
    ] = 1.0
    good_tpot_s: Annotated[
        MaybePositive, Parameter(name="--good-tpot", help="At most so long a token (s).")
    ] = None
    good_e2el_s: Annotated[MaybePositive, Parameter(name="--good-e2el", help="All within (s).")] = (
        None
    )
    usd_per_hour: Annotated[MaybePositive, Parameter(help="Price of the machine.")] = None
    machine: Annotated[str, Parameter(help="Its name in the price table: NAME, or 8xNAME.")] = ""
    prices: Annotated[
        Path | None, Parameter(help="CSV name,usd_per_hour; default: bench/data/prices.csv.")
    ] = None


def load(
    *,
    group: Annotated[Group, Parameter(name="*")] = Group(),
    server: Annotated[Server, Parameter(name="*")] = Server(),
    judging: Annotated[Judging, Parameter(name="*")] = Judging(),
    clients: Annotated[
        Path | None, Parameter(help="TOML file with groups of clients, in place of options.")
    ] = None,
    seed: Annotated[int, Parameter(help="The same seed, the same load.")] = 1,
    warmup: Annotated[
        int, Parameter(validator=NOT_NEGATIVE, help="Requests that come first, not counted.")
    ] = 0,
    out: Annotated[Path | None, Parameter(help="Write a line of JSON for each request.")] = None,
    html: Annotated[Path | None, Parameter(help="Write a report with plots, in one file.")] = None,
    json: Annotated[bool, Parameter(name="--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Play a load against a server of OpenAI's API or a kernel's socket, and measure it."""
    _need_client()
    from tokenix.bench.load import run as running

    if html is not None:
        _check_page(html)
    try:
        options = _options(group, server, judging, clients, seed, warmup)
        with _lines(out) as lines, _watching() as watch:
            note = None if lines is None else lines.note
            report = running.run(options, watch, note, stoppable=True)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    summary = report.summary
    if json:
        stdout.write(jsonlib.dumps(summary, indent=2) + "\n")
    else:
        from tokenix.bench.load.table import table

        stdout.write(table(summary))
    if html is not None:
        _write_page(report, html)
    if lines is not None and lines.problem is not None:
        raise Failure(f"--out {out}: {lines.problem.strerror}; it ends after {lines.count} lines")
    if summary["interrupted"]:
        return INTERRUPTED
    nothing = not summary["completed"] and not summary["left"]
    return FAILED if summary["failed"] or nothing else OK


def _write_page(report: "Report", path: Path) -> None:
    from tokenix.bench.load.page import write_page

    try:
        write_page(report, path, as_called(sys.argv[1:]))
    except OSError as why:
        raise Failure(f"--html {path}: {why.strerror}") from None


def as_called(words: list[str]) -> str:
    """As it was called, to be called again; pages are handed around, keys are not."""
    told = ["tokenix"]
    for word in words:
        name, equals, _ = word.partition("=")
        secret = told[-1] == "--api-key" or (name == "--api-key" and equals)
        told.append((name + equals if equals else "") + "***" if secret else shlex.quote(word))
    return " ".join(told)


def _options(
    group: Group, server: Server, judging: Judging, clients: Path | None, seed: int, warmup: int
) -> "Options":
    from tokenix.bench.load.openai import Asking
    from tokenix.bench.load.run import Options

    prompt = server.prompt or ("text" if server.api == "chat" else "ids")
    if clients is None and prompt == "ids" and server.socket is None and group.turns != "1":
        prompt = "text" if server.prompt is None else prompt
    asking = Asking(
        server.api, prompt, server.temperature, not server.stop_at_eos,
        _object(server.extra_body), server.limit_s,
    )  # fmt: skip
    return Options(
        groups=_groups(group, clients), seed=seed, url=server.url, socket=server.socket,
        model=server.model, api_key=server.api_key, asking=asking, vocabulary=server.vocabulary,
        warmup=warmup, wants=_wants(judging),
    )  # fmt: skip


def _groups(group: Group, clients: Path | None) -> "tuple[Clients, ...]":
    from tokenix.bench.load.clients import Clients, read_clients

    given = {field.name: getattr(group, field.name) for field in fields(group)}
    if clients is None:
        return (Clients(**given),)
    default = Group()
    changed = [name for name, value in given.items() if value != getattr(default, name)]
    if changed:
        raise UsageError(f"--clients says what arrives; {changed[0]} belongs into that file")
    return read_clients(clients)


def _wants(judging: Judging) -> Any:
    from tokenix.bench.load.prices import price_of
    from tokenix.bench.load.summary import Wants

    price = judging.usd_per_hour
    if judging.prices is not None and not judging.machine:
        raise UsageError("--prices has machines by their names; name one with --machine")
    if judging.machine:
        if price is not None:
            raise UsageError("--machine and --usd-per-hour both say the price; give one")
        price = price_of(judging.machine, judging.prices)
    return Wants(judging.good_ttft_s, judging.good_tpot_s, judging.good_e2el_s, price)


def _object(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = jsonlib.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"--extra-body {text}: that is no JSON object")
    return value


def _need_client() -> None:
    from importlib.util import find_spec

    for module in ("httptools", "uvloop"):
        if find_spec(module) is None:
            raise Failure(f"bench load needs {module}; run: pip install 'tokenix[serve]'")


def _check_page(path: Path) -> None:
    from tokenix.cli.checks import need_matplotlib

    need_matplotlib()
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--html {path}: name a file in a folder that exists")


@contextlib.contextmanager
def _lines(out: Path | None) -> "Iterator[LoadLines | None]":
    if out is None:
        yield None
        return
    from tokenix.cli.loadlines import LoadLines

    with LoadLines(out) as lines:
        yield lines


@contextlib.contextmanager
def _watching() -> Iterator[Any]:
    """A live line on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from tokenix.cli.loadlive import LiveLoad

    with LiveLoad() as live:
        yield live.show
