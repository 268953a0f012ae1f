"""What a machine answers to screens that look further than at a look."""

import errno
from collections.abc import Iterable

from tokenix.syscalls.types import (
    Due,
    PageCode,
    PageMap,
    Pid,
    PlaceCode,
    PlaceMap,
    PlanReport,
    PrefixNode,
    Queued,
    TraceEvent,
)
from tokenix.tests.tui.worlds import Machine, Still
from tokenix.tui.snapshot import Snapshot

D, H, F = PageCode.DEVICE, PageCode.HOST, PageCode.FILE
PAGES = bytes(
    [D | PageCode.SHARED] * 4 + [D | H] * 11 + [D] * 2 + [D | PageCode.MOVING] + [H] * 6
    + [F] * 3 + [0]
)  # fmt: skip
"""Of a process: every kind there is."""
FRAMES = bytes(
    [PlaceCode.HELD | PlaceCode.SHARED] * 4 + [PlaceCode.HELD | PlaceCode.CLEAN] * 300
    + [PlaceCode.HELD] * 40 + [PlaceCode.CACHED | PlaceCode.CLEAN] * 80 + [PlaceCode.MOVING] * 20
    + [PlaceCode.FOREIGN] * 6 + [PlaceCode.FREE] * 50
)  # fmt: skip
SLOTS = bytes([PlaceCode.HELD] * 60 + [PlaceCode.CACHED] * 40 + [PlaceCode.FREE] * 400)
NODES = (
    PrefixNode("0a31f2c4", "", "acme", 0, 12, 57, 12, 0, 0, 3, 0.0),
    PrefixNode("7be01c22", "0a31f2c4", "acme", 12, 9, 12, 4, 3, 2, 0, 4.5),
    PrefixNode("55aa55aa", "", "globex", 0, 3, 4, 0, 3, 0, 0, 61.0),
    PrefixNode("99cc99cc", "0a31f2c4", "acme", 12, 2, 2, 2, 0, 0, 1, 0.0),
)


def text(pieces: Iterable[tuple[str, str]]) -> str:
    """The words of a line."""
    return "".join(word for word, _ in pieces)


def event(seq: int, time_s: float, pid: int | None, kind: str, **detail: str | float) -> TraceEvent:
    return TraceEvent(seq, time_s, None if pid is None else Pid(pid), kind, tuple(detail.items()))


def life(pid: int, born_s: float = 96.0) -> list[TraceEvent]:
    """It waited, ran, was paused for a second, and runs."""
    moves = (
        (0.25, "new", "ready"), (1.0, "ready", "swapping-out"), (1.1, "swapping-out", "swapped"),
        (2.4, "swapped", "swapping-in"), (2.5, "swapping-in", "ready"),
    )  # fmt: skip
    events = [event(1, born_s, pid, "spawn", tenant="acme", prompt=100, max_tokens=200)]
    for at, (after_s, old, new) in enumerate(moves):
        events.append(event(2 * at + 3, born_s + after_s, pid, "state", old=old, new=new))
    events.append(
        event(
            8, born_s + 1.05, pid, "pause", reason="newcomer 9", mode="swap", tier="host", pages=8,
            kept=8, dirty=1, clean=7, tokens=120, computed=119, lead_s=7.25,
        )
    )  # fmt: skip
    return sorted(events, key=lambda each: (each.time_s, each.seq))


PLAN = PlanReport(
    time_s=100.0, policy="progress", steps=812, started_s=99.99,
    decodes=tuple(map(Pid, (1, 3, 8, 11))), chunks=((Pid(19), 256),), running=5,
    waiting=(
        Queued(Pid(2), "interactive", 312, 0.4, 1.0), Queued(Pid(10), "stream", 1200, 1.5, 1.0),
    ),
    due=(
        Due(Pid(9), -0.5, 12, 9, 0), Due(Pid(17), 0.8, 39, 12, 0), Due(Pid(25), 6.0, 20, 0, 5),
        Due(Pid(34), None, 8, 8, 0),
    ),
    decisions=(
        event(5, 98.0, 1, "admit", pages=8, computed=32, tokens=120, way=""),
        event(7, 98.5, 9, "pause", reason="newcomer 1", pages=12, dirty=0, lead_s=7.25),
        event(8, 98.6, 17, "pause", reason="growth of 3", pages=39, dirty=2, lead_s=5.0),
        event(9, 99.0, 4, "resume", pages=20, computed=300, tokens=310, way="swap-in"),
        event(10, 99.1, 4, "pause-end", way="swap-in", paused_s=2.5, lead_s=0.4),
        event(11, 99.5, 25, "fetch", pages=5),
        event(12, 99.7, 6, "exit", reason="refused", error="overloaded: retry after 0.3 s"),
    ),
)  # fmt: skip


class Seen(Machine):
    """Answers as told above. Process 13 is somebody else's, and process 99 is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.events = life(1) + life(4)
        self.asked: list[str] = []

    def maps(self, pid: Pid) -> PageMap:
        self.asked.append("maps")
        self._check(pid)
        if pid == 99:
            raise ProcessLookupError(errno.ESRCH, "no process 99")
        return PageMap(pid, 16, 400, len(PAGES), 0, PAGES)

    def framemap(self, tier: str = "frames") -> PlaceMap:
        self.asked.append(tier)
        codes = {"frames": FRAMES, "host": SLOTS, "disk": b""}[tier]
        return PlaceMap(tier, len(codes), 0, codes)

    def prefixes(self, limit: int = 64) -> tuple[PrefixNode, ...]:
        self.asked.append("prefixes")
        return NODES[:limit]

    def plan(self) -> PlanReport:
        self.asked.append("plan")
        return PLAN

    def tail(self, pid: Pid, limit: int = 64) -> tuple[int, ...]:
        self.asked.append("tail")
        self._check(pid)
        return tuple(range(20))

    def detokenize(self, tokens: tuple[int, ...], special: bool = False) -> str:
        return "The secret words.\nThey go on. " + " ".join(map(str, tokens))

    def trace(
        self, pid: Pid | None = None, since: int = 0, limit: int = 1000
    ) -> tuple[TraceEvent, ...]:
        self.asked.append("trace")
        mine = [each for each in self.events if pid in (None, each.pid) and each.seq > since]
        return tuple(mine[:limit])

    def sysctl(self, name: str = "", value: float | str | bool | None = None) -> object:
        if value == "nonsense":
            raise OSError(errno.EINVAL, f"{name} cannot be 'nonsense': it is a number")
        if name.startswith("kernel."):
            raise PermissionError(errno.EPERM, f"{name} can only be read")
        self.done.append(("sysctl", name, value))
        return 0


def seen(*looks: Snapshot | OSError) -> Still:
    """A source of such a machine."""
    source = Still(*looks)
    source.machine = Seen()
    return source
