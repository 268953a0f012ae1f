"""`tokenix top`: its options, and what it opens."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from tokenix.cli import stdout
from tokenix.cli.options import Socket
from tokenix.cli.status import OK, UsageError
from tokenix.tui import settings
from tokenix.tui.model.columns import BY_NAME

if TYPE_CHECKING:
    from tokenix.tui.model.history import History
    from tokenix.tui.settings import Settings
    from tokenix.tui.snapshot import Snapshot
    from tokenix.tui.source import Source

Seconds = Annotated[
    float | None,
    Parameter(help="Seconds between looks; default: 0.5.", validator=Number(gte=0.1, lte=3600)),
]


def top(
    *,
    refresh: Seconds = None,
    sort: Annotated[str | None, Parameter(help=f"By a column: {', '.join(BY_NAME)}.")] = None,
    theme: Annotated[
        str | None, Parameter(help="tokenix-dark, tokenix-light, or one of Textual's.")
    ] = None,
    prompts: Annotated[
        bool, Parameter(help="Show, print and record how prompts begin (key: p).")
    ] = False,
    once: Annotated[bool, Parameter(help="Print one look as text.")] = False,
    json: Annotated[bool, Parameter(name="--json", help="Print one look as JSON.")] = False,
    record: Annotated[Path | None, Parameter(help="Write all looks to this file.")] = None,
    replay: Annotated[Path | None, Parameter(help="Look at such a file.")] = None,
    speed: Annotated[
        float, Parameter(help="So many times as fast as it was.", validator=Number(gt=0, lte=64))
    ] = 1.0,
    demo: Annotated[bool, Parameter(help="Look at a machine that is simulated here.")] = False,
    web: Annotated[
        int | None,
        Parameter(
            help="Serve it to browsers on this machine at this port; needs tokenix[tui-web].",
            validator=Number(gte=1, lte=65535),
        ),
    ] = None,
    config: Annotated[
        str | None,
        Parameter(env_var="TOKENIX_CONFIG", help="TOML file with a table [top] of settings."),
    ] = None,
    socket: Socket = None,
) -> int:
    """Watch the processes of a machine live, see why one waits, and act.

    Keys are shown at the foot, and all of them with ?. What is looked at is the daemon at --socket,
    a recording, or a demonstration that needs neither daemon nor model.
    """
    if replay is not None and (demo or record is not None):
        raise UsageError("--replay goes neither with --demo nor with --record")
    if sort is not None and sort not in BY_NAME:
        raise UsageError(f"no column {sort!r} to sort by; there are {', '.join(BY_NAME)}")
    chosen = settings.read(config, refresh=refresh, sort=sort, theme=theme, prompts=prompts)
    if web is not None:
        if once or json or record is not None:
            raise UsageError("--web goes neither with --once, --json nor --record")
        words = _words(
            refresh=refresh, sort=sort, theme=theme, prompts=prompts, replay=replay, speed=speed,
            demo=demo, config=config, socket=socket,
        )  # fmt: skip
        _serve(words, web)
        return OK
    source = _source(socket, demo, replay, speed)
    try:
        if record is not None:
            from tokenix.tui.recording import Recorder

            source = Recorder(source, record.expanduser(), chosen.prompts)
        if once or json:
            _print(source, chosen, json)
        else:
            _open(source, chosen)
    finally:
        source.close()
    return OK


def _words(**options: object) -> list[str]:
    """The command line that says the same."""
    words = ["top"]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words.append(f"--{name}={value}")
    return words


def _serve(words: list[str], port: int) -> None:
    try:
        from tokenix.tui.web import serve
    except ModuleNotFoundError as problem:
        raise UsageError(f"--web needs {problem.name}: pip install tokenix[tui-web]") from None
    serve(words, port)


def _source(socket: str | None, demo: bool, replay: Path | None, speed: float) -> Source:
    if replay is not None:
        from tokenix.tui.replay import Replay

        return Replay(replay.expanduser(), speed)
    if demo:
        from tokenix.tui.demo import Demo

        return Demo()
    from tokenix.tui.live import Daemon

    return Daemon(socket)


def _print(source: Source, chosen: Settings, as_json: bool) -> None:
    """Two looks, as rates take two; the second one is printed."""
    from tokenix.tui import glyphs, text
    from tokenix.tui.model.history import History
    from tokenix.tui.model.listing import Listing

    history = History()
    look = _take(source, history)
    time.sleep(chosen.refresh)
    look = _take(source, history)
    if as_json:
        stdout.write_json(text.as_record(look, history, chosen.prompts))
        return
    listing = Listing(history, sorted_by=chosen.sort, prompts=chosen.prompts)
    listing.take(look.processes)
    width = shutil.get_terminal_size((text.WIDTH, 0)).columns
    found = text.as_text(look, history, listing, width)
    stdout.write(glyphs.fitted(found, sys.stdout.encoding))


def _take(source: Source, history: History) -> Snapshot:
    look = source.pull()
    history.take(look)
    return look


def _open(source: Source, chosen: Settings) -> None:
    """The program, until it is left."""
    in_browser = "TEXTUAL_DRIVER" in os.environ
    if not in_browser and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("tokenix top needs a terminal; --once and --json print one look")
    from tokenix.tui import glyphs

    try:
        from tokenix.tui.app import TopApp
    except ModuleNotFoundError as problem:
        raise UsageError(f"tokenix top needs {problem.name}: pip install tokenix[tui]") from None
    app = TopApp(source, chosen)
    if chosen.theme not in app.available_themes:
        raise UsageError(f"no theme {chosen.theme!r}; there are {', '.join(app.available_themes)}")
    for name in chosen.keys:
        if name not in app.action_names():
            raise UsageError(f"[top.keys]: no action {name!r}; the help (?) has all names")
    glyphs.fall_back(sys.__stderr__)  # where Textual draws
    app.run()
    if app.failure is not None:
        raise app.failure
