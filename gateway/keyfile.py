"""The file of API keys: one JSON object a line, with the hash of the key, never the key itself."""

import errno
import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tokenix.gateway.keys import ApiKey, KeyRing, Role, hash_key

PREFIX = "tkx-"
"""Begins a key, so that scanners for leaked secrets can know one."""
SECRET_BYTES = 32
ID_DIGITS = 12


class KeptKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file."""

    sha256: str
    tenant: str
    role: Role = "tenant"
    created_s: int = 0
    """Seconds since 1970."""

    @property
    def id(self) -> str:
        """Names it to people; tells nothing of the key."""
        return self.sha256[:ID_DIGITS]


log = structlog.get_logger("tokenix.gateway")

_decoder = msgspec.json.Decoder(KeptKey)


def usual_path() -> Path:
    """Where the file is if none is named."""
    import platformdirs

    return platformdirs.user_config_path("tokenix") / "keys.jsonl"


def read_keys(path: Path) -> tuple[KeptKey, ...]:
    """The keys of a file. OSError, EINVAL for what is no such file."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            key = _decoder.decode(line)
            as_api_key(key).check()
        except (msgspec.DecodeError, ValueError) as why:
            raise OSError(errno.EINVAL, f"{path}, line {number}: {why}") from None
        found.append(key)
    return tuple(found)


def as_api_key(key: KeptKey) -> ApiKey:
    return ApiKey(sha256=key.sha256, tenant=key.tenant, role=key.role)


class Watched:
    """The file behind a key ring. What it cannot tell, it leaves as it was."""

    def __init__(self, path: Path, ring: KeyRing) -> None:
        self._path = path
        self._ring = ring
        self._seen: tuple[int, int, int] | None = (0, 0, 0)

    def look(self) -> None:
        """Read the file again if it has changed since the last look. A file that is gone, or empty,
        lets nobody in where there were keys."""
        seen = self._stamp()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            keys = () if seen is None else read_keys(self._path)
        except OSError as why:
            log.error("API keys cannot be read; those from before stay", error=why.strerror)
            return
        if self._ring.replace([as_api_key(key) for key in keys]):
            log.info("API keys read", keys=len(keys))

    def _stamp(self) -> tuple[int, int, int] | None:
        """Differs when the file does; None: there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def add_key(path: Path, tenant: str, role: Role) -> tuple[str, KeptKey]:
    """A new key, and what is kept of it. The file is made, for its owner only. OSError."""
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    kept = KeptKey(sha256=hash_key(secret), tenant=tenant, role=role, created_s=int(time.time()))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_locked(path) as file:
        file.seek(0, os.SEEK_END)
        file.write(msgspec.json.encode(kept) + b"\n")
    return secret, kept


def drop_key(path: Path, identity: str) -> KeptKey:
    """Take a key off the file. KeyError: none has that id. OSError, ENOENT: there is no file."""
    with _open_locked(path, made=False) as file:
        keys = read_keys(path)
        found = [key for key in keys if key.id == identity]
        if not found:
            raise KeyError(identity)
        rest = b"".join(msgspec.json.encode(key) + b"\n" for key in keys if key not in found)
        file.seek(0)
        file.write(rest)
        file.truncate()
    return found[0]


def _open_locked(path: Path, made: bool = True) -> Any:
    """`made`: it is made if it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if made else 0), 0o600)
    os.fchmod(descriptor, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.fdopen(descriptor, "r+b")
