"""`tokenix suspend`, `resume` and `images`: processes that are kept on disk."""

from __future__ import annotations

from typing import Annotated

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.lazy import options
from tokenix.cli.status import OK
from tokenix.cli.table import printable, size, table
from tokenix.syscalls.types import Pid


def suspend(
    pid: Annotated[int, options.Parameter(help="Process.")],
    name: Annotated[str, options.Parameter(help="Of the image.")],
    *,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Write a process to an image and end it; `resume` lets it go on, also after a restart."""
    with connected(socket) as k:
        image = k.suspend(Pid(pid), name)
    if json:
        stdout.write_json(image)
    else:
        stdout.write(f"{pid} is in image {printable(image.name)}, {size(image.size_bytes)}\n")
    return OK


def resume(
    name: Annotated[str, options.Parameter(help="Of the image.")],
    *,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Let the process of an image go on; prints its new pid."""
    with connected(socket) as k:
        pid = k.resume(name, detach=True)
    if json:
        stdout.write_json({"pid": pid, "name": name})
    else:
        stdout.write(f"{pid}\n")
    return OK


def images(*, json: options.Json = False, socket: options.Socket = None) -> int:
    """List the images that `suspend` has made."""
    with connected(socket) as k:
        found = k.images()
    if json:
        stdout.write_json(found)
        return OK
    rows = [
        (printable(image.tenant), size(image.size_bytes), printable(image.name)) for image in found
    ]
    stdout.write(table(("TENANT", "SIZE", "NAME"), rows, left=("TENANT",)))
    return OK
