"""What the gateway counts of its own clients: requests, open streams, clients that went away."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PATHS: Final = frozenset(
    {
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/tokenize",
        "/detokenize", "/apply-template", "/metrics", "/health", "/health/live", "/health/ready",
    }
)  # fmt: skip
"""What has a label of its own. Paths are the clients' to invent, labels are not."""


class Traffic:
    """Counters of one gateway process. To be changed by its event loop only."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._disconnects: Counter[str] = Counter()
        self._streams = 0

    def note_request(self, path: str, method: str, status: int) -> None:
        """A request is over. `status` 0: the client went away before it was told one."""
        method = method if method in ("GET", "POST") else "other"
        self._requests[_label(path), method, str(status or 499)] += 1

    def note_disconnect(self, path: str) -> None:
        """A client went away; what was generated for it has been killed."""
        self._disconnects[_label(path)] += 1

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Inside, a stream of events is open."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def collect(self) -> Iterator[Metric]:
        """As metric families."""
        requests = CounterMetricFamily(
            "tokenix_http_requests", "HTTP requests by path and status; 499: the client went away.",
            labels=("path", "method", "status"),
        )  # fmt: skip
        for labels, count in sorted(self._requests.items()):
            requests.add_metric(labels, count)
        disconnects = CounterMetricFamily(
            "tokenix_http_disconnects", "Clients that went away before their answer was complete.",
            labels=("path",),
        )  # fmt: skip
        for path, count in sorted(self._disconnects.items()):
            disconnects.add_metric((path,), count)
        yield requests
        yield disconnects
        yield GaugeMetricFamily(
            "tokenix_http_streams", "Streams of events that are open.", self._streams
        )


def _label(path: str) -> str:
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in PATHS else "other"
