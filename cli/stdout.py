"""Standard output that may be closed by whoever reads it (`tokenix run ... | head`)."""

import os
import sys
from typing import Any, TextIO

import msgspec


class StdoutClosed(Exception):
    """Nobody reads our output any more. Not an OSError: the kernel has a broken pipe of its own."""


def write(text: str) -> None:
    """Write at once. Characters that the terminal's encoding lacks are replaced. OSError: the disk
    that it goes to is full, and the like."""
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding or "ascii"
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise StdoutClosed from None
    except OSError as why:
        raise OSError(why.errno, why.strerror, "standard output") from None


def discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that leaving does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def write_json(value: Any) -> None:
    """One line of JSON: plain values, and records of the system calls."""
    write(msgspec.json.encode(value).decode() + "\n")
