"""Control variables as lines, and how they are found."""

from collections.abc import Mapping
from typing import Any, Final

from tokenix.cli.table import printable

NAME: Final = 34
FIRST: Final = ("policy", "sched.", "swap.restore", "weights.", "quota.")
"""How the names begin of those that can be set; they are listed first."""


def found(values: Mapping[str, Any], words: str) -> list[str]:
    """Names that have all these words in them, those that can be set first."""
    wanted = words.lower().split()
    names = [name for name in values if all(word in name.lower() for word in wanted)]
    return sorted(names, key=lambda name: (not can_set(name), name != "policy", name))


def can_set(name: str) -> bool:
    return name.startswith(FIRST)


def line(name: str, value: Any) -> str:
    """`sched.max_running                  256`"""
    only = "" if can_set(name) else "   (read only)"
    return f"{printable(name):<{NAME}}{shown(value)}{only}"


def shown(value: Any) -> str:
    """As the command line shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else printable(str(value))
