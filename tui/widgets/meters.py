"""The meters above the table: as panels with graphs, or on a few lines where room is short."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from tokenix.cli.table import seconds
from tokenix.tui.model import phrases
from tokenix.tui.model.columns import count
from tokenix.tui.model.gauges import Gauges
from tokenix.tui.model.history import WATCHED, History
from tokenix.tui.widgets.graph import Graph
from tokenix.tui.widgets.words import Lines, Words


class Meters(Widget):
    """Four panels. With the class `brief`, four lines; with `none`, nothing."""

    DEFAULT_CSS = """
    Meters { height: 12; layout: horizontal; }
    Meters .panel { border: round $border; border-title-color: $foreground 70%;
                    border-title-style: bold; height: 1fr; padding: 0 1; width: 1fr; }
    Meters #memory { width: 1.35fr; }
    Meters #brief { display: none; padding: 0 1; }
    Meters.brief { height: 4; }
    Meters.brief .panel { display: none; }
    Meters.brief #brief { display: block; }
    Meters.none { display: none; }
    Meters #first-words { height: auto; max-height: 3; }
    Meters #process-words { height: 3; }
    """

    def compose(self) -> ComposeResult:
        yield Words(id="memory", classes="panel")
        with Vertical(id="tokens", classes="panel"):
            yield Graph("out", ("success",), least=10, id="out")
            yield Graph("prefill", ("secondary",), least=10, id="in")
        with Vertical(id="first", classes="panel"):
            yield Graph("P95", ("success", "warning", "error"), "s", id="ttft")
            yield Words(id="first-words")
        with Vertical(id="processes", classes="panel"):
            yield Graph("paused", ("primary",), least=4, id="paused")
            yield Graph("waiting", ("warning",), least=4, id="waiting")
            yield Words(id="process-words")
        yield Words(id="brief")

    def on_mount(self) -> None:
        for name, title in (
            ("memory", "Memory"), ("tokens", "Tokens a second"), ("first", "First token"),
            ("processes", "Processes"),
        ):  # fmt: skip
            self.query_one(f"#{name}").border_title = title

    def show(self, gauges: Gauges, history: History) -> None:
        """The figures of a new look."""
        series = history.series
        self.query_one("#memory", Words).show(lambda width, height: _memory(gauges, width, height))
        self.query_one("#out", Graph).show(series["out_per_s"], count(gauges.out_per_s))
        self.query_one("#in", Graph).show(series["in_per_s"], count(gauges.in_per_s))
        p95_s = history.first_token_s(0.95, *WATCHED)
        target_s = min((each.target_s for each in gauges.first), default=1.0)
        self.query_one("#ttft", Graph).show(
            series["ttft_p95_s"], "-" if p95_s is None else seconds(p95_s), target_s
        )
        words = self.query_one("#first-words", Words)
        words.styles.height = min(3, len(gauges.first) + 1)
        words.show(lambda width, height: first(gauges, width))
        self.query_one("#paused", Graph).show(series["paused"], str(gauges.states["paused"]))
        self.query_one("#waiting", Graph).show(series["waiting"], str(gauges.states["wait"]))
        self.query_one("#process-words", Words).show(
            lambda width, height: [
                phrases.states(gauges, width), phrases.levels(gauges, width), phrases.queue(gauges)
            ]
        )  # fmt: skip
        self.query_one("#brief", Words).show(lambda width, height: brief(gauges, width))


def _memory(gauges: Gauges, width: int, height: int) -> Lines:
    lines: list[phrases.Pieces] = []
    for tier in gauges.tiers:
        lines.append(phrases.tier_line(tier, width, gauges.page_bytes))
        if height > 2 * len(gauges.tiers) + 4:
            lines.append(())
    return [
        *lines, phrases.legend(gauges.tiers, width), (), phrases.traffic(gauges),
        phrases.found(gauges), phrases.stalls(gauges),
    ]  # fmt: skip


def first(gauges: Gauges, width: int) -> Lines:
    """Times to first token, beside their targets."""
    head = [(f"{'':<7}", "muted"), (f"{'P50':>6}{'P95':>7}", "muted")]
    if width >= phrases.TARGET_CELLS:
        head.append(("  target", "faint"))
    found = [phrases.first_token(each, width) for each in gauges.first]
    return [head, *found] if found else [[("nobody waited for a first token", "faint")]]


def brief(gauges: Gauges, width: int) -> Sequence[phrases.Pieces]:
    """All of it on four lines."""
    tiers = gauges.tiers[:2]
    cells = (width - 2 * (len(tiers) - 1)) // max(1, len(tiers))
    memory: list[phrases.Piece] = []
    for tier in tiers:
        gap = [phrases.GAP] if memory else []
        memory += [*gap, *phrases.tier_line(tier, cells, gauges.page_bytes)]
    rates = phrases.rates(gauges)
    if gauges.first:
        room = width - sum(len(text) for text, _ in rates) - 10
        rates += [
            ("first P95 ", "muted"),
            *phrases.fitting([phrases.first_in_time(each) for each in gauges.first], room),
        ]
    return [
        memory, rates,
        [*phrases.states(gauges, 30), phrases.GAP, *phrases.levels(gauges, width - 32)],
        [*phrases.traffic(gauges), *phrases.found(gauges), *phrases.stalls(gauges)],
    ]  # fmt: skip
