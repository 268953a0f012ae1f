"""Memory: every frame of the device, the tiers, the tree of prefixes, what the daemons do."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from tokenix.syscalls.types import PlaceMap, PrefixNode
from tokenix.tui.model import daemons, maps, phrases, tree, usage
from tokenix.tui.model.daemons import Growth
from tokenix.tui.model.gauges import gauges
from tokenix.tui.model.phrases import Pieces
from tokenix.tui.screens.page import Page, titled
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.widgets.words import Words

TIERS = ("frames", "host", "disk")
TITLES = {"frames": "Frames of the device", "host": "Host slots", "disk": "Swap file"}
WORDS = {"dirty": "in use, dirty", "clean": "in use, clean"}
EVERY_S, PAGES_PER_S = 1.0, 16_384
"""Between two maps there is so much time, or as much as this pace takes for a tier: the kernel has
done with 4,096 pages in about a millisecond."""
PREFIXES = 128


class MemoryScreen(Page):
    DEFAULT_CSS = """
    MemoryScreen #upper { height: 1fr; }
    MemoryScreen #lower { height: 1fr; }
    MemoryScreen #tiers { height: 9; }
    MemoryScreen #side { width: 0.8fr; }
    MemoryScreen #tree { width: 1.2fr; }
    MemoryScreen #below { width: 0.7fr; }
    MemoryScreen.small #below { display: none; width: 1fr; }
    MemoryScreen.small.below #below { display: block; }
    MemoryScreen.small.below #frames { display: none; }
    MemoryScreen.small #upper, MemoryScreen.small #lower { layout: vertical; height: 1fr; }
    MemoryScreen.small #side { display: none; }
    MemoryScreen.small #tree { width: 1fr; }
    MemoryScreen.small.daemons #side { display: block; width: 1fr; height: 1fr; }
    MemoryScreen.small.daemons #tree { display: none; }
    MemoryScreen.small.daemons #tiers { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "tier", "Tier", id="memory.tier"),
        Binding("d", "daemons", "Daemons", id="memory.daemons"),
        Binding("space", "app.freeze", "Freeze", id="memory.freeze"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._tier = 0
        self._growth = Growth()
        self._asked_s: dict[str, float] = {}
        """When what was asked for, by the machine's clock."""

    def body(self) -> ComposeResult:
        with Horizontal(id="upper"):
            yield titled(Words(id="frames"), TITLES["frames"])
            yield titled(Words(id="below"), TITLES["host"])
        with Horizontal(id="lower"):
            yield titled(Words(id="tree"), "Prefixes: what prompts have in common")
            with Vertical(id="side"):
                yield titled(Words(id="tiers"), "Tiers")
                yield titled(Words(id="daemons"), "Daemons")

    def show(self, look: Snapshot) -> None:
        self._growth.take(look.figures)
        found = gauges(look, self.top.history)

        def tiers(width: int, height: int) -> list[Pieces]:
            bars = [phrases.tier_line(tier, width, found.page_bytes) for tier in found.tiers]
            return [*bars, phrases.legend(found.tiers, width), (), phrases.traffic(found)]

        self._words("tiers").show(tiers)
        self._words("daemons").show(
            lambda width, height: daemons.lines(look.figures, self._growth, width)
        )

    def question(self) -> None:
        look, tier = self.top.snapshot, TIERS[self._tier]
        if look is None:
            return
        small = self.has_class("small")
        if not small or tier == "frames":
            self._ask_map(look, "frames")
        if not small or tier != "frames":
            self._ask_map(look, "disk" if tier == "disk" else "host")
        if self._is_time(look.time_s, "tree", EVERY_S):
            self.inquire("tree", lambda view: view.prefixes(PREFIXES), self._take_tree)

    def _ask_map(self, look: Snapshot, tier: str) -> None:
        every_s = max(EVERY_S, look.figures.get(f"{tier}.total", 0.0) / PAGES_PER_S)
        if self._is_time(look.time_s, tier, every_s):
            self.inquire(tier, lambda view: view.framemap(tier), self._take_map)

    def _is_time(self, now_s: float, what: str, every_s: float) -> bool:
        """Whether it is so long ago that this was asked for."""
        asked_s = self._asked_s.get(what)
        if asked_s is not None and 0 <= now_s - asked_s < every_s:
            return False
        self._asked_s[what] = now_s
        return True

    def _take_map(self, found: PlaceMap | OSError) -> None:
        if isinstance(found, OSError):
            why = found.strerror or str(found)
            for name in ("frames", "below"):
                self._words(name).show(lambda width, height: usage.wrapped(why, width, height))
            return
        words = self._words("frames" if found.tier == "frames" else "below")
        words.border_title = TITLES[found.tier]
        words.border_subtitle = f"{found.total} pages"
        if not found.total:
            words.show(lambda width, height: [[("there is none", "faint")]])
            return
        table = maps.FRAME if found.tier == "frames" else maps.SLOT
        words.show(lambda width, height: maps.grid(found.codes, table, width, height, WORDS))

    def _take_tree(self, found: tuple[PrefixNode, ...] | OSError) -> None:
        words = self._words("tree")
        if isinstance(found, OSError):
            why = found.strerror or str(found)
            words.show(lambda width, height: usage.wrapped(why, width, height))
            return
        words.show(lambda width, height: tree.lines(found, width, height))

    def _words(self, name: str) -> Words:
        return self.query_one(f"#{name}", Words)

    # ---- keys ----

    def action_tier(self) -> None:
        """The map of the next tier; where there is room for two, that of the frames stays."""
        self._tier = (self._tier + 1) % len(TIERS)
        self.set_class(TIERS[self._tier] != "frames", "below")
        self._asked_s.clear()
        self.question()

    def action_daemons(self) -> None:
        """Where room is short, in place of the tree."""
        self.toggle_class("daemons")
