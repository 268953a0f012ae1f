"""The log of the gateway, and of the daemon: one event a line on standard error, as text for people
or as JSON. A log that cannot be written (nobody reads it, the disk is full) loses lines; it never
changes what its process does."""

import contextlib
import logging
import os
import sys
from typing import Any, TextIO, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from tokenix.gateway.config import LEVELS


def open_log(level: str, form: str) -> FilteringBoundLogger:
    """The log of this process. `form`: text, json, or auto (text on a terminal)."""
    terminal = sys.stderr.isatty()
    text = terminal if form == "auto" else form == "text"
    renderer: Any
    if text:
        renderer = structlog.dev.ConsoleRenderer(
            colors=terminal and not os.environ.get("NO_COLOR"), sort_keys=False
        )
    else:
        renderer = structlog.processors.JSONRenderer(serializer=_as_json)
    errors = [] if text else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not text),
            *errors,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Sink(sys.stderr))),
    )
    log: FilteringBoundLogger = structlog.get_logger()
    return log


def bridge_logging(log: FilteringBoundLogger, level: str) -> None:
    """What is said through `logging` is said in our log; what libraries say there for their own
    authors is not."""
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(log)]
    root.setLevel(max(LEVELS[level], logging.INFO))
    logging.getLogger("tokenix").setLevel(LEVELS[level])


def close_log() -> None:
    """What could not be written is given up, so that leaving does not fail."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stderr.fileno())
            os.close(null)


class _Sink:
    """A file whose failures are nobody's."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._file.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()


class _Bridge(logging.Handler):
    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            problem = record.exc_info[1]
            facts["error"] = f"{type(problem).__name__}: {problem}"
        self._log.log(record.levelno, record.getMessage(), **facts)


def _as_json(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
