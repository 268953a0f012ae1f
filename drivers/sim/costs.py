"""How long commands take on the simulated device, in seconds of virtual time."""

from dataclasses import dataclass
from typing import Protocol


class Costs(Protocol):
    """The seam for other timing models (`roofline.py`: a named device and model)."""

    def forward_s(self, prefill_tokens: int, decode_rows: int, kv_tokens: int, pairs: int) -> float:
        """Seconds of a forward: rows of one token are decodes, the rest is prefill. `kv_tokens`
        counts the cells that attention reads, `pairs` the (query, key) pairs, summed over rows."""
        ...

    def copy_out_s(self, pages: int) -> float: ...

    def copy_in_s(self, pages: int) -> float: ...

    def store_s(self, pages: int) -> float: ...

    def fetch_s(self, pages: int) -> float: ...

    def copy_frame_s(self) -> float: ...


LOAD_PARTS = 8
"""Groups of layers of a load that a forward runs beside."""


def beside_s(begin_s: float, took_s: float, load_begin_s: float, load_end_s: float) -> float:
    """When a forward ends, beside a load by layers, that begins at `begin_s` and takes `took_s`
    alone: each group of layers waits for the one before it, and for its part of the load."""
    end_s = begin_s
    for part in range(1, LOAD_PARTS + 1):
        there_s = load_begin_s + (load_end_s - load_begin_s) * part / LOAD_PARTS
        end_s = max(end_s, there_s) + took_s / LOAD_PARTS
    return end_s


@dataclass(frozen=True, slots=True)
class CostModel:
    """Linear costs."""

    base_s: float = 4e-3
    prefill_token_s: float = 50e-6
    decode_row_s: float = 50e-6
    kv_token_s: float = 20e-9
    copy_base_s: float = 20e-6
    out_page_s: float = 100e-6
    in_page_s: float = 100e-6
    disk_base_s: float = 100e-6
    store_page_s: float = 1e-3
    fetch_page_s: float = 1e-3
    frame_s: float = 5e-6

    def forward_s(
        self, prefill_tokens: int, decode_rows: int, kv_tokens: int, pairs: int = 0
    ) -> float:
        return (
            self.base_s
            + prefill_tokens * self.prefill_token_s
            + decode_rows * self.decode_row_s
            + kv_tokens * self.kv_token_s
        )

    def copy_out_s(self, pages: int) -> float:
        return self.copy_base_s + pages * self.out_page_s

    def copy_in_s(self, pages: int) -> float:
        return self.copy_base_s + pages * self.in_page_s

    def store_s(self, pages: int) -> float:
        return self.disk_base_s + pages * self.store_page_s

    def fetch_s(self, pages: int) -> float:
        return self.disk_base_s + pages * self.fetch_page_s

    def copy_frame_s(self) -> float:
        return self.frame_s
