"""The daemon that a command talks to."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tokenix.cli.status import NO_DAEMON, Failure
from tokenix.syscalls import inproc
from tokenix.syscalls.inproc import Syscalls


@contextmanager
def connected(socket: str | None) -> Iterator[Syscalls]:
    """The system calls of the daemon at that socket; None: at the usual one. Failure: there is
    none, or it has gone meanwhile."""
    k = connect(socket)
    try:
        yield k
    finally:
        k.close()


def connect(socket: str | None) -> Syscalls:
    """As `connected`, for who closes it."""
    try:
        return inproc.connect(socket)
    except OSError as problem:
        if problem.errno in (errno.ENOENT, errno.ECONNREFUSED):
            raise Failure(f"{no_daemon(socket)}; start one: tokenix serve", NO_DAEMON) from None
        raise


def no_daemon(socket: str | None) -> str:
    from tokenix.syscalls.wire.paths import socket_path

    return f"no daemon listens at {socket or socket_path()}"
