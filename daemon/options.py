"""Everything that can be said of a daemon. Flags, environment and file (`sources.py`) all have the
same names: `--http.port`, `TOKENIX_HTTP_PORT`, and `port` in the table `[http]`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from tokenix.daemon.sizes import bytes_of
from tokenix.syscalls.choices import KV_KINDS, WEIGHT_KINDS
from tokenix.syscalls.types import Params

DEFAULT_MODEL = "smollm2"

UNITS = "bytes, or with K, M, G, T"


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """A number that is not whole is not rounded to be. ValueError."""
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError:
        raise ValueError(f"{token.value!r} is no whole number{_of(token)}") from None


def _size(kind: Any, tokens: Sequence[Token]) -> int:
    (token,) = tokens
    try:
        return bytes_of(token.value)
    except ValueError as why:
        raise ValueError(f"{why}{_of(token)}") from None


def _of(token: Token) -> str:
    return "" if token.source == "cli" else f" (from {token.source})"


def _check_mode(kind: Any, value: str) -> None:
    try:
        mode = int(value, 8)
    except ValueError:
        mode = 0
    if not 0 <= mode <= 0o777 or mode & 0o600 != 0o600:
        raise ValueError("a mode has three octal digits, and lets its owner read and write")


Whole = Annotated[int, Parameter(converter=_whole, n_tokens=1)]
ABOVE_0 = Number(gt=0)
MaybeWhole = Annotated[int | None, Parameter(converter=_whole, n_tokens=1)]


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The gateway."""

    host: Annotated[str, Parameter(help="Address; beyond loopback only with keys.")] = "127.0.0.1"
    port: Annotated[
        Whole, Parameter(help="0: one that is free.", validator=Number(gte=0, lte=65535))
    ] = 8000
    uds: Annotated[str, Parameter(help="Listen on this Unix socket instead.")] = ""
    keys: Annotated[
        str | None, Parameter(help="File of API keys; default: that of tokenix keys, if it exists.")
    ] = None
    tenant: Annotated[str, Parameter(help="Whose all requests are if there are no keys.")] = (
        "default"
    )
    alias: Annotated[
        dict[str, str], Parameter(help="Further names of the model: --http.alias.gpt-4 smollm2.")
    ] = field(default_factory=dict)
    metrics_compat: Annotated[
        Literal["none", "vllm"], Parameter(help="vllm: metrics also have vLLM's names.")
    ] = "none"
    otlp_endpoint: Annotated[
        str, Parameter(help="URL of an OpenTelemetry collector for spans; needs tokenix[otel].")
    ] = ""
    ping_s: Annotated[
        float, Parameter(help="A stream with nothing to say says so this often.", validator=ABOVE_0)
    ] = 15.0
    queue_s: Annotated[
        float, Parameter(help="And where it stands in the queue, this often.", validator=ABOVE_0)
    ] = 5.0
    ready_s: Annotated[
        float, Parameter(help="Ready is who answers within so long.", validator=ABOVE_0)
    ] = 5.0
    limits: Annotated[
        dict[str, float], Parameter(help="Bounds of a request (gateway/config.py).")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The daemon's log, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Parameter(help="From which level on.")
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"], Parameter(help="auto: text on a terminal, else JSON.")
    ] = "auto"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """A daemon: its machine, its border, its habits."""

    device_pages: Annotated[MaybeWhole, Parameter(help="KV pages on the device.")] = None
    host_pages: Annotated[MaybeWhole, Parameter(help="KV pages in host memory; 0: none.")] = None
    page_tokens: Annotated[Whole, Parameter(help="Tokens of a page.")] = 16
    kv_dtype: Annotated[
        str, Parameter(help=f"Format of keys and values: {', '.join(KV_KINDS)}.")
    ] = "f16"
    weights: Annotated[str, Parameter(help=f"How weights are kept: {', '.join(WEIGHT_KINDS)}.")] = (
        "auto"
    )
    no_weight_cache: Annotated[
        bool, Parameter(help="Keep no packed weights for the next start (driver cpu).")
    ] = False
    driver: Annotated[str, Parameter(help="Device driver: cpu or cuda.")] = "cpu"
    tensor_parallel: Annotated[
        Whole, Parameter(help="GPUs that compute the model together (driver cuda).")
    ] = 1
    threads: Annotated[MaybeWhole, Parameter(help="Of the cpu driver; default: all cores.")] = None
    policy: Annotated[str, Parameter(help="progress, fcfs or retract.")] = "progress"
    swap_dir: Annotated[str | None, Parameter(help="Directory of a swap file.")] = None
    swap_bytes: Annotated[
        int | None, Parameter(help=f"Its size ({UNITS}).", converter=_size, n_tokens=1)
    ] = None
    image_dir: Annotated[str | None, Parameter(help="Directory of process images.")] = None
    swap_resume: Annotated[
        bool, Parameter(help="Bring back the processes that waited for input there.")
    ] = False
    socket: Annotated[str | None, Parameter(help="Path of the socket.")] = None
    socket_mode: Annotated[str, Parameter(help="Its mode, octal.", validator=_check_mode)] = "0600"
    socket_group: Annotated[
        str | None, Parameter(help="Its group; with --socket-mode 0660, others may come in.")
    ] = None
    tenants: Annotated[
        dict[str, str],
        Parameter(help="Whom users of this machine are: --tenants.alice acme."),
    ] = field(default_factory=dict)
    no_http: Annotated[bool, Parameter(help="No gateway.")] = False
    drain_s: Annotated[
        float,
        Parameter(
            help="What runs at the first SIGTERM may go on for so long.", validator=Number(gte=0)
        ),
    ] = 30.0
    http: HttpOptions = field(default_factory=HttpOptions)
    log: LogOptions = field(default_factory=LogOptions)
    sched: Annotated[
        dict[str, float],
        Parameter(help="Scheduler constants, as sysctl names them: --sched.target_stream_s 2."),
    ] = field(default_factory=dict)
    kernel: Annotated[
        Params, Parameter(help="Kernel limits, as sysctl names them.", show=False)
    ] = field(default_factory=Params)
