"""The `tokenix` command: from a command line to an exit code, whatever happens."""

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

from tokenix.cli import stdout
from tokenix.cli.status import (
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    TERMINATED,
    Failure,
    of_os_error,
    report,
)

TRACEBACK_VARIABLE = "TOKENIX_TRACEBACK"
"""Set it to see where an error comes from."""

YOUNG_OBJECTS = 50_000
"""So many before the first look for garbage. What is imported stays, and looking through it every
700 objects took a quarter of the time of `tokenix ps`."""


class Terminated(BaseException):
    """SIGTERM has come. Not an Exception: nobody on the way is to handle it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit code: 0, 1 it failed, 2 it was called wrongly, 130 interrupted, 143
    terminated."""
    _open_closed_streams()
    _leave_in_order_when_terminated()
    trace = bool(os.environ.get(TRACEBACK_VARIABLE))
    if not trace:
        # A thread's failure is told by whoever waits for it.
        threading.excepthook = lambda _: None
    thresholds = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *thresholds[1:])
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
    except stdout.StdoutClosed:
        code = PIPE_CLOSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except Exception as problem:
        if trace:
            raise
        code = _explain(problem)
    finally:
        gc.set_threshold(*thresholds)
    return _flush(code)


def _run(words: list[str]) -> int:
    """Run the command that they name. Exit code."""
    from tokenix.cli import commands

    if len(words) == 1 and words[0] in commands.QUICK:
        module, name = commands.place_of(words[0])
        return int(getattr(import_module(module), name)())
    from tokenix.cli.app import dispatch

    return dispatch(words)


def _open_closed_streams() -> None:
    """A standard stream that was closed (`tokenix run hi >&-`) leads nowhere, and its number is
    not given to the next file that is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _leave_in_order_when_terminated() -> None:
    """SIGTERM ends the command as Ctrl-C does, which gives the terminal its cursor back. A second
    one ends it at once."""

    def terminate(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)


def _explain(problem: Exception) -> int:
    """One line for an exception; its exit code."""
    match problem:
        case Failure():
            message, code = str(problem), problem.code
        case OSError():
            message, code = of_os_error(problem)
        case ImportError(name=str(missing)) if not missing.startswith("tokenix"):
            message = f"{missing} is not installed; run: pip install 'tokenix[cli,cpu]'"
            code = FAILED
        case _:
            message = f"{type(problem).__name__}: {problem} (set {TRACEBACK_VARIABLE}=1 for more)"
            code = FAILED
    report(message)
    return code


def _flush(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
    if code == PIPE_CLOSED:
        with contextlib.suppress(OSError, ValueError):
            stdout.discard(sys.stdout)
    try:
        sys.stderr.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            stdout.discard(sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
