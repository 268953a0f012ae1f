"""What the gateway is told when it is started: where to listen, whom to let in, how much of
anything. The daemon fills it in from its own options."""

import ipaddress
from importlib.util import find_spec

import msgspec

from tokenix.gateway.keys import ApiKey

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""As `logging` counts them."""
FORMATS = ("auto", "text", "json")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of what one client may cost. What is above is refused with a 4xx."""

    body_bytes: int = 8 << 20
    header_bytes: int = 32 << 10
    header_s: float = 15.0
    """From the opening of a connection, or the first byte of a further request, to the end of its
    headers."""
    body_s: float = 60.0
    """From the end of the headers to the end of the body."""
    keep_alive_s: float = 75.0
    """How long an idle connection is kept."""
    stalled_s: float = 600.0
    """A client that takes nothing for so long is let go."""
    requests: int = 4096
    """Requests under way; 429 above."""
    choices: int = 16
    """Answers to one request: n times its prompts."""
    prompt_chars: int = 4 << 20
    stop_strings: int = 16
    schema_bytes: int = 64 << 10
    """Of a JSON schema, a grammar or all tools together."""
    messages: int = 4096


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that `python -m tokenix.gateway` reads, as JSON, from its standard input."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str = ""
    """Listen on this Unix socket instead of host and port."""
    fd: int = -1
    """A listening socket that was inherited; host, port and uds only tell then where it listens."""
    parent: int = 0
    """The process that has started this one, which ends when that is gone; 0: it lives on."""
    socket: str = ""
    """The kernel's socket; "": where `tokenix.connect` looks for it."""
    keys: tuple[ApiKey, ...] = ()
    """None: everybody on this machine may come in, as tenant `tenant`."""
    keys_file: str = ""
    """Where the keys are from: they are read again when it changes. "": they stay."""
    tenant: str = "default"
    aliases: dict[str, str] = {}
    """Other names of the served model: alias -> its name."""
    metrics_compat: str = ""
    """`vllm`: /metrics also has vLLM's names."""
    otlp_endpoint: str = ""
    """Spans of requests go there (OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces); needs
    the extra `otel`. "": there are none."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "json"
    """text, json, or auto: text on a terminal."""
    ping_s: float = 15.0
    """A stream that has nothing to say says so this often."""
    queue_s: float = 5.0
    """A request without a first token looks this often where it stands in the queue."""
    ready_s: float = 5.0
    """Ready means that the kernel answered within so long."""
    drain_s: float = 60.0
    """What runs when the gateway is told to stop may run on for so long."""
    draining: bool = False
    """It takes nothing from the beginning: its daemon is about to end."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not self.keys and not self.uds and not _is_loopback(self.host):
            raise ValueError(
                f"without API keys the gateway listens on this machine only, not on {self.host}; "
                "add a key, or listen on 127.0.0.1"
            )
        for key in self.keys:
            key.check()
        if self.metrics_compat not in ("", "vllm"):
            raise ValueError(f"metrics_compat is '' or 'vllm', not {self.metrics_compat!r}")
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level is one of {', '.join(LEVELS)}, not {self.log_level!r}")
        if self.log_format not in FORMATS:
            raise ValueError(f"log_format is one of {', '.join(FORMATS)}, not {self.log_format!r}")
        if self.otlp_endpoint:
            _check_endpoint(self.otlp_endpoint)
        times = {"ping_s": self.ping_s, "queue_s": self.queue_s, "ready_s": self.ready_s}
        times |= {"header_s": self.limits.header_s, "body_s": self.limits.body_s}
        for name, value_s in times.items():
            if not value_s > 0:
                raise ValueError(f"{name} must be above 0, not {value_s:g}")
        if not self.drain_s >= 0:
            raise ValueError(f"drain_s must not be negative, but is {self.drain_s:g}")


def _check_endpoint(endpoint: str) -> None:
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"otlp_endpoint is a URL of http or https, not {endpoint!r}")
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:  # of what is above it
        found = None
    if found is None:
        raise ValueError("otlp_endpoint needs opentelemetry; run: pip install 'tokenix[otel]'")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
