"""Whom a peer of the socket is taken for, by its user id: that the operating system vouches for."""

import errno
import grp
import pwd
from collections.abc import Mapping

from tokenix.syscalls.types import Principal
from tokenix.syscalls.wire.server import Recognise, principal_of


def recogniser(tenants: Mapping[str, str]) -> Recognise:
    """`tenants`: user name or number -> tenant. Root and our own user are root whatever it says;
    whom it does not name is the tenant `uid-N`. OSError EINVAL, ENOENT: what is wrong with it."""
    known = {uid_of(user): _checked(user, tenant) for user, tenant in tenants.items()}

    def recognise(uid: int) -> Principal:
        who = principal_of(uid)
        return who if who.root or uid not in known else Principal(known[uid])

    return recognise


def uid_of(user: str) -> int:
    """OSError ENOENT: there is no such user."""
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise OSError(errno.ENOENT, f"tenants: this machine has no user {user!r}") from None


def check_group(group: str) -> None:
    """OSError ENOENT: there is no such group."""
    try:
        grp.getgrnam(group)
    except KeyError:
        raise OSError(errno.ENOENT, f"socket_group: this machine has no group {group!r}") from None


def _checked(user: str, tenant: str) -> str:
    if not tenant.strip():
        raise OSError(errno.EINVAL, f"tenants: {user} needs a tenant's name")
    return tenant
