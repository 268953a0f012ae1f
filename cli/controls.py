"""`tokenix sysctl`: the kernel's control variables."""

from __future__ import annotations

from typing import Annotated, Any

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.lazy import options
from tokenix.cli.status import OK, UsageError

Value = float | str | bool

USAGE = "sysctl takes [NAME], get NAME, set NAME VALUE, or NAME=VALUE"


def sysctl(
    *words: Annotated[
        str, options.Parameter(help="NAME, get NAME, set NAME VALUE, or NAME=VALUE.")
    ],
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Show control variables, or set one (root only)."""
    name, value = asked(words)
    with connected(socket) as k:
        found = k.sysctl(name, value)
    shown = value if value is not None else found
    values: dict[str, Any] = {name: shown} if name else found
    if json:
        stdout.write_json(values)
    else:
        stdout.write("".join(f"{key} = {_shown(values[key])}\n" for key in sorted(values)))
    return OK


def asked(words: tuple[str, ...]) -> tuple[str, Value | None]:
    """Which variable, and the value that it is to have. UsageError."""
    match words:
        case ():
            return "", None
        case ("get", name) if "=" not in name:
            return name, None
        case ("set", name, value):
            return name, value_of(value)
        case ("set", word) | (word,) if "=" in word:
            name, _, value = word.partition("=")
            return name.strip(), value_of(value.strip())
        case (name,) if name not in ("get", "set"):
            return name, None
    raise UsageError(f"{USAGE}, not {' '.join(words)!r}")


def value_of(text: str) -> Value:
    """A number or a truth value if it reads as one, else the text."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
