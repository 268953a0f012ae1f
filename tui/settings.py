"""What a user can choose: the table `[top]` of the configuration file, and flags, which win.

[top]
theme = "tokenix-light"
sort = "wait"
refresh = 1.0

[top.keys]
"table.signal" = "k,delete"
"""

import tomllib
from typing import Any

import msgspec

from tokenix.cli.status import UsageError
from tokenix.daemon.sources import config_path
from tokenix.tui.model.columns import BY_NAME

SHORTEST_S, LONGEST_S = 0.1, 3600.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refresh: float = 0.5
    """Seconds between looks."""
    theme: str = "tokenix-dark"
    sort: str = "lead"
    """A column (`model/columns.py`)."""
    prompts: bool = False
    """How prompts begin is shown from the start."""
    keys: dict[str, str] = {}
    """Name of an action, as the help shows it -> its keys, with commas between."""


def read(named: str | None, **flags: Any) -> Settings:
    """Those of the file, the usual one if none is named, below the flags that were given.
    UsageError: they make no sense. OSError: a named file is not there."""
    path = config_path(named)
    table: Any = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8")).get("top", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise UsageError(f"{path}: {problem}") from None
    try:
        chosen = msgspec.convert(table, Settings, strict=False)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{path}: [top]: {problem}") from None
    given = {name: value for name, value in flags.items() if value not in (None, False)}
    chosen = msgspec.structs.replace(chosen, **given)
    if chosen.sort not in BY_NAME:
        raise UsageError(
            f"{path}: [top]: no column {chosen.sort!r}; there are {', '.join(BY_NAME)}"
        )
    if not SHORTEST_S <= chosen.refresh <= LONGEST_S:
        what = f"refresh is {SHORTEST_S:g} to {LONGEST_S:g} seconds, not {chosen.refresh:g}"
        raise UsageError(f"{path}: [top]: {what}")
    return chosen
