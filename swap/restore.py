"""How a paused process gets its KV back: load what is missing, or compute it again."""

import enum


class Restore(enum.Enum):
    SWAP_IN = "swap-in"
    RECOMPUTE = "recompute"


def choose_restore(
    missing_pages: int,
    recompute_tokens: int,
    in_s_per_page: float,
    queued_s: float,
    prefill_tokens_per_s: float,
) -> Restore:
    """The cheaper way for a process that misses `missing_pages` pages.

    recompute_tokens: tokens whose KV would be computed again if nothing is loaded. Both rates are
    measured; a tie goes to the copy, which leaves the device free to compute.
    """
    if missing_pages == 0:
        return Restore.SWAP_IN
    load_s = queued_s + missing_pages * in_s_per_page
    compute_s = recompute_tokens / max(prefill_tokens_per_s, 1e-9)
    return Restore.SWAP_IN if load_s <= compute_s else Restore.RECOMPUTE
