"""From what a machine answers to what screens show, without a screen."""

import pytest
from msgspec.structs import replace

from tokenix.syscalls.types import PageCode, PlaceCode
from tokenix.tests.tui.sights import FRAMES, NODES, PAGES, PLAN, SLOTS, event, text
from tokenix.tests.tui.worlds import CONTROLS, look, process
from tokenix.tui.model import (
    controls,
    daemons,
    lanes,
    maps,
    outlook,
    phrases,
    tree,
    usage,
)
from tokenix.tui.model.daemons import Growth
from tokenix.tui.model.events import KEPT, Log, line, text_of
from tokenix.tui.model.history import History
from tokenix.tui.model.lanes import Lanes


def texts(lines):
    return [text(pieces) for pieces in lines]


# ---- maps ----


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0, "absent"), (PageCode.DEVICE, "dirty"), (PageCode.DEVICE | PageCode.HOST, "clean"),
        (PageCode.DEVICE | PageCode.FILE, "clean"), (PageCode.DEVICE | PageCode.SHARED, "shared"),
        (PageCode.HOST, "host"), (PageCode.HOST | PageCode.FILE, "host"), (PageCode.FILE, "file"),
        (PageCode.DEVICE | PageCode.MOVING, "moving"), (PageCode.FILE | PageCode.MOVING, "moving"),
    ],
)  # fmt: skip
def test_kinds_of_pages(code, kind):
    assert maps.page_kind(code) == kind
    assert maps.count_kinds(bytes([code]), maps.PAGE) == {kind: 1}


@pytest.mark.parametrize(
    ("code", "frame", "slot"),
    [
        (PlaceCode.FREE, "free", "free"), (PlaceCode.HELD, "dirty", "held"),
        (PlaceCode.HELD | PlaceCode.CLEAN, "clean", "held"), (PlaceCode.CACHED, "cached", "cached"),
        (PlaceCode.HELD | PlaceCode.SHARED, "shared", "held"),
        (PlaceCode.CACHED | PlaceCode.CLEAN, "cached", "cached"),
        (PlaceCode.MOVING, "moving", "moving"), (PlaceCode.FOREIGN, "foreign", "foreign"),
    ],
)  # fmt: skip
def test_kinds_of_places(code, frame, slot):
    assert (maps.frame_kind(code), maps.slot_kind(code)) == (frame, slot)


@pytest.mark.parametrize(
    ("width", "height", "lines", "each"),
    [(100, 5, 1, 1), (30, 3, 3, 1), (28, 1, 1, 1), (14, 1, 1, 2), (7, 2, 2, 2), (1, 1, 1, 28)],
)
def test_a_map_has_a_cell_for_each_page_or_for_some(width, height, lines, each):
    drawn, per_cell = maps.cells(PAGES, maps.PAGE, width, height)
    assert (len(drawn), per_cell) == (lines, each)
    assert all(len(text(pieces)) <= width for pieces in drawn)
    wide = 3 if 3 * len(PAGES) <= width * height else 1
    assert sum(len(text(pieces)) for pieces in drawn) == wide * -(-len(PAGES) // each)


def test_a_cell_of_many_pages_shows_what_most_of_them_are():
    (pieces,), each = maps.cells(b"\x01\x01\x02\x02\x02\x00", maps.PAGE, 2, 1)
    assert each == 3
    assert pieces == [(maps.KINDS["dirty"].mark, "warning"), (maps.KINDS["host"].mark, "accent")]


def test_legends_count_and_every_kind_looks_its_own():
    counts = maps.count_kinds(FRAMES, maps.FRAME)
    (line_,) = maps.legend(counts, 4, 200, {"dirty": "in use"})
    legend = text(line_)
    for words in ("300 clean", "40 in use", "4 shared", "80 cached", "20 moving", "6 others'"):
        assert words in legend
    assert legend.endswith("4 pages a cell")
    narrow = texts(maps.legend(counts, 4, 30))
    assert len(narrow) > 2 and all(len(each.rstrip()) <= 30 for each in narrow)
    assert len(maps.grid(FRAMES, maps.FRAME, 40, 12)) <= 12
    counted = maps.count_kinds(SLOTS, maps.SLOT)
    assert counted == {"cached": 40, "held": 60, "free": 400}
    for table in (maps.PAGE, maps.FRAME, maps.SLOT):  # cells of one map differ without colours too
        kinds = {maps._NAMES[at] for at in table}
        assert len({maps.KINDS[kind].mark for kind in kinds}) == len(kinds)


def test_an_empty_map():
    assert maps.cells(b"", maps.PAGE, 10, 3) == ([], 1)


# ---- one process in words ----


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lead_s": 4.25}, "text for 4.2s"), ({"lead_s": -1.5}, "has waited for 1.5s"),
        ({"lead_s": None}, "nobody reads along"), ({"state": "zombie"}, "has ended"),
        ({"lead_s": 0.75, "output_tokens": 0}, "first token is due in 0.8s"),
    ],
)  # fmt: skip
def test_how_a_reader_fares(fields, words):
    assert words in text(usage.lead_words(process(7, **fields)))


def test_who_it_is():
    words = text(usage.who(process(7, parent=3, held=("pipe",), nice=-2, queue_position=1)))
    for part in ("process 7 of acme", "(pipe)", "level 3, lead under 2 s", "forked from 3",
                 "#2 in the queue", "nice -2"):  # fmt: skip
        assert part in words


def test_what_it_has_used():
    used = process(7, queue_s=0.5, paused_s=2.5, preemptions=3, stalls=1, swapped_out_bytes=2048)
    words = "\n".join(texts(usage.usage(used, 1024.0)))
    for part in ("20 written, 12 not fetched", "3 times, 2.50s", "stalls 1", "queue 0.50s",
                 "8 of 8 on the device", "2.0K out"):  # fmt: skip
        assert part in words


def test_the_end_of_a_text():
    assert texts(usage.wrapped("one\ntwo words\x1b[31m", 10, 3)) == ["one", "two", "words?[31m"]
    assert texts(usage.wrapped("a b c d", 10, 1)) == ["a b c d"]


# ---- lanes ----


def lanes_of(*looks):
    found = Lanes()
    for each in looks:
        found.take(each)
    return found


def test_processes_stand_in_their_lanes_and_moves_are_shown_for_a_while():
    before = [process(1, level=3), process(2, level=2, lead_s=0.5), process(3, level=2, lead_s=0.2)]
    after = [process(1, level=1), process(2, level=3), process(3, level=2), process(4, level=0)]
    found = lanes_of(look(1.0, before), look(2.0, after))
    shown = [[chip.text for chip in lane.chips] for lane in found.lanes]
    assert shown == [["R4 "], ["R1↑"], ["R3 "], ["R2↓"], [], [], [], [], []]
    found.take(look(5.0, after))
    assert [chip.text for chip in found.lanes[1].chips] == ["R1 "]
    found.take(look(0.0, before))  # another machine
    assert [chip.text for chip in found.lanes[2].chips] == ["R3 ", "R2 "]


def test_those_that_have_ended_stand_nowhere():
    found = lanes_of(look(1.0, [process(1, state="zombie", level=2)]))
    assert not any(lane.chips for lane in found.lanes)


def test_titles_of_levels():
    assert lanes.level_titles(CONTROLS | {"sched.level_band_s": 1.0}) == [
        "no token yet", "due", "lead under 1 s", "lead under 2 s", "lead under 4 s",
        "lead under 8 s", "lead over 8 s", "batch", "idle",
    ]  # fmt: skip


def test_room_goes_to_the_lanes_that_need_it():
    crowd = [process(pid, level=2) for pid in range(1, 40)] + [process(50, level=0)]
    found = lanes_of(look(1.0, crowd)).lanes
    lines = texts(lanes.lines(found, 80, 14))
    assert len(lines) == 12, "39 processes of 4 cells take four lines of 56"
    assert all(len(each) <= 80 for each in lines)
    assert sum(line.count("R") for line in lines) == 40
    tight = texts(lanes.lines(found, 80, 9))
    assert len(tight) == 9 and tight[2].endswith("+27")
    assert tight[2].index("│") == tight[0].index("│") == lines[3].index("│")


# ---- the plan ----


def test_the_plan_in_words():
    lines = texts(outlook.plan_lines(PLAN, 60, 20))
    assert lines[0] == "pass 813  4 write a token  1 compute 256 of prompts"
    assert lines[1] == "runs 19:256 1 3 8 11 "
    assert lines[2] == "next to get frames  2"
    assert "2 inter    312 tokens" in lines[3] and lines[3].endswith("0.40s of 1.00s")
    assert lines[5] == "paused, who is due first  4"
    assert "-0.5s" in lines[6] and "9 of 12 pages" in lines[6]
    assert "5 in the file" in lines[8]
    assert len(lines) == 10


@pytest.mark.parametrize("height", [1, 3, 5, 7, 9])
def test_a_plan_gets_as_many_lines_as_there_are(height):
    lines = texts(outlook.plan_lines(PLAN, 60, height))
    assert len(lines) <= height
    if height == 7:
        assert "2, 1 shown" in lines[2] and "4, 2 shown" in lines[4]


def test_no_pass():
    empty = replace(PLAN, started_s=None, decodes=(), chunks=(), waiting=(), due=())
    lines = texts(outlook.plan_lines(empty, 60, 10))
    assert lines[0].startswith("pass none") and sum("nobody" in line for line in lines) == 2


def test_many_that_run_are_cut():
    crowd = replace(PLAN, decodes=tuple(range(100, 200)))
    (words, *_), line_ = outlook.runs(crowd, 40)
    assert len(text(line_)) <= 40 and text(line_).endswith("…")
    assert words == ("pass ", "muted")


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (0, "1 admitted 8 pages for 120 tokens, 32 found"),
        (1, "9 paused   newcomer 1, lead 7.2s; 12 pages, nothing to copy"),
        (2, "17 paused   growth of 3, lead 5.0s; 39 pages, 2 to copy"),
        (3, "4 resumed  20 pages by swap-in"),
        (4, "4 back     by swap-in after 2.50s, lead 0.4s"),
        (5, "25 fetched  5 pages rise from the file"),
        (6, "6 refused  overloaded: retry after 0.3 s"),
    ],
)
def test_decisions_have_their_reasons(at, words):
    assert text(outlook.decision(PLAN.decisions[at])).endswith(words)


def test_dials_show_figures_beside_their_bounds():
    history = History()
    figures = {
        "controller__eta": 0.9, "controller__working_set_pages": 450.0, "queues__ready": 4.0,
        "controller__pressure": 1.0, "reclaim__low": 400.0, "reclaim__high": 500.0,
    }  # fmt: skip
    bounds = {"sched.max_running": 8, "rates.step_s": 0.05, "sched.step_limit_s": 0.5}
    seen = replace(look(1.0, **figures), controls=CONTROLS | bounds)
    found = {dial.name: dial for dial in outlook.dials(seen, history)}
    assert found["working set"].share == 0.5 and found["working set"].bound == "of 900 pages"
    assert found["eta"].role == "warning" and found["seats"].share == 0.5
    assert found["free frames"].role == "warning", "300 are free, and the lower mark is at 400"
    assert found["pass"].figure == "50 ms" and found["pressure"].share is None
    for dial in found.values():
        assert len(text(outlook.dial(dial, 39))) <= 40
    assert "20.0 passes" in text(outlook.rates({"rates.steps_per_s": 20.0}))


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, "────"), (0.01, "╸───"), (0.5, "━━──"), (0.6, "━━╸─"), (1.0, "━━━━"), (7.0, "━━━━"),
     (-1.0, "────")],
)  # fmt: skip
def test_meters(share, drawn):
    assert text(phrases.meter(share, 4, "success")) == drawn


# ---- memory ----


def test_the_tree_of_prefixes():
    assert [(node.name[:2], depth) for node, depth in tree.ordered(NODES)] == [
        ("0a", 0), ("7b", 1), ("99", 1), ("55", 0)
    ]  # fmt: skip
    lines = texts(tree.lines(NODES, 80, 9))
    assert len(lines) == 5 and "HITS" in lines[0]
    assert lines[1].startswith("    57     12  ████████████") and "3 have it now" in lines[1]
    assert "└ 7be01c22" in lines[2] and lines[2].endswith("4.50s ago")
    assert "ago" not in texts(tree.lines(NODES, 60, 9))[2]
    assert len(tree.lines(NODES, 80, 2)) == 2
    assert "twice" in text(tree.lines((), 80, 9)[0])


@pytest.mark.parametrize("node", NODES)
def test_the_bar_of_a_node_has_its_length(node):
    assert len(text(tree.where(node))) == tree.BAR


def test_a_node_whose_parent_is_not_listed_stands_by_itself():
    assert tree.ordered(NODES[1:2]) == [(NODES[1], 0)]


def test_daemons():
    growth = Growth()
    for at in range(9):
        figures = {
            "time_s": float(at), "frames.free": 4.0, "reclaim.low": 5.0, "reclaim.high": 10.0,
            "frames.total": 500.0, "reclaim.pages": 2.0 * at, "swap.pages_out": 3.0 * at,
            "writebehind.queue": 7.0, "swap.flight_out": 16.0, "swap.out_s_per_page": 0.002,
        }  # fmt: skip
        growth.take(figures)
    lines = texts(daemons.lines(figures, growth, 70))
    assert lines[0].endswith("2.0/s") and "7 wait" in lines[2] and "swapon" in lines[3]
    assert lines[1].endswith("4 of 500, marks 5 10")
    assert "3.0 pages/s" in lines[4] and "16 on the way" in lines[4] and "2.00 ms" in lines[4]
    full = figures | {"disk.total": 900.0, "writebehind.stranded": 3.0, "sink.free": 9.0,
                      "sink.low": 50.0, "sink.high": 100.0, "host.total": 500.0}  # fmt: skip
    lines = texts(daemons.lines(full, growth, 50))
    assert any("3 frames keep" in line for line in lines) and "sink" in lines[4]
    assert sum("pages/s" in line for line in lines) == 4 and not any(
        "ms a" in each for each in lines
    )
    growth.take({"time_s": 0.0})
    assert growth.per_s("swap.pages_out") == 0.0


# ---- control variables ----


def test_control_variables_are_found_by_words():
    values = {
        "rates.step_s": 0.05, "sched.target_stream_s": 1.0, "policy": "progress",
        "sched.max_running": 256, "kernel.poison": False,
    }  # fmt: skip
    assert controls.found(values, "") == [
        "policy", "sched.max_running", "sched.target_stream_s", "kernel.poison", "rates.step_s"
    ]  # fmt: skip
    assert controls.found(values, "s tre") == ["sched.target_stream_s"]
    assert controls.found(values, "moon") == []
    assert controls.line("kernel.poison", False).split() == [
        "kernel.poison", "false", "(read", "only)"
    ]  # fmt: skip
    assert controls.line("sched.max_running", 256.0).split()[1] == "256"


# ---- the log ----


def test_lines_of_events():
    assert text(line(event(1, 2.5, 7, "state", old="new", new="ready"))) == (
        "    2.500      7 state     new → ready"
    )
    pause = event(2, 3.0, 7, "pause", reason="newcomer 9", lead_s=2.5, name="a prompt", digest=5)
    words = text(line(pause, with_pid=False))
    assert "reason newcomer 9" in words and "lead 2.50s" in words
    assert "prompt" not in words and "digest" not in words
    killed = line(event(3, 4.0, 7, "exit", reason="killed"))
    assert ("exit      ", "error!") in killed


def test_a_log_shows_what_is_notable_or_all():
    log = Log()
    log.take([event(1, 1.0, 1, "state", old="new", new="ready"), event(2, 2.0, 1, "pause")])
    assert [each.seq for each in log.shown] == [2] and log.last == 2
    log.show_all(True)
    assert [each.seq for each in log.shown] == [1, 2]
    log.search("READY 1")
    assert [each.seq for each in log.shown] == [1]
    log.take([event(2, 2.0, 1, "pause"), event(3, 3.0, 1, "state", old="ready", new="running")])
    assert [each.seq for each in log.shown] == [1, 3] and len(log.events) == 3
    log.clear()
    assert not log.shown and log.last == 0


def test_a_log_forgets():
    log = Log()
    log.take(event(seq, 1.0, 1, "pause") for seq in range(1, KEPT + 100))
    assert len(log.events) == len(log.shown) == KEPT and log.shown[0].seq == 100
    assert "pause" in text_of(log.shown[0])
