"""The states of a process, as data. Only `kernel.core.Kernel.move` changes one.

    NEW --> READY <--> RUNNING                     READY <--> STOPPED
              |                                      (signal, full pipe, waits for input)
              v
        SWAPPING_OUT --> SWAPPED --> SWAPPING_IN --> READY
                          ^   v
                         FETCHING                             any --> ZOMBIE --> (reaped)

What a process is *held* by (a signal, its pipe, its input) is separate from where its pages are:
a held process without frames stays NEW or SWAPPED, and is not asked to come back.
"""

import enum


class State(enum.Enum):
    NEW = "new"
    """Accepted; has no frames yet."""
    READY = "ready"
    """Has all its frames; may run in the next step."""
    RUNNING = "running"
    """In the forward pass that is in flight."""
    STOPPED = "stopped"
    """Has its frames, is held."""
    SWAPPING_OUT = "swapping-out"
    """Paused; its dirty pages are on their way to the host."""
    SWAPPED = "swapped"
    """Paused; nothing of it needs to stay on the device."""
    FETCHING = "fetching"
    """Paused; pages of it are on their way up from the swap file to the host tier."""
    SWAPPING_IN = "swapping-in"
    """Has its frames again; their content is on its way."""
    ZOMBIE = "zombie"
    """Finished; keeps its unread output and its usage until it is waited for."""


class Hold(enum.Flag):
    """Why a process may not run."""

    NONE = 0
    SIGNAL = enum.auto()
    PIPE = enum.auto()
    INPUT = enum.auto()
    SUSPEND = enum.auto()
    """It is being written to an image."""


ALLOWED: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.READY, State.STOPPED, State.SWAPPED, State.ZOMBIE}),
    State.READY: frozenset(
        {
            State.RUNNING,
            State.STOPPED,
            State.SWAPPING_OUT,
            State.SWAPPED,
            State.SWAPPING_IN,
            State.ZOMBIE,
        }
    ),
    State.RUNNING: frozenset({State.READY, State.STOPPED, State.ZOMBIE}),
    State.STOPPED: frozenset(
        {State.READY, State.SWAPPING_OUT, State.SWAPPED, State.SWAPPING_IN, State.ZOMBIE}
    ),
    State.SWAPPING_OUT: frozenset({State.SWAPPED, State.ZOMBIE}),
    State.SWAPPED: frozenset(
        {State.FETCHING, State.SWAPPING_IN, State.READY, State.STOPPED, State.ZOMBIE}
    ),
    State.FETCHING: frozenset({State.SWAPPED, State.ZOMBIE}),
    State.SWAPPING_IN: frozenset({State.READY, State.STOPPED, State.SWAPPED, State.ZOMBIE}),
    State.ZOMBIE: frozenset(),
}

PAUSED = frozenset({State.SWAPPED, State.SWAPPING_OUT, State.FETCHING, State.SWAPPING_IN})
"""States on the way out and back."""

MOVING = PAUSED - {State.SWAPPED}
"""States that end when copies do."""

RESIDENT = frozenset({State.READY, State.RUNNING, State.STOPPED, State.SWAPPING_IN})
"""States in which the address space is active: every page has a frame."""
