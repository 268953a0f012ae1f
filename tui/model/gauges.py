"""The meters above the table: a look, and what was before it, as figures to draw."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tokenix.syscalls.types import ProcessStat
from tokenix.tui.model.history import PAUSED, History
from tokenix.tui.snapshot import Snapshot

CLASSES: Final = ("interactive", "stream", "batch", "idle")


@dataclass(frozen=True, slots=True)
class Tier:
    """One place for pages."""

    name: str
    total: int
    parts: tuple[tuple[str, int], ...]
    """Kind (`palette.PAGES`) and pages; what is missing to `total` is free."""

    @property
    def used(self) -> int:
        return sum(pages for kind, pages in self.parts if kind != "cached")


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Times to first token of a class in the last minute."""

    qos: str
    p50_s: float | None
    p95_s: float | None
    target_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Newcomers of a class."""

    qos: str
    count: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Gauges:
    tiers: tuple[Tier, ...]
    page_bytes: float
    out_per_s: float
    in_per_s: float
    first: tuple[FirstToken, ...]
    """Of the classes that somebody waits for: those with first tokens in the last minute."""
    waiting: tuple[Waiting, ...]
    levels: tuple[int, ...]
    """Processes by level of the queue, those that have ended left out."""
    states: Mapping[str, int]
    """Processes that `run`, `wait`, are `paused`, `stopped`, or `ended`."""
    swap_out_per_s: float
    """Pages, of the last seconds."""
    swap_in_per_s: float
    pauses: int
    """Of the last minute."""
    hit_rate: float | None
    stalls: int
    """Tokens of the last minute that came visibly late."""
    waiting_readers: int
    """Who has read all that was written and waits for more; also of whom was stopped."""
    refused: int
    """Since boot."""


def gauges(look: Snapshot, history: History) -> Gauges:
    """The figures of a look that `history` has taken."""
    figures = look.figures
    swap_out_per_s, swap_in_per_s = history.moved_per_s()
    return Gauges(
        tiers=tiers(figures),
        page_bytes=figures.get("frames.page_bytes", 0.0),
        out_per_s=history.now("out_per_s"),
        in_per_s=history.now("in_per_s"),
        first=tuple(
            FirstToken(qos, p50_s, history.first_token_s(0.95, qos), _target(look, qos))
            for qos in CLASSES
            if (p50_s := history.first_token_s(0.5, qos)) is not None
        ),
        waiting=tuple(
            Waiting(
                qos,
                int(figures.get(f"waiting.{qos}", 0)),
                figures.get(f"waiting.{qos}_oldest_s", 0.0),
            )
            for qos in CLASSES
        ),
        levels=levels(look),
        states=states(figures),
        swap_out_per_s=swap_out_per_s,
        swap_in_per_s=swap_in_per_s,
        pauses=history.pauses(),
        hit_rate=history.hit_rate(),
        stalls=history.stalls(),
        waiting_readers=sum(map(_reader_waits, look.processes)),
        refused=int(figures.get("refused", 0)),
    )


def tiers(figures: Mapping[str, float]) -> tuple[Tier, ...]:
    """Device frames, host slots, swap file; those that there are."""

    def of(name: str) -> int:
        return int(figures.get(name, 0))

    found = [
        Tier(
            "device",
            of("frames.total"),
            (
                ("held", of("frames.held")),
                ("transfer", of("frames.in_transfer")),
                ("cached", of("frames.cached")),
            ),
        )
    ]
    spare = of("host.spare")
    moving = of("host.writing") + of("host.doomed")
    found.append(
        Tier(
            "host",
            of("host.total"),
            (
                ("held", max(0, of("host.valid") - spare)),
                ("transfer", moving),
                ("cached", spare),
            ),
        )
    )
    moving = of("disk.writing") + of("disk.doomed")
    found.append(Tier("file", of("disk.total"), (("held", of("disk.valid")), ("transfer", moving))))
    return tuple(tier for tier in found if tier.total)


def levels(look: Snapshot) -> tuple[int, ...]:
    counts = Counter(p.level for p in look.processes if p.state != "zombie")
    bands = int(look.controls.get("sched.level_bands", 0))
    deepest = max([*counts, bands + 3])
    return tuple(counts[level] for level in range(deepest + 1))


def states(figures: Mapping[str, float]) -> dict[str, int]:
    """Processes by what they do, in five words."""

    def of(*names: str) -> int:
        return int(sum(figures.get(f"processes.{name}", 0) for name in names))

    return {
        "run": of("running", "ready"),
        "wait": of("new"),
        "paused": of(*PAUSED),
        "stopped": of("stopped"),
        "ended": of("zombie"),
    }


def _reader_waits(process: ProcessStat) -> bool:
    begun = process.output_tokens > 0 and process.state != "zombie"
    return begun and process.lead_s is not None and process.lead_s < 0


def _target(look: Snapshot, qos: str) -> float:
    return float(look.controls.get(f"sched.target_{qos}_s", 0.0))
