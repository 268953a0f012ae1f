"""Exit codes, and the one line on stderr that says why."""

import contextlib
import errno
import sys

OK = 0
FAILED = 1
USAGE = 2
NO_DAEMON = 69
"""As in sysexits.h: a service is unavailable."""
INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell reports for a program that SIGPIPE ended."""
TERMINATED = 143
"""What a shell reports for a program that SIGTERM ended."""


class Failure(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class UsageError(Failure):
    def __init__(self, message: str) -> None:
        super().__init__(message, USAGE)


def report(message: str) -> None:
    """`tokenix: error: ...`, always one line."""
    line = " ".join(message.split())
    with contextlib.suppress(OSError):  # nobody reads it, or the disk is full
        print(f"tokenix: error: {line}", file=sys.stderr, flush=True)


def of_os_error(problem: OSError) -> tuple[str, int]:
    """Message and exit code for what a system call or the system said."""
    message = problem.strerror or str(problem) or type(problem).__name__
    if problem.filename is not None:
        message = f"{problem.filename}: {message}"
    return message, USAGE if problem.errno == errno.EINVAL else FAILED
