"""The miss storm in small: what is counted, and that there is no cliff with admission on."""

import json
from dataclasses import replace

import pytest

from tokenix.bench.storm import Load, Report, Seen, Visit, make_prompt, make_visits, measure
from tokenix.bench.stormruns import SIM, SIM_LOAD, storm_sim
from tokenix.cli.main import main

SMALL = replace(SIM, device="rtx4090", kv_pages=1024, tunables={"step_tokens": 512})
LOAD = replace(
    SIM_LOAD, document_tokens=500, question_tokens=16, answer_tokens=4, seconds=2.5, warmup_s=1.5
)


@pytest.fixture(scope="module")
def report() -> Report:
    return storm_sim(SMALL, LOAD, ratios=(0.5, 1.0, 4.0))


def test_no_cliff_with_admission_on(report: Report) -> None:
    """Who is let in has the first token about within the target, whatever is missed, nobody stalls,
    and at least as many are served as if each document were computed. Without it they wait."""
    on = [line for line in report.lines if line.admission]
    for line in on:
        assert line.ttft_p95_s is not None and line.ttft_p95_s < 1.1
        assert line.visible_stall_rate == 0
        assert line.goodput > 1 / LOAD.demand
    assert on[0].goodput == 1 and on[0].refused_share == 0, "a set that fits is no load"
    assert [line.miss_rate for line in on] == sorted(line.miss_rate for line in on)
    off = report.lines[-1]
    assert not off.admission and off.refused_share == 0 and off.set_ratio == 4
    assert off.ttft_p95_s is not None and off.ttft_p95_s > 1.5
    assert off.goodput < on[-1].goodput


def test_where_documents_are_found(report: Report) -> None:
    for line in report.lines:
        shares = (line.host_share, line.file_share, line.computed_share)
        assert min(shares) >= 0 and sum(shares) == pytest.approx(line.miss_rate)
        assert line.miss_rate <= 1
    assert any(line.host_share > 0 for line in report.lines)
    assert any(line.file_share > 0 for line in report.lines)


LITTLE = Load(100, 4, 3, tokens_per_s=10.0, demand=1.0, seconds=10.0, warmup_s=5.0)


def test_figures() -> None:
    """Late, stalled, refused, unfinished and good; the first one is in the warm-up."""
    times = {
        0: (1.1, 1.2, 1.3), 1: (6.1, 6.2, 6.3), 2: (8.1, 8.2, 8.3), 3: (7.1, 8.5, 8.6), 5: (9.1,),
    }  # fmt: skip
    at_s = (1.0, 6.0, 6.0, 7.0, 8.0, 9.0)
    seen = [
        Seen(
            Visit(at_s[n], n, n), finished=n in (0, 1, 2, 3), refused=n == 4,
            times_s=times.get(n, ()), cached=80, host=30, file=10,
        )
        for n in range(6)
    ]  # fmt: skip
    line = measure(LITTLE, 2.0, True, 50, seen)
    assert (line.visits, line.goodput, line.refused_share) == (5, 0.2, 0.2)
    assert line.visible_stall_rate == 0.25
    assert line.ttft_p50_s == pytest.approx(0.1)
    assert line.computed_share == pytest.approx(0.2)
    assert line.miss_rate == pytest.approx(0.6)


def test_equal_loads_have_equal_visits() -> None:
    visits = make_visits(LITTLE, 7, 4.0)
    assert visits == make_visits(LITTLE, 7, 4.0)
    assert visits != make_visits(replace(LITTLE, seed=2), 7, 4.0)
    assert {visit.document for visit in visits} == set(range(7))
    one, other = visits[:2]
    again = replace(other, document=one.document)
    assert make_prompt(LITTLE, one)[:100] == make_prompt(LITTLE, again)[:100]
    assert make_prompt(LITTLE, one)[100:] != make_prompt(LITTLE, again)[100:]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "storm", "--ratios", "0.2", "--demand", "1", "--seconds", "0.5", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line["admission"] for line in told["lines"]] == [True, False]
    assert told["lines"][0]["goodput"] == 1
    assert main(["bench", "storm", "--ratios", "0,x"]) == 2
