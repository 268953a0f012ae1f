"""Options that many commands have, and what options are made of."""

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", help="Print JSON.")]
Socket = Annotated[
    str | None,
    Parameter(
        name="--socket",
        env_var="TOKENIX_SOCKET",
        help="Socket of the daemon; default: the one in the runtime directory.",
    ),
]
Tenant = Annotated[
    str | None, Parameter(name="--tenant", help="Whose; default: those of the default tenant.")
]
