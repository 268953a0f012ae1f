"""How long pauses and resumes take, from the kernel's trace.

    pause ---> swapping-out ---> swapped ... resume ---> swapping-in ---> ready ---> next token
    |------ pauses_s -----------|            |------ resumes_s -----------|
                                             |------ returns_s --------------------------------|

Where nothing has to be copied the states between are skipped.
"""

from collections.abc import Iterable

from tokenix.bench.drive import Run
from tokenix.syscalls.types import TraceEvent

_OUT = {"swapped", "zombie"}
_IN = {"ready", "stopped"}


def pauses_s(events: Iterable[TraceEvent]) -> list[float]:
    """Seconds from each decision to pause until nothing holds the process's frames any more."""
    return _spans(events, "pause", _OUT)


def resumes_s(events: Iterable[TraceEvent]) -> list[float]:
    """Seconds from each decision to resume until the process may run again."""
    return _spans(events, "resume", _IN)


def returns_s(run: Run) -> list[float]:
    """Seconds from each decision to resume until the process's next token."""
    times_s = {outcome.pid: outcome.times_s for outcome in run.outcomes}
    spans = []
    for event in run.events:
        if event.kind == "resume":
            begin_s = event.time_s - run.start_s
            after = (t for t in times_s.get(event.pid, ()) if t > begin_s)
            token_s = next(after, None)
            if token_s is not None:
                spans.append(token_s - begin_s)
    return spans


def _spans(events: Iterable[TraceEvent], begins: str, ends: set[str]) -> list[float]:
    """From each event of kind `begins` to the process's next move into one of the states `ends`."""
    since: dict[int | None, float] = {}
    spans = []
    for event in events:
        if event.kind == begins:
            since[event.pid] = event.time_s
        elif event.kind == "state" and dict(event.detail).get("new") in ends:
            begin_s = since.pop(event.pid, None)
            if begin_s is not None:
                spans.append(event.time_s - begin_s)
    return spans
