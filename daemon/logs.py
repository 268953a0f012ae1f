"""The daemon's log: one event a line on standard error, as text for people or as JSON."""

import logging
import os
import sys
from typing import Any

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


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
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not text),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    log: FilteringBoundLogger = structlog.get_logger()
    return log


def bridge_logging(log: FilteringBoundLogger, level: str) -> None:
    """What libraries and the border say through `logging` is said in our log."""
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(log)]
    root.setLevel(max(LEVELS[level], logging.INFO))


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
