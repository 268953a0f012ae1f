"""How things look, everywhere alike: one letter, one word, one colour for each state and place.

Colours are roles that `widgets/ink.py` turns into those of the theme. The letter or shade alone
tells the same, for terminals without colour.
"""

from typing import Final, NamedTuple

from tokenix.syscalls.types import State


class Look(NamedTuple):
    """Of one thing."""

    mark: str
    """One character."""
    word: str
    """At most eight characters."""
    role: str
    """Of the ink it is drawn with."""


STATES: Final[dict[str, Look]] = {
    State.NEW.value: Look("w", "waits", "warning"),
    State.READY.value: Look("r", "ready", "success"),
    State.RUNNING.value: Look("R", "runs", "success"),
    State.STOPPED.value: Look("T", "stopped", "error"),
    State.SWAPPING_OUT.value: Look("o", "leaves", "accent"),
    State.SWAPPED.value: Look("P", "paused", "primary"),
    State.FETCHING.value: Look("f", "rises", "accent"),
    State.SWAPPING_IN.value: Look("i", "returns", "accent"),
    State.ZOMBIE.value: Look("Z", "ended", "muted"),
}
"""By the values of `State`."""

UNKNOWN: Final = Look("?", "unknown", "muted")

HELD: Final = {"signal": "stopped", "pipe": "pipe full", "input": "input", "suspend": "to image"}
"""Why a process may not run, in a word."""

PAGES: Final[dict[str, Look]] = {
    "held": Look("█", "in use", "success"),
    "shared": Look("▓", "shared", "secondary"),
    "cached": Look("▒", "cached", "primary"),
    "transfer": Look("▚", "moving", "warning"),
    "host": Look("▒", "in host", "accent"),
    "file": Look("░", "in file", "muted"),
    "free": Look("·", "free", "faint"),
}
"""Pages and frames by what they are."""

CLASSES: Final = {"interactive": "inter", "stream": "stream", "batch": "batch", "idle": "idle"}
"""Service classes in at most six characters."""


def state_of(state: str, held: tuple[str, ...] = ()) -> Look:
    """How a process looks that is in this state, and held so."""
    look = STATES.get(state, UNKNOWN)
    if not held or state == State.ZOMBIE.value:
        return look
    if "signal" in held:
        return Look("T", "stopped", "error")
    return Look(look.mark, HELD.get(held[0], held[0])[:9], "muted")
