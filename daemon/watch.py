"""What the kernel tells of itself, in the daemon's log: every process that did not end well, with
its reason, and faults of the machine. The gateway's processes are named by their request ids."""

from structlog.typing import FilteringBoundLogger

from tokenix.syscalls.types import Syscalls, TraceEvent

BATCH = 1000

Facts = dict[str, str | int | float]

ENDS = {
    "error": "error",
    "refused": "warning",
    "deadline": "warning",
    "pages": "warning",
    "killed": "info",
    "terminated": "info",
}
"""Reason of an end -> level; the other reasons are what was asked for."""

FAULTS = {
    "device-fault": "error",
    "copy-failed": "warning",
    "image-failed": "warning",
    "image-late": "warning",
    "image-refused": "warning",
    "image-strays": "warning",
    "no-image": "warning",
    "reaped-unread": "warning",
    "swap-file": "info",
    "sysctl": "info",
}
"""Kind of an event -> level."""


class Watch:
    """Reads the kernel's trace."""

    def __init__(self, k: Syscalls, log: FilteringBoundLogger) -> None:
        self._k = k
        self._log = log
        self._since = 0

    def look(self) -> None:
        """Log what has happened since the last look. OSError: the kernel has failed."""
        while events := self._k.trace(None, self._since, BATCH):
            for event in events:
                self._tell(event)
            self._since = events[-1].seq

    def _tell(self, event: TraceEvent) -> None:
        facts = dict(event.detail)
        if event.kind == "exit":
            level = ENDS.get(str(facts["reason"]))
            if level is not None:
                what = "process ended" if level == "info" else "process failed"
                self._say(level, what, event, _end(facts))
        elif event.kind in FAULTS:
            self._say(FAULTS[event.kind], event.kind, event, facts)

    def _say(self, level: str, what: str, event: TraceEvent, facts: Facts) -> None:
        pid: Facts = {} if event.pid is None else {"pid": event.pid}
        getattr(self._log, level)(what, **pid, **facts)


def _end(facts: Facts) -> Facts:
    told = {
        "reason": facts["reason"], "tenant": facts["tenant"], "output_tokens": facts["output"]
    }  # fmt: skip
    if facts["error"]:
        told["error"] = facts["error"]
    if " " not in str(facts["name"]):  # or it is the beginning of a prompt, which is for no log
        told["name"] = facts["name"]
    return told
