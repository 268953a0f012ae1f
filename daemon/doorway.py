"""The socket that the gateway listens on. The daemon opens it and keeps it over restarts of the
gateway: what connects meanwhile waits, and is not refused."""

import errno
import http.client
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tokenix.daemon.options import HttpOptions

BACKLOG = 2048
PROBE_S = 1.0


class Doorway:
    """A listening socket, at a host and port or at a path; a path is removed at the end."""

    def __init__(self, options: HttpOptions) -> None:
        """OSError: nobody can listen there."""
        self._path = Path(options.uds).expanduser().absolute() if options.uds else None
        try:
            self.socket = _on_path(self._path) if self._path else _on_port(options)
        except OSError as problem:
            where = self._path or f"{options.host}:{options.port}"
            what = f"cannot listen for HTTP on {where}: {problem.strerror or problem}"
            raise OSError(problem.errno or errno.EINVAL, what) from None
        self.socket.listen(BACKLOG)

    @property
    def port(self) -> int:
        """0 if it is at a path."""
        return 0 if self._path else int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where clients find it."""
        if self._path:
            return f"unix:{self._path}"
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def is_ready(self) -> bool:
        """Whether the gateway answers and says that it is ready. Waits for an answer up to 1 s."""
        connection = _Probe(self.socket.getsockname(), self.socket.family)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()
        if self._path:
            self._path.unlink(missing_ok=True)


class _Probe(http.client.HTTPConnection):
    """A connection to a socket's own address, whatever family it has."""

    def __init__(self, address: object, family: int) -> None:
        super().__init__("localhost", timeout=PROBE_S)
        self._address = address
        self._family = family

    def connect(self) -> None:
        self.sock = socket.socket(self._family)
        self.sock.settimeout(PROBE_S)
        self.sock.connect(self._address)  # type: ignore[arg-type]


def _on_port(options: HttpOptions) -> socket.socket:
    found = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _bound(opened, address)


def _on_path(path: Path) -> socket.socket:
    """For this user only. A socket that a dead daemon has left is replaced, a live one's is not
    (and no file that is no socket: `places.py`)."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    opened = socket.socket(socket.AF_UNIX)
    os.fchmod(opened.fileno(), 0o600)  # and so it is never open to others, not for a moment
    bound = _bound(opened, os.fspath(path))
    path.chmod(0o600)
    return bound


def _bound(opened: socket.socket, address: Any) -> socket.socket:
    try:
        opened.bind(address)
    except BaseException:
        opened.close()
        raise
    return opened
