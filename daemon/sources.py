"""Where options come from: flags, then the environment, then the file, then defaults.

A table that may have any keys (`[sched]`, `[http.alias]`) comes as a whole from the first of these
that says something of it.
"""

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclopts import App, ArgumentCollection, CycloptsError
from cyclopts.config import Dict, Env

PREFIX = "TOKENIX_"
CONFIG_VARIABLE = "TOKENIX_CONFIG"
FILE_NAME = "config.toml"


def usual_paths() -> tuple[Path, ...]:
    """Where the file is looked for if none is named; the first that exists is read."""
    import platformdirs

    folders = (
        platformdirs.user_config_path("tokenix"),
        *platformdirs.PlatformDirs("tokenix", multipath=False).iter_config_paths(),
        Path("/etc/tokenix"),
    )
    return tuple(dict.fromkeys(folder / FILE_NAME for folder in folders))


def config_path(named: str | None) -> Path | None:
    """The file that is read; None: there is none. OSError ENOENT for a named one."""
    named = named or os.environ.get(CONFIG_VARIABLE) or None
    if named is not None:
        path = Path(named).expanduser()
        path.stat()
        return path
    return next((path for path in usual_paths() if path.is_file()), None)


class Sources:
    """The sources of one command line, in their order, for cyclopts; and which of them had each
    option in the end."""

    def __init__(self) -> None:
        self.origins: dict[str, str] = {}
        """Dotted name of an option -> flag, the variable, or the file; those that are not there
        have their default."""

    def apply(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """What cyclopts calls between parsing and converting. CycloptsError."""
        named = next((a for a in arguments if a.name == "--config"), None)
        given = named.tokens[0].value if named is not None and named.tokens else None
        Env(PREFIX, command=False)(app, commands, arguments)
        _drop_empty(arguments)
        path = config_path(given)
        if path is not None:
            tables = _read(path)
            Dict(tables, source=str(path), use_commands_as_keys=False)(app, commands, arguments)
        _check_tables(arguments)
        self.origins = dict(_origins(arguments))


def _read(path: Path) -> dict[str, Any]:
    """The tables of the file, but for that of `tokenix top`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise CycloptsError(msg=f"{path}: {problem}") from None
    tables.pop("top", None)
    return tables


def _drop_empty(arguments: ArgumentCollection) -> None:
    """A variable that is empty counts as one that is not set."""
    for argument in arguments:
        argument.tokens[:] = [t for t in argument.tokens if t.source != "env" or t.value]


def _check_tables(arguments: ArgumentCollection) -> None:
    """Nothing but its own options is said of a group of options."""
    for argument in arguments:
        if argument.children and argument.tokens:
            token = argument.tokens[0]
            where = f"{token.source}: " if token.source not in ("cli", "env") else ""
            raise CycloptsError(
                msg=f"{where}{token.keyword} is a table of options, not {token.value!r}"
            )


def _origins(arguments: ArgumentCollection) -> Iterator[tuple[str, str]]:
    for argument in arguments:
        if not argument.tokens:
            continue
        token = argument.tokens[0]
        name = ".".join(argument.keys) or argument.name.removeprefix("--")
        match token.source:
            case "env":
                yield name, token.keyword or "environment"
            case "cli":
                yield name, "flag"
            case source:
                yield name, source
