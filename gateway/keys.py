"""API keys: whom a secret lets in, and as what. Only their hashes are kept."""

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

Role = Literal["tenant", "metrics", "root"]
"""tenant: its own requests; metrics: only /metrics; root: everything, and negative nice values."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, as the configuration holds it."""

    sha256: str
    """`hash_key` of the secret, in hexadecimal."""
    tenant: str
    role: Role = "tenant"

    def check(self) -> None:
        """ValueError for what can never match."""
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError("the sha256 of an API key is 64 hexadecimal digits")
        if not self.tenant:
            raise ValueError("an API key belongs to a tenant; name it")


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request."""

    tenant: str
    role: Role


def hash_key(secret: str) -> str:
    """What is kept of a key. A key is long and random, so one hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


class KeyRing:
    """All keys that let somebody in."""

    def __init__(self, keys: Sequence[ApiKey], tenant: str) -> None:
        """`tenant`: who everybody is where there are no keys, and never were."""
        self._keys: tuple[tuple[bytes, Caller], ...] = ()
        self._anybody: Caller | None = Caller(tenant, "tenant")
        self.replace(keys)

    def replace(self, keys: Sequence[ApiKey]) -> bool:
        """From now on these; whether that changes anything. Without any left, nobody comes in."""
        found = tuple((key.sha256.encode(), Caller(key.tenant, key.role)) for key in keys)
        changed, self._keys = found != self._keys, found
        if keys:
            self._anybody = None
        return changed

    def find(self, authorization: bytes) -> Caller | None:
        """Whose the secret in an Authorization header is; None: nobody's. Takes as long whichever
        key it is, and whether or not it is one."""
        if self._anybody is not None:
            return self._anybody
        scheme, _, secret = authorization.partition(b" ")
        given = hashlib.sha256(secret.strip()).hexdigest().encode()
        found = None
        for kept, caller in self._keys:
            if hmac.compare_digest(kept, given):
                found = caller
        return found if scheme.lower() == b"bearer" else None

    @property
    def closed(self) -> bool:
        """Whether a key is needed at all."""
        return self._anybody is None
