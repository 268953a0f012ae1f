"""Every limit of the kernel, by name. How limits relate is asserted here."""

from dataclasses import dataclass

from tokenix.mm.prefix import POLICIES


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
        assert 0 < self.max_zombies <= self.max_processes, "max_zombies: at most max_processes"
        for name in (
            "default_max_tokens", "pipe_tokens", "max_faults", "max_forks", "listed_processes",
            "listed_pages",
        ):  # fmt: skip
            assert getattr(self, name) >= 1, f"{name}: at least 1"
        for name in ("stdin_tokens", "max_waiting_calls", "max_metered_tenants", "max_image_bytes"):
            assert getattr(self, name) >= 0, f"{name}: at least 0"
        for name in ("trace_events", "attention_every"):
            assert getattr(self, name) >= 1, f"{name}: at least 1"
        for name in ("image_io_s", "image_bytes_per_s"):
            assert getattr(self, name) > 0, f"{name}: above 0"
        assert 0 <= self.max_shm_share < 1, "max_shm_share: below 1, processes need frames too"
        for tier in ("reclaim", "sink"):
            low, high = getattr(self, f"{tier}_low_share"), getattr(self, f"{tier}_high_share")
            assert 0 <= low <= high <= 0.5, (
                f"{tier}_low_share: at most {tier}_high_share, and that at most 0.5"
            )
        assert self.image_idle_s is None or self.image_idle_s > 0, "image_idle_s: above 0"
        assert self.prefix_policy in POLICIES, f"prefix_policy: {', '.join(POLICIES)}"
