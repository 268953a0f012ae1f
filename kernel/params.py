"""Every limit of the kernel, by name. What each may be, and how limits relate, is asserted here."""

from dataclasses import dataclass, fields

from tokenix.mm.prefix import POLICIES

MOST = 1 << 62
"""Of what is counted."""
SOON_S, DAY_S, YEAR_S = 1e-3, 86_400.0, 365 * 86_400.0
"""A pause is no shorter, so that nobody spins, and what a timer is made of no longer: waits of the
operating system end at some hundred years."""

RANGES: dict[str, tuple[float, float]] = {
    "max_processes": (1, MOST),
    "max_zombies": (1, MOST),
    "default_max_tokens": (1, MOST),
    "pipe_tokens": (1, MOST),
    "stdin_tokens": (0, MOST),
    "max_forks": (1, MOST),
    "max_shm_share": (0.0, 0.99),  # processes need frames too
    "trace_events": (1, 1 << 31),
    "max_metered_tenants": (0, MOST),
    "listed_processes": (1, MOST),
    "listed_pages": (1, MOST),
    "max_waiting_calls": (0, MOST),
    "copy_retry_s": (SOON_S, DAY_S),
    "lost_copy_s": (0.0, YEAR_S),
    "max_faults": (1, MOST),
    "reclaim_low_share": (0.0, 0.5),
    "reclaim_high_share": (0.0, 0.5),
    "sink_low_share": (0.0, 0.5),
    "sink_high_share": (0.0, 0.5),
    "sink_held_s": (0.0, YEAR_S),
    "sink_lead_s": (-YEAR_S, YEAR_S),
    "image_idle_s": (SOON_S, YEAR_S),
    "image_retries": (0, 100),
    "image_retry_s": (SOON_S, DAY_S),
    "max_image_bytes": (0, MOST),
    "image_io_s": (SOON_S, YEAR_S),
    "image_bytes_per_s": (1e3, 1e15),
    "attention_every": (1, MOST),
}
"""What each number may be, both ends included."""


@dataclass(frozen=True, slots=True)
class Params:
    max_processes: int = 100_000
    """Living processes and zombies together; spawn gives EAGAIN above."""
    max_zombies: int = 10_000
    """The oldest finished process is reaped when there are more."""
    default_max_tokens: int = 512
    """Bound of the output where the caller gives none."""
    pipe_tokens: int = 4096
    """Unread output that blocks a process until its reader has taken some."""
    stdin_tokens: int = 65_536
    """Input waiting in a process's stdin; write gives E2BIG above."""
    max_forks: int = 64
    """Children of one fork call."""
    max_shm_share: float = 0.25
    """Share of the frames that named segments may pin."""
    trace_events: int = 16_384
    """Events kept in the trace ring."""
    max_metered_tenants: int = 64
    """Tenants with meters of their own; those who come later share some."""
    listed_processes: int = 128
    """Processes in one answer of `ps`, which takes about a millisecond then."""
    listed_pages: int = 4096
    """Pages in one answer of `maps`, places in one of `framemap`, pages that one `prefixes` looks
    at: each takes about a millisecond then."""
    max_waiting_calls: int = 100_000
    """Blocked read and wait calls; EAGAIN above."""
    copy_retry_s: float = 0.1
    """Pause of write-behind after a failed copy."""
    lost_copy_s: float = 30.0
    """So long after its deadline, a copy that is still not done has lost its frames for good; and
    swapoff is told that the disk does not answer."""
    max_faults: int = 2
    """Device faults in a row after which rows run one by one, to find the one that causes them."""
    reclaim_low_share: float = 0.01
    """Below this share of free frames, cached ones are reclaimed ahead of need ..."""
    reclaim_high_share: float = 0.02
    """... until this share is free."""
    sink_low_share: float = 0.1
    """Below this share of host slots that are free or spare, pages sink to the swap file ..."""
    sink_high_share: float = 0.2
    """... until this share is."""
    sink_held_s: float = 5.0
    """Pages of a process that was held for so long (it waits for input, it was stopped) sink even
    while there are slots enough, so that those can be had at once."""
    sink_lead_s: float = 10.0
    """Pages of a paused stream sink only if nothing is owed to its reader for so long."""
    image_idle_s: float | None = None
    """A process that has waited for input so long gets an image; None: none does."""
    image_retries: int = 10
    """An idle image that could not be written is tried again so often ..."""
    image_retry_s: float = 5.0
    """... after a pause that begins with so much and doubles each time, up to a day."""
    max_image_bytes: int = 16 << 30
    """Of all images together; suspend gives ENOSPC above."""
    image_io_s: float = 30.0
    """An image command is given up after so long ..."""
    image_bytes_per_s: float = 20e6
    """... and the time that a disk of this speed takes."""
    prefix_cache: bool = True
    prefix_policy: str = "hit-density"
    """Which cached page goes first: one of `mm.prefix.POLICIES`."""
    attention_every: int = 8
    """Of so many forward passes one tells how much attention each page gets, if `prefix_policy`
    wants to know (`attention`); with the others none does."""
    poison: bool = False
    """Fill freed frames with junk (tests)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), field.name
            if field.type is bool:
                assert isinstance(value, bool), f"{name} must be true or false, not {value!r}"
            elif name in RANGES and not (name == "image_idle_s" and value is None):
                _check(name, value, whole=field.type is int)
        assert self.max_zombies <= self.max_processes, "max_zombies: at most max_processes"
        for tier in ("reclaim", "sink"):
            low, high = getattr(self, f"{tier}_low_share"), getattr(self, f"{tier}_high_share")
            assert low <= high, f"{tier}_low_share: at most {tier}_high_share"
        assert self.prefix_policy in POLICIES, f"prefix_policy: {', '.join(POLICIES)}"


def _check(name: str, value: object, whole: bool) -> None:
    """That it is a number in its range; of what is counted, a whole one."""
    kind = "a whole number" if whole else "a number"
    good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    assert good, f"{name} must be {kind}, not {value!r}"
    low, high = RANGES[name]
    inside = low <= value <= high  # type: ignore[operator]  # a number
    assert inside, f"{name} must be {kind} between {low:,} and {high:,}, not {value!r}"
