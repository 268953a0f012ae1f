"""From looks to rows, gauges and graphs, without a screen."""

import pytest
from rich.cells import cell_len

from tokenix.cli.table import printable
from tokenix.syscalls.types import Distribution, MeterSeries, MetricsReport
from tokenix.tests.tui import worlds
from tokenix.tests.tui.worlds import crowd, look, metrics, process
from tokenix.tui.model import columns, meters, palette, phrases, plot
from tokenix.tui.model.gauges import gauges
from tokenix.tui.model.history import History, quantile
from tokenix.tui.model.listing import Listing, fitted
from tokenix.tui.snapshot import Note


def listing(*processes, **choices):
    found = Listing(History(), **choices)
    found.take(processes)
    return found


def pids(found):
    return [line.process.pid for line in found.lines]


# ---- histories ----


def test_rates_are_growth_per_second():
    history = History()
    history.take(look(1.0, output_tokens=100, computed_tokens=500))
    history.take(look(3.0, output_tokens=140, computed_tokens=900))
    assert history.now("out_per_s") == 20
    assert history.now("in_per_s") == 180
    assert list(history.series["out_per_s"]) == [0.0, 20.0]


def test_what_comes_in_bursts_is_told_of_a_while():
    history = History()
    for second in range(100, 200):
        moved = {"swap__pages_out": 10.0 * (second // 5), "swap__pages_in": 50.0}
        history.take(look(float(second), preemptions=second // 10, **moved))
        if second > 105:
            assert history.moved_per_s() == (2.0, 0.0), "also between two bursts"
    assert history.pauses() == 6
    young = History()
    young.take(look(2.0, swap__pages_out=8.0, preemptions=1))
    assert (young.moved_per_s(), young.pauses()) == ((4.0, 0.0), 1)


def test_the_same_look_again_keeps_the_figures():
    history = History()
    for seen in (look(1.0), last := look(2.0, output_tokens=40, swap__pages_in=6.0), last, last):
        history.take(seen)
    assert history.now("out_per_s") == 40
    assert history.moved_per_s() == (0.0, 3.0)
    assert len(history.series["out_per_s"]) == 2


def test_another_machine_is_another_history():
    history = History()
    history.take(look(100.0, output_tokens=1000))
    history.take(look(101.0, output_tokens=1100))
    history.take(look(0.5, output_tokens=10))
    assert list(history.series["out_per_s"]) == [0.0]


def test_tokens_per_second_of_a_process_are_those_of_the_last_seconds():
    history = History()
    for second in range(10):
        history.take(look(float(second), [process(1, output_tokens=second**2)]))
    assert history.tokens_per_s(1) == pytest.approx((81 - 49) / 2)
    assert history.tokens_per_s(2) == 0


def test_latencies_are_those_of_the_last_minute():
    history = History()
    history.take(look(100.0, measured=metrics((0, 0, 90, 0), prompt_tokens=100)))
    assert history.first_token_s(0.5) is None  # what was before the first look is not known
    history.take(look(101.0, measured=metrics((10, 0, 90, 0), prompt_tokens=300, cached_tokens=50)))
    assert history.first_token_s(0.5, "interactive") == pytest.approx(0.05)
    assert history.first_token_s(0.5, "stream") is None
    assert history.hit_rate() == pytest.approx(0.25)
    history.take(look(170.0, measured=metrics((10, 0, 90, 0), prompt_tokens=300, cached_tokens=50)))
    assert history.first_token_s(0.5) is None
    assert history.hit_rate() is None


def test_a_young_machine_is_known_from_its_boot():
    history = History()
    history.take(look(5.0, measured=metrics((4, 0, 0, 0))))
    assert history.first_token_s(1.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("counts", "part", "value"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.05),
        ((0, 10, 0, 0), 0.5, 0.3),
        ((5, 5, 0, 0), 1.0, 0.5),
        ((0, 0, 0, 3), 0.5, 1.0),  # above all bounds: at least the last one
        ((8, 0, 2, 0), 0.9, 0.75),
    ],
)
def test_quantiles_are_linear_within_a_bucket(counts, part, value):
    found = quantile(worlds.TTFT_BOUNDS, counts, part)
    assert found == (None if value is None else pytest.approx(value))


# ---- gauges ----


def test_gauges_tell_pages_by_tier_and_state():
    history = History()
    history.take(seen := look(processes=[process(1, level=0), process(2, level=2)]))
    figures = gauges(seen, history)
    device, host = figures.tiers
    assert (device.name, device.total, device.used) == ("device", 1000, 620)
    assert dict(device.parts) == {"held": 600, "transfer": 20, "cached": 80}
    assert dict(host.parts) == {"held": 60, "transfer": 0, "cached": 40}
    assert figures.states == {"run": 4, "wait": 2, "paused": 3, "stopped": 0, "ended": 0}
    assert figures.levels == (1, 0, 1, 0, 0, 0, 0, 0, 0)
    assert [(each.qos, each.count) for each in figures.waiting if each.count] == [("stream", 2)]


def test_targets_stand_beside_the_latencies():
    history = History()
    history.take(look(1.0))
    history.take(seen := look(2.0, measured=metrics((0, 0, 0, 4))))
    (first,) = gauges(seen, history).first
    assert (first.qos, first.p50_s, first.target_s) == ("interactive", 1.0, 1.0)


def busy():
    """Figures as wide as they come."""
    history = History()
    each = Distribution((40, 3, 1, 0), 0.0)
    found = MetricsReport(
        {"ttft_s": worlds.TTFT_BOUNDS},
        tuple(
            MeterSeries("acme", qos, {"stalls": 31}, {}, {"ttft_s": each})
            for qos in ("interactive", "stream")
        ),
    )
    history.take(look(100.0))
    seen = look(
        101.0, crowd(40), found, preemptions=77.0, processes__stopped=11.0, processes__zombie=888.0,
        swap__pages_out=9e3, swap__pages_in=9e3, output_tokens=12_345.0, computed_tokens=99_999.0,
    )  # fmt: skip
    history.take(seen)
    return gauges(seen, history)


def test_nothing_is_cut_amid_a_word():
    """Of the meters, in 80 columns and in panels of any width."""
    figures = busy()
    for width in (78, 100):
        for line in meters.brief(figures, width):
            assert sum(len(text) for text, _ in line) <= width, line
    for width in range(21, 50):
        lines = [*meters.first(figures, width), phrases.states(figures, width)]
        for line in [*lines, phrases.levels(figures, width)]:
            assert sum(len(text) for text, _ in line) <= width, (width, line)


@pytest.mark.parametrize(
    ("processes", "stalls", "words"),
    [
        ((process(1, lead_s=3.0), process(2, lead_s=-1.0, output_tokens=0)), 0, "no reader waited"),
        ((process(1, lead_s=3.0),), 1, "1 token late"),
        ((process(1, lead_s=3.0),), 7, "7 tokens late"),
        ((process(1, lead_s=-40.0, state="stopped", held=("signal",)),), 7, "1 reader waits"),
        ((process(1, lead_s=-1.0, state="zombie"), process(2, lead_s=None)), 0, "no reader waited"),
    ],
)
def test_who_waits_for_text_is_told(processes, stalls, words):
    history = History()
    history.take(look(1.0))
    history.take(seen := look(2.0, processes, metrics(stalls=stalls)))
    assert "".join(text for text, _ in phrases.stalls(gauges(seen, history))) == words


# ---- the table ----


def test_a_table_without_lines_says_why():
    found = Listing(History())
    assert found.emptiness == "no answer yet"
    found.take((), 0)
    assert "tokenix run" in found.emptiness
    found.take((), 3)
    assert found.emptiness == "3 run for other users; only root sees them"
    found.take([process(1)])
    found.search("no\x1bbody")
    assert found.emptiness == "nothing has 'no?body'; Escape shows all"


def test_natural_orders():
    found = listing(process(1, lead_s=2.0), process(2, lead_s=9.0), process(3, lead_s=None))
    assert pids(found) == [2, 1, 3]
    found.turn()
    assert pids(found) == [3, 1, 2]
    found.sort_by("pid")
    assert pids(found) == [1, 2, 3]
    found.sort_by("pid")
    assert pids(found) == [3, 2, 1]


@pytest.mark.parametrize("name", columns.BY_NAME)
def test_every_column_sorts_and_shows(name):
    found = listing(*crowd(40))
    found.sort_by(name)
    assert sorted(pids(found)) == list(range(1, 41))
    column, width = columns.BY_NAME[name], columns.BY_NAME[name].width or 10
    for line in found.lines:
        assert (
            len(fitted(column.text(line.process, found.extras(line)), width, column.left)) == width
        )
    first = pids(found)
    found.turn()
    if len({column.key(line.process, columns.NO_EXTRAS) for line in found.lines}) == 40:
        assert pids(found) == first[::-1]


def test_sorting_by_the_next_column_goes_round():
    found = listing(process(1), process(2), sorted_by="pid")
    found.sort_beside(1, ["pid", "class", "lead"])
    assert found.sorted_by == "class"
    found.sort_beside(-2, ["pid", "class", "lead"])
    assert found.sorted_by == "lead"


def test_forks_are_below_their_parents():
    found = listing(process(1), process(2), process(3, parent=1), process(4, parent=3))
    found.fold(True)
    assert [(line.process.pid, line.branch) for line in found.lines] == [
        (1, ""), (3, r"\_ "), (4, r"   \_ "), (2, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [("globex", [2]), ("paused", [2]), ("acme runs", [1]), ("nobody", []), ("", [1, 2])],
)
def test_find(words, expected):
    found = listing(process(1), process(2, tenant="globex", state="swapped"), sorted_by="pid")
    found.search(words)
    assert pids(found) == expected
    assert (found.chosen is None) == (not expected)


def test_prompts_are_neither_shown_nor_found_unless_asked_for():
    found = listing(process(1, name="my secret"))
    assert "secret" not in " ".join(found.cells(found.lines[0], columns.fitting(200)))
    found.search("secret")
    assert not found.lines
    found.prompts = True
    found.search("secret")
    assert "my secret" in " ".join(found.cells(found.lines[0], columns.fitting(200)))


def test_what_strangers_wrote_moves_no_cursor():
    found = listing(process(1, name="a\x1b[2Jb", tenant="x\ny"), prompts=True)
    text = " ".join(found.cells(found.lines[0], columns.fitting(200)))
    assert "\x1b" not in text and "\n" not in text and "a?[2Jb" in text


def test_the_cursor_stays_at_its_line_or_follows_its_process():
    found = listing(process(1, lead_s=9.0), process(2, lead_s=5.0), process(3, lead_s=1.0))
    found.move(1)
    found.take([process(1, lead_s=0.5), process(2, lead_s=5.0), process(3, lead_s=7.0)])
    assert found.chosen.pid == 2
    found.point(0)
    assert not found.follow, "who stands first is looked at"
    found.point(1)
    assert found.follow, "keys in a row act on one process"
    found.take([process(1, lead_s=0.5), process(2, lead_s=0.1), process(3, lead_s=7.0)])
    assert (found.cursor, found.chosen.pid) == (2, 2)
    found.take([process(3)])
    assert (found.cursor, found.chosen.pid) == (0, 3)
    found.take([])
    assert (found.cursor, found.chosen) == (0, None)


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 160, 300])
def test_columns_fit_and_the_sorted_one_is_there(width):
    for name in columns.BY_NAME:
        shown = columns.fitting(width, name)
        assert sum(cells for _, cells in shown) + len(shown) - 1 <= width
        assert name in [column.name for column, _ in shown]
    names = [column.name for column, _ in columns.fitting(width)]
    assert names == [name for name in columns.BY_NAME if name in names], "the order stays"
    assert width < 160 or len(names) == len(columns.COLUMNS)


@pytest.mark.parametrize(
    ("lead_s", "shown"),
    [(0.5, "0.5s"), (-3.21, "-3.2s"), (311.0, "311s"), (-7384.0, "-2h03"), (1e6, "11d13")],
)
def test_leads_of_any_length_have_room(lead_s, shown):
    assert columns.lead_number(lead_s) == shown
    assert columns.lead(process(1, lead_s=lead_s)).endswith(f"{shown:>6}")


@pytest.mark.parametrize("choice", ["prompts", "as_tree"])
def test_who_asks_for_commands_sees_them_in_80_columns(choice):
    found = listing(process(1))
    assert "command" not in [column.name for column, _ in found.fitting(79)]
    setattr(found, choice, True)
    widths = {column.name: width for column, width in found.fitting(79)}
    assert widths["command"] >= columns.COMMAND_WIDTH
    assert {"pid", "state", "output", "lead"} <= set(widths)
    assert sum(widths.values()) + len(widths) - 1 == 79


@pytest.mark.parametrize(
    "tenant",
    ["acme", "日本語テナント", "日本", "naïve", "e\u0301", "🙂🙂🙂🙂🙂", "x" * 80, "a\nb\x1b[2J"],
)
def test_a_name_of_any_script_leaves_the_columns_in_their_places(tenant):
    found = listing(process(1, tenant=tenant))
    shown = found.fitting(200)
    for text, (_, width) in zip(found.cells(found.lines[0], shown), shown, strict=True):
        assert cell_len(text) == width
        assert text.isprintable()
    for width in (1, 2, 5, 9):
        assert cell_len(fitted(printable(tenant), width, True)) == width


def test_80_columns_show_what_matters():
    names = {column.name for column, _ in columns.fitting(79)}
    assert {"pid", "class", "level", "state", "output", "lead", "ttft", "device"} <= names


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "   "), (1 / 24, "▏  "), (0.5, "█▌ "), (1, "███"), (7, "███"), (-1, "   ")],
)
def test_bars(share, shown):
    assert columns.bar(share, 3) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (9999, "9999"), (12_345, "12.3k"), (123_456, "123k"), (5e6, "5.0M"), (7.2e12, "7T")],
)
def test_counts_take_five_characters(number, shown):
    assert columns.count(number) == shown
    assert len(columns.count(number)) <= 5


def test_every_state_has_a_look_of_its_own():
    marks = [look.mark for look in palette.STATES.values()]
    assert len(set(marks)) == len(marks)
    assert all(len(look.word) <= 8 for look in palette.STATES.values())
    assert palette.state_of("ready", ("signal",)).word == "stopped"
    assert palette.state_of("stopped", ("input",)).word == "input"
    assert palette.state_of("unheard-of").mark == "?"


# ---- graphs and phrases ----


def dots(lines):
    return [[ord(char) - plot.BLANK for char in line] for line in lines]


def test_graphs_are_filled_from_below_and_end_at_the_right():
    (line,) = plot.braille([4.0], 2, 1, 4.0)
    assert dots([line]) == [[0, 0xB8]]
    upper, lower = dots(plot.braille([8.0, 4.0], 1, 2, 8.0))
    assert (upper, lower) == ([0x47], [0xFF])
    assert dots(plot.braille([0.001, 0.0], 1, 1, 8.0)) == [[0x40]], "what there is shows"
    assert dots(plot.braille([99.0, 99.0], 1, 1, 8.0)) == [[0xFF]]


@pytest.mark.parametrize(
    ("samples", "least", "top"),
    [
        ([], 1.0, 1.0),
        ([3.2], 1.0, 4.0),
        ([101.0], 1.0, 150.0),
        ([0.3], 0.1, 0.3),
        ([1.0], 10.0, 10.0),
    ],
)
def test_ceilings_are_round(samples, least, top):
    assert plot.ceiling(samples, least) == pytest.approx(top)


@pytest.mark.parametrize("width", [20, 33, 79, 160])
def test_meters_are_as_wide_as_they_are_told(width):
    history = History()
    history.take(seen := look())
    for tier in gauges(seen, history).tiers:
        line = phrases.tier_line(tier, width, 1024.0)
        assert sum(len(text) for text, _ in line) <= max(width, 22)


def test_a_tier_that_holds_anything_shows_it():
    (device, _) = gauges(seen := look(frames__cached=1.0), filled(seen)).tiers
    assert any(text == "▒" for text, _ in phrases.tier_bar(device, 20))


def filled(seen):
    history = History()
    history.take(seen)
    return history


HINTS = [phrases.Hint(word[0], word[0], word) for word in ("open", "find", "sort")]
LAST = [phrases.Hint("q", "q", "quit")]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (80, " o open  f find  s sort  q quit"),
        (31, " o open  f find  s sort  q quit"),
        (30, " o open f find s sort q quit"),
        (27, " o open  f find  q quit"),
        (21, " o open f find q quit"[:21]),
        (15, " o open  q quit"),
        (6, " q quit"),
    ],
)
def test_hints_are_whole_and_how_to_leave_is_there(width, shown):
    line = ""
    for at, hint in phrases.hints(HINTS, LAST, width):
        line = line.ljust(at) + f"{hint.shown} {hint.words}"
        assert hint.cells == len(hint.shown) + 1 + len(hint.words)
    assert line == shown


def test_notes_are_wrapped_and_the_newest_is_last():
    notes = [Note(1.0, "text", "old " * 20), Note(62.0, "success", "new " * 10)]
    lines = ["".join(text for text, _ in line) for line in phrases.notes(notes, 30, 3)]
    assert lines[0].startswith(" 1:02  new new")
    assert len(lines) == 2, "the old one does not fit"
    assert phrases.notes([], 30, 3) == []
