"""The protocol every device driver keeps; `tests/device/` is its conformance suite."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tokenix.drivers.ops import Command, Completion


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What the kernel needs to know of a device, read once at boot.

    The rates are measured (or modelled) by the driver at boot; the kernel corrects them by every
    completion it sees.
    """

    name: str
    frames: int
    page_tokens: int
    frame_bytes: int
    host_slots: int
    vocab_tokens: int
    max_context_tokens: int
    step_s: float
    """Seconds of a forward with one decoding row."""
    prefill_tokens_per_s: float
    copy_in_s_per_page: float
    copy_out_s_per_page: float
    notes: tuple[str, ...] = ()
    """What is other than was asked for, in a line each, for people."""
    depth: int = 1
    """Forwards that may be in flight at a time. 2: it gains by having the next one before it has
    told the tokens of this one (`drivers.ops`)."""
    covers_loads: bool = False
    """Whether forwards may run beside a load by layers (`drivers.ops`)."""


class Device(Protocol):
    """Runs commands asynchronously. Only the pump's thread calls it, except for `wake`."""

    def info(self) -> DeviceInfo: ...

    def submit(self, command: Command, now_s: float) -> None:
        """Queue a command and return at once. See `drivers.ops` for order and fences."""
        ...

    def poll(self, now_s: float) -> list[Completion]:
        """Take all completions that are ready at `now_s`, oldest first. Never waits."""
        ...

    def next_completion_s(self) -> float | None:
        """Virtual devices: when the next completion will be ready, None if nothing is in flight.

        Real devices return None always and call `wake` instead.
        """
        ...

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Real devices call `wake` (from any thread) after a completion has become ready."""
        ...

    def close(self) -> None:
        """Stop the device's threads and free its memory; what hangs may keep its part, but not the
        caller for more than some seconds. Idempotent."""
        ...
