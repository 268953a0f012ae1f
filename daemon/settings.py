"""What the gateway's process is told (`gateway/config.py`), from the daemon's options."""

import errno
import math
import os
from pathlib import Path

import msgspec

from tokenix.daemon.options import HttpOptions, ServeOptions
from tokenix.gateway.config import GatewayConfig, Limits
from tokenix.gateway.keyfile import as_api_key, read_keys, usual_path
from tokenix.gateway.keys import ApiKey


def gateway_settings(socket: Path, options: ServeOptions) -> GatewayConfig:
    """OSError, EINVAL among others: what is wrong with them, in one line."""
    try:
        return _settings(socket, options)
    except ValueError as why:
        raise OSError(errno.EINVAL, f"http: {why}") from None


def _settings(socket: Path, options: ServeOptions) -> GatewayConfig:
    http = options.http
    return GatewayConfig(
        host=http.host,
        port=http.port,
        uds=http.uds,
        parent=os.getpid(),
        socket=str(socket),
        keys=api_keys(http),
        keys_file=str(keys_path(http)),
        tenant=http.tenant,
        aliases=dict(http.alias),
        metrics_compat="" if http.metrics_compat == "none" else http.metrics_compat,
        otlp_endpoint=http.otlp_endpoint,
        log_level=options.log.level,
        log_format=options.log.format,
        ping_s=http.ping_s,
        queue_s=http.queue_s,
        ready_s=http.ready_s,
        drain_s=options.drain_s,
        limits=_limits(http.limits),
    )


def _limits(given: dict[str, float]) -> Limits:
    """ValueError: there is no such limit, or it cannot have that value."""
    known = [field.name for field in msgspec.structs.fields(Limits)]
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"there is no limit {name!r}; there are {', '.join(known)}")
        if not 0 < value < math.inf:
            raise ValueError(f"limits.{name} must be above 0 and finite, not {value:g}")
    return msgspec.convert({n: int(v) if v == int(v) else v for n, v in given.items()}, Limits)


def keys_path(http: HttpOptions) -> Path:
    """The file of API keys that is named, or the usual one."""
    return usual_path() if http.keys is None else Path(http.keys).expanduser().absolute()


def api_keys(http: HttpOptions) -> tuple[ApiKey, ...]:
    """Those of the file that is named, or of the usual one if that exists. OSError."""
    path = keys_path(http)
    if http.keys is None and not path.exists():
        return ()
    return tuple(map(as_api_key, read_keys(path)))
