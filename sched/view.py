"""What the planner knows of memory and the link when it plans: a frozen snapshot by the kernel."""

from collections.abc import Mapping

import msgspec


class MemoryView(msgspec.Struct, frozen=True):
    page_tokens: int
    total_frames: int
    free_frames: int
    cached_frames: int
    """Frames that can be taken at once without losing anything: unmapped prefix pages and clean
    pages of paused processes."""
    outgoing_frames: int
    """Frames of paused processes whose copy to the host is under way; cached when it is done."""
    host_slots: int
    host_free_slots: int
    """Slots that a pause may use: empty, or holding a copy of a page that is resident anyway."""
    in_s_per_page: float
    out_s_per_page: float
    in_queue_s: float
    """Seconds of copies queued on the link towards the device."""
    file_blocks: int = 0
    """Pages that the swap file has room for; 0: there is none."""
    fetch_s_per_page: float = 0.0
    """To bring a page of the swap file up to the host tier."""
    fetch_queue_s: float = 0.0
    """Seconds of copies queued from the swap file."""
    frame_ceilings: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Frames that a tenant may at most have, for those of whom that is said."""
    swap: bool = True
    """False where there is no host tier: every pause recomputes."""
    upsets: int | None = None
    """Grows when pages of processes were lost or cut off in any other way than by a pause or a
    resume. None: unknown, so that every plan looks at every process."""
