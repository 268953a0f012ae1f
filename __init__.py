"""Tokenix: an operating-system kernel for LLM serving.

Requests are processes, generated tokens are their output, KV cache pages live in page frames, and a
scheduler decides by reader progress who runs. Start with `boot`:

    import tokenix

    with tokenix.boot("smollm2") as k:
        pid = k.spawn("The capital of France is", max_tokens=8)
        print("".join(k.stream(pid)))

Importing this package is cheap: names are resolved when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenix.kernel.calls import Signal
    from tokenix.syscalls import aio as aio
    from tokenix.syscalls.inproc import boot as boot
    from tokenix.syscalls.inproc import connect as connect

    SIGSTOP = Signal.STOP
    SIGCONT = Signal.CONT
    SIGTERM = Signal.TERM
    SIGKILL = Signal.KILL

__version__ = "0.1.0"

__all__ = ["SIGCONT", "SIGKILL", "SIGSTOP", "SIGTERM", "__version__", "aio", "boot", "connect"]

_HOMES = {
    "SIGCONT": ("tokenix.kernel.calls", "Signal.CONT"),
    "SIGKILL": ("tokenix.kernel.calls", "Signal.KILL"),
    "SIGSTOP": ("tokenix.kernel.calls", "Signal.STOP"),
    "SIGTERM": ("tokenix.kernel.calls", "Signal.TERM"),
    "aio": ("tokenix.syscalls.aio", ""),
    "boot": ("tokenix.syscalls.inproc", "boot"),
    "connect": ("tokenix.syscalls.inproc", "connect"),
}
"""Public name -> the module that defines it, and the dotted path inside ("" is the module)."""


if not TYPE_CHECKING:  # or a misspelt name would pass a type checker

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, path = _HOMES[name]
        value: Any = import_module(module)
        for part in filter(None, path.split(".")):
            value = getattr(value, part)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
