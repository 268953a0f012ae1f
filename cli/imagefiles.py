"""`tokenix suspend`, `resume`, `unlink` and `images`: processes that are kept on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.lazy import options
from tokenix.cli.status import OK, Failure, UsageError
from tokenix.cli.table import printable, size, table
from tokenix.syscalls.types import Pid, Syscalls


def suspend(
    pid: Annotated[int, options.Parameter(help="Process.")],
    name: Annotated[str, options.Parameter(help="Of the image.")],
    /,
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
    /,
    *,
    tenant: options.Tenant = None,
    attach: Annotated[
        bool, options.Parameter(help="Show its output to the end; Ctrl-C detaches.")
    ] = False,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Let the process of an image go on; prints its new pid. `attach` shows its output."""
    if attach and json:
        raise UsageError("--attach shows text; leave out --json")
    with connected(socket) as k:
        with _saying_how(tenant):
            pid = _as(k, tenant).resume(name, detach=True)
        if attach:
            from tokenix.cli.attach import follow

            return follow(k, pid)
    if json:
        stdout.write_json({"pid": pid, "name": name})
    else:
        stdout.write(f"{pid}\n")
    return OK


def unlink(
    name: Annotated[str, options.Parameter(help="Of the image.")],
    /,
    *,
    tenant: options.Tenant = None,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """Delete an image: its process never goes on."""
    with connected(socket) as k, _saying_how(tenant):
        _as(k, tenant).unlink_image(name)
    if json:
        stdout.write_json({"name": name})
    return OK


def images(
    *,
    tenant: options.Tenant = None,
    json: options.Json = False,
    socket: options.Socket = None,
) -> int:
    """List the images that `suspend` has made."""
    with connected(socket) as k:
        found = _as(k, tenant).images()
    if json:
        stdout.write_json(found)
        return OK
    rows = [
        (printable(image.tenant), size(image.size_bytes), printable(image.name)) for image in found
    ]
    stdout.write(table(("TENANT", "SIZE", "NAME"), rows, left=("TENANT",)))
    return OK


def _as(k: Syscalls, tenant: str | None) -> Syscalls:
    """The machine as the owner of an image sees it: names are a tenant's own."""
    return k if tenant is None else k.as_tenant(tenant)


@contextmanager
def _saying_how(tenant: str | None) -> Iterator[None]:
    """If there is no such image it may be another tenant's."""
    try:
        yield
    except FileNotFoundError as problem:
        whose = "the default tenant" if tenant is None else f"tenant {tenant}"
        message = f"{problem.strerror} of {whose}; tokenix images lists all, --tenant says whose"
        raise Failure(message) from None
