"""`tokenix keys`: API keys of the gateway."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tokenix.cli import stdout
from tokenix.cli.options import Json
from tokenix.cli.status import OK, Failure, UsageError
from tokenix.cli.table import printable, table
from tokenix.gateway import keyfile
from tokenix.gateway.keys import Role

KeysFile = Annotated[
    str | None,
    Parameter(name="--file", env_var="TOKENIX_HTTP_KEYS", help="Of keys; default: the usual one."),
]
ROOT_TENANT = "default"

keys = App(
    name="keys",
    help="Make, list and revoke API keys of the gateway; one that runs notices.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)


@keys.command
def new(
    *,
    tenant: Annotated[str | None, Parameter(help="Whom the key lets in.")] = None,
    root: Annotated[
        bool, Parameter(help="It may do everything, as the kernel's own tenant, default.")
    ] = False,
    metrics: Annotated[bool, Parameter(help="It may read /metrics, and nothing else.")] = False,
    file: KeysFile = None,
    json: Json = False,
) -> int:
    """Make a key and print it, once: only its hash is kept."""
    if root and metrics:
        raise UsageError("--root and --metrics exclude each other")
    if root and tenant is not None:
        raise UsageError("a root key acts as the tenant default; leave out --tenant, or --root")
    tenant = ROOT_TENANT if root else tenant
    if tenant is None or not tenant.strip():
        raise UsageError("a key belongs to a tenant: --tenant NAME")
    if not tenant.isprintable():
        raise UsageError(f"a tenant's name is one line of what can be printed, not {tenant!r}")
    role: Role = "root" if root else "metrics" if metrics else "tenant"
    secret, kept = keyfile.add_key(_path(file), tenant, role)
    if json:
        stdout.write_json({"key": secret, "id": kept.id, "tenant": tenant, "role": role})
    else:
        stdout.write(secret + "\n")
    return OK


@keys.command(name="list")
def list_keys(*, file: KeysFile = None, json: Json = False) -> int:
    """List the keys: whom each lets in, and since when it is there."""
    path = _path(file)
    found = keyfile.read_keys(path) if path.exists() else ()
    if json:
        stdout.write_json(
            [
                {"id": k.id, "tenant": k.tenant, "role": k.role, "created_s": k.created_s}
                for k in found
            ]
        )
        return OK
    rows = [
        (k.id, k.role, time.strftime("%Y-%m-%d", time.gmtime(k.created_s)), printable(k.tenant))
        for k in found
    ]
    stdout.write(table(("ID", "ROLE", "CREATED", "TENANT"), rows, left=("ID", "ROLE")))
    return OK


@keys.command
def revoke(
    identity: Annotated[str, Parameter(name="ID", help="As tokenix keys list shows it.")],
    *,
    file: KeysFile = None,
    json: Json = False,
) -> int:
    """Take a key off the file."""
    path = _path(file)
    try:
        gone = keyfile.drop_key(path, identity)
    except (KeyError, FileNotFoundError):
        raise Failure(f"no key {identity!r} in {path}; tokenix keys list shows them") from None
    if json:
        stdout.write_json({"id": gone.id, "tenant": gone.tenant, "role": gone.role})
    return OK


def _path(file: str | None) -> Path:
    return Path(file) if file else keyfile.usual_path()
