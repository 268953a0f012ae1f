"""`tokenix abi`: the socket's protocol, for who writes a client in another language."""

from typing import Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.status import OK


def abi(
    *, schema: Annotated[bool, Parameter(help="Print the JSON schema of all messages.")] = False
) -> int:
    """Show the version of the socket's protocol, or its schema."""
    from tokenix.syscalls.wire.abi import VERSION
    from tokenix.syscalls.wire.abi import schema as messages

    if schema:
        stdout.write_json(messages())
    else:
        stdout.write(f"{VERSION}\n")
    return OK
