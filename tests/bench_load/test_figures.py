"""From records to figures: tables whose answers can be seen."""

import json
from pathlib import Path

import pytest

from tokenix.bench.load.clients import Clients
from tokenix.bench.load.facts import facts_of
from tokenix.bench.load.page import counts_of
from tokenix.bench.load.player import Played
from tokenix.bench.load.record import Record, as_json
from tokenix.bench.load.sessions import Reader, make_parts
from tokenix.bench.load.summary import Wants, summarize
from tokenix.bench.load.table import table
from tokenix.bench.reader import fluidity

VLLM_NAMES = (Path(__file__).parent / "vllm_names.txt").read_text().split()


def record(name: str, due_s: float, times_s: list[float], **more) -> Record:
    given = {
        "name": name, "turn": 0, "clients": "chat", "tenant": "", "reader": Reader(10.0),
        "planned_input": 10, "planned_output": 3, "due_s": due_s, "sent_s": due_s + 0.001,
        "times_s": times_s, "ended_s": times_s[-1] if times_s else due_s, "input_tokens": 10,
        "output_tokens": len(times_s), "ending": "length",
    }  # fmt: skip
    return Record(**(given | more))


def summary_of(records: list[Record], duration_s: float = 10.0, **wants) -> dict:
    played = Played(tuple(records), duration_s, 0.5, 0.0)
    parts = make_parts((Clients(name="chat", rate=2, requests=len(records)),), 1)
    return summarize(played, parts, Wants(**wants), {"model_id": "m", "endpoint": "e"})


def test_latencies_count_from_when_a_request_was_due() -> None:
    one = record("a", 1.0, [1.5, 1.6, 1.8], sent_s=1.4)
    assert one.ttft_s == pytest.approx(0.5) and one.e2el_s == pytest.approx(0.8)
    assert one.tpot_s == pytest.approx(0.15)
    made = summary_of([one])
    assert made["mean_ttft_ms"] == pytest.approx(500) and made["mean_late_ms"] == pytest.approx(400)
    assert made["median_itl_ms"] == pytest.approx(150) and made["std_itl_ms"] == pytest.approx(50)


def test_names_are_those_of_vllm_bench() -> None:
    made = summary_of([record("a", 0, [0.1, 0.2])])
    assert not [name for name in VLLM_NAMES if name not in made]
    json.dumps(made)
    assert "time to first token" in table(made)


def test_counts_and_throughput() -> None:
    records = [
        record("a", 0, [0.5, 0.6, 0.7]),
        record("b", 1, [], ending="refused", error="429", input_tokens=10, output_tokens=0),
        record("c", 2, [2.5, 2.6], ending="failed", error="broken"),
        record("d", 3, [3.5], ending="left", reader=Reader(10, "leaving", 1)),
    ]
    made = summary_of(records)
    assert [made[name] for name in ("completed", "refused", "failed", "left")] == [1, 1, 1, 1]
    assert made["total_output_tokens"] == 6 and made["output_throughput"] == pytest.approx(0.6)
    assert made["total_input_tokens"] == 10 and made["request_throughput"] == pytest.approx(0.1)
    assert made["goodput"] == pytest.approx(1 / 3), "of steady readers; refused and failed are not"
    assert made["max_output_tokens_per_s"] == 3 and made["max_concurrent_requests"] == 1
    assert "of readers that are steady" in made["good_means"]


@pytest.mark.parametrize(("sent_s", "told"), [(0.2, True), (0.01, False)])
@pytest.mark.parametrize("held", [False, True])
def test_a_client_that_is_late_by_itself_says_so(sent_s: float, told: bool, held: bool) -> None:
    group = Clients(name="chat", rate=2, requests=1, concurrency=1 if held else None)
    played = Played((record("a", 0, [0.5], sent_s=sent_s),), 1.0, 0.5, 0.0)
    made = summarize(played, make_parts((group,), 1), Wants(), {"model_id": "m", "endpoint": "e"})
    assert made["client_late_ms"] == (None if held else pytest.approx(sent_s * 1e3))
    assert ("requests left up to 200 ms" in table(made)) == (told and not held)


def test_what_went_otherwise_than_asked_is_told() -> None:
    broken = {"ending": "failed", "error": "it broke"}
    records = [
        record("a", 0, [0.5, 0.6], planned_output=2, counted=True),
        record("b", 1, [1.5, 1.6], planned_output=3),
        record("c", 2, [], **broken), record("d", 3, [3.1], **broken),
        record("e", 4, [], ending="refused", error="429: full"),
    ]  # fmt: skip
    played = Played(tuple(records), 10.0, 0.5, 0.0, interrupted=True, under_way=7)
    parts = make_parts((Clients(name="chat", requests=5),), 1)
    text = table(summarize(played, parts, Wants(), {"model_id": "m", "endpoint": "e"}))
    lines = text.splitlines()
    first = lines.index("2 times: it broke")
    assert lines[first + 1 : first + 5] == [
        "1 times: 429: full", "interrupted; 7 under way then are not counted",
        "1 ended with fewer tokens than were asked for",
        "1 came without usage: their pieces were counted as tokens",
    ]  # fmt: skip
    assert "steady" not in text


@pytest.mark.parametrize(
    ("times_s", "wants", "good"),
    [
        ([0.5, 0.6, 0.7], {}, True),
        ([1.5, 1.6, 1.7], {}, False),
        ([0.5, 0.6, 1.5], {}, False),  # a stall: due at 0.7, more than half a second late
        ([0.5, 0.6, 1.1], {}, True),
        ([0.5, 0.6, 1.1], {"tpot_s": 0.2}, False),
        ([0.5, 0.6, 1.1], {"e2el_s": 1.0}, False),
    ],
)
def test_goodput(times_s: list[float], wants: dict, good: bool) -> None:
    assert summary_of([record("a", 0, times_s)], **wants)["goodput"] == good


def test_stalls_are_those_of_steady_readers() -> None:
    late = [0.1, 0.2, 3.0]
    stalled = record("b", 0, late, reader=Reader(10, "stalled", 2, 3.0))
    made = summary_of([record("a", 0, late), stalled])
    assert (made["visible_stalls"], made["stalled_requests"]) == (1, 1)
    assert made["worst_stall_ms"] == pytest.approx(2700)
    assert made["max_itl_ms"] == pytest.approx(2800)


def test_pieces_of_several_tokens_come_at_once() -> None:
    one = record("a", 0, [0.1, 0.2, 0.3], output_tokens=6)
    assert one.token_times_s == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert record("a", 0, [0.1, 0.2], output_tokens=1).token_times_s == [0.1, 0.2]
    assert record("a", 0, [0.1, 0.2, 0.3], output_tokens=4).token_times_s[0] == 0.1


@pytest.mark.parametrize(
    ("times_s", "index"),
    [
        ([], 0.0),
        ([0.9, 0.95, 1.0], 1.0),
        ([0.5, 1.05], 1.0),  # half a second of slack is left for the second
        ([0.95, 1.0, 1.55], 2 / 6),  # 0.35 s later than it may be: four deadlines are missed
        ([2.5, 2.55], 1 / 3),  # the first: one missed for each second begun
    ],
)
def test_fluidity(times_s: list[float], index: float) -> None:
    assert fluidity(times_s, 10.0, 1.0) == pytest.approx(index)


def test_cost() -> None:
    made = summary_of([record("a", 0, [0.1] * 100)], duration_s=36.0, usd_per_hour=10.0)
    assert made["usd_per_million_output_tokens"] == pytest.approx(0.1 / 100 * 1e6)
    assert made["usd_per_million_total_tokens"] == pytest.approx(0.1 / 110 * 1e6)
    assert "usd_per_million_output_tokens" not in summary_of([record("a", 0, [0.1])])


def test_facts_tell_tail_and_burst() -> None:
    records = [record(str(i), i // 10 * 2.0, [], planned_output=10) for i in range(200)]
    records[7].planned_output = 10_000
    facts = facts_of(make_parts((Clients(name="chat", rate=2, burstiness=0.5),), 1), records)
    assert facts.source == "chat: gamma, shape 0.5, 2/s"
    assert facts.rate == pytest.approx(199 / 38) and facts.gap_cv == pytest.approx(3.2, abs=0.2)
    assert facts.peak == pytest.approx(10 / facts.rate)
    assert facts.output.tail == pytest.approx(10_010 / 11_990, abs=0.01)
    assert facts.prompt.tail == pytest.approx(0.01)


def test_classes_and_tenants_have_figures_of_their_own() -> None:
    records = [
        record("a", 0, [0.1]), record("b", 0, [0.9], clients="jobs", tenant="acme"),
    ]  # fmt: skip
    made = summary_of(records)
    assert made["classes"]["chat"]["median_ttft_ms"] == pytest.approx(100)
    assert made["classes"]["jobs"]["median_ttft_ms"] == pytest.approx(900)
    assert list(made["tenants"]) == ["acme"]
    assert "jobs" in table(made) and "acme" in table(made)


def test_who_never_streamed_is_not_counted_below_nobody() -> None:
    changes = [(1.0, 1), (1.0, -1), (2.0, 1), (3.0, -1), (3.0, 1), (4.0, -1)]
    assert counts_of(changes) == ([0.0, 1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1, 0])


def test_a_line_of_json() -> None:
    line = as_json(record("a", 1.0, [1.5, 1.6]))
    assert (line["ttft_ms"], line["tpot_ms"], line["piece_ms"]) == (500, 100, [0, 100])
    assert as_json(record("a", 1.0, [], ending="refused"))["ttft_ms"] is None
    json.dumps(line)
