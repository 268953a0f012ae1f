"""What works on its own: reclaim, write-behind, the sink; each with its marks and what it does."""

from collections.abc import Mapping, Sequence
from typing import Final

from tokenix.tui.model.columns import count
from tokenix.tui.model.phrases import GAP, Piece, Pieces, meter

BAR: Final = 16
LANES: Final = (("out", "▼ host"), ("in", "▲ device"), ("store", "▼ file"), ("fetch", "▲ host"))
"""Of copies between the tiers."""
WAYS: Final = {"out": "device", "in": "host", "store": "host", "fetch": "file"}
"""Where each lane's pages come from."""


class Growth:
    """How much counters have grown per second, between the looks that were taken."""

    KEPT = 6
    """Looks."""

    def __init__(self) -> None:
        self._looks: list[Mapping[str, float]] = []

    def take(self, figures: Mapping[str, float]) -> None:
        if self._looks and _time_s(figures) < _time_s(self._looks[-1]):
            self._looks.clear()
        self._looks = [*self._looks, figures][-self.KEPT :]

    def per_s(self, name: str) -> float:
        first, last = self._looks[0], self._looks[-1]
        passed_s = _time_s(last) - _time_s(first)
        grown = last.get(name, 0.0) - first.get(name, 0.0)
        return max(0.0, grown / passed_s) if passed_s > 0 else 0.0


def _time_s(figures: Mapping[str, float]) -> float:
    return figures.get("time_s", 0.0)


def lines(figures: Mapping[str, float], growth: Growth, width: int) -> list[Pieces]:
    """Two lines for each daemon and one for each lane, as wide as there is room."""

    def of(name: str) -> float:
        return figures.get(name, 0.0)

    def done(name: str) -> str:
        return f"{growth.per_s(name):.1f}/s"

    found: list[Pieces] = [
        [
            ("reclaim      ", "text!"), ("frees frames that are cached  ", "muted"),
            (done("reclaim.pages"), "text"),
        ],
        marked(of("frames.free"), of("reclaim.low"), of("reclaim.high"), of("frames.total")),
        [
            ("write-behind ", "text!"), ("copies full pages in idle time  ", "muted"),
            (done("swap.pages_out"), "text"), GAP, (f"{count(of('writebehind.queue'))}", "text"),
            (" wait", "muted"),
        ],
    ]  # fmt: skip
    if of("writebehind.stranded"):
        stranded = count(of("writebehind.stranded"))
        found.append([(f"{'':13}{stranded} frames keep what nobody runs with", "warning")])
    if of("disk.total"):
        found += [
            [
                ("sink         ", "text!"), ("empties host slots into the file  ", "muted"),
                (done("sink.pages"), "text"),
            ],
            marked(of("sink.free"), of("sink.low"), of("sink.high"), of("host.total")),
        ]  # fmt: skip
    else:
        found.append([("sink         ", "faint"), ("there is no swap file (swapon)", "faint")])
    return [*found, *_lanes(figures, growth, bool(of("disk.total")), width)]


def marked(free: float, low: float, high: float, total: float) -> list[Piece]:
    """How far free places are from their marks: `free ━━╸─────  12 of 176, marks 2 4`. The bar ends
    at twice the upper mark."""
    top = max(2 * high, 1.0)
    role = "warning" if free < low else "success"
    return [
        (f"{'':13}free ", "muted"), *meter(free / top, BAR, role), (f" {count(free)}", "text!"),
        (f" of {count(total)}, marks {low:.0f} {high:.0f}", "muted"),
    ]  # fmt: skip


def _lanes(
    figures: Mapping[str, float], growth: Growth, file: bool, width: int
) -> Sequence[Pieces]:
    shown = LANES if file else LANES[:2]
    found: list[Pieces] = []
    for name, word in shown:
        flying = figures.get(f"swap.flight_{name}", 0.0)
        per_page_s = figures.get(f"swap.{name}_s_per_page", 0.0)
        pieces: list[Piece] = [
            (f"{WAYS[name]:>6} ", "muted"), (f"{word:<9}", "accent" if flying else "muted"),
            (f"{growth.per_s(f'swap.pages_{name}'):>8.1f}", "text"), (" pages/s", "muted"),
            (f"{count(flying):>5}", "text!" if flying else "faint"), (" on the way", "muted"),
        ]  # fmt: skip
        if width >= 60:
            pieces.append((f"{1e3 * per_page_s:>9.2f} ms a page", "faint"))
        found.append(pieces)
    return found
