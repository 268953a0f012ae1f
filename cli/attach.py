"""`tokenix attach`: the output of a process that was left to itself."""

import contextlib
import sys
from typing import Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.options import Socket
from tokenix.cli.status import OK
from tokenix.cli.table import printable
from tokenix.syscalls.types import Pid, Syscalls, raise_if_failed, text_of


def attach(
    pid: Annotated[int, Parameter(help="Process, such as `resume` has started.")],
    /,
    *,
    socket: Socket = None,
) -> int:
    """Show the output of a detached process, from what nobody has read yet to its end.

    Ctrl-C detaches: it goes on. At its end it is waited for; exit code 1 if its output was cut
    short. What somebody else reads meanwhile is not shown here.
    """
    with connected(socket) as k:
        return follow(k, Pid(pid))


def follow(k: Syscalls, pid: Pid) -> int:
    """Read a process to its end and reap it. Exit code; OSError if its output is not complete."""
    terminal = sys.stdout.isatty()
    last = "\n"
    while True:
        result = k.read(pid)
        text = text_of(result)
        stdout.write(_harmless(text) if terminal else text)
        last = text[-1:] or last
        if result.eof:
            break
    if last != "\n":
        stdout.write("\n")
    with contextlib.suppress(ChildProcessError):  # somebody else has waited for it
        k.wait(pid)
    raise_if_failed(pid, result)
    return OK


def _harmless(text: str) -> str:
    """Without control characters, but for ends of lines and tabs: it may be a stranger's."""
    return "".join(each if each in "\n\t" else printable(each) for each in text)
