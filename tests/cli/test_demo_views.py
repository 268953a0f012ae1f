"""What the demo shows, from made-up figures: the table, the story, the live view."""

import io
from dataclasses import replace

from rich.console import Console

from tokenix.bench.demo import DemoOptions, Report
from tokenix.bench.drive import Outcome, Run, Sample
from tokenix.bench.metrics import Comparison, measure
from tokenix.bench.workload import QUICK, make_workload
from tokenix.cli.demo_live import COLUMNS, columns, header, timeline
from tokenix.cli.demo_report import ROWS, story, table
from tokenix.syscalls.types import Pid, ProcessStat

WORKLOAD = make_workload(1, 20.0, QUICK)


def stat(pid: int, state: str, output_tokens: int = 0, lead_s: float | None = 1.0) -> ProcessStat:
    return ProcessStat(
        pid=Pid(pid), parent=Pid(0), tenant="default", name="", state=state, held=(), qos="stream",
        nice=0, level=2, level_reason="", quantum_left_tokens=0, lead_s=lead_s, prompt_tokens=40,
        output_tokens=output_tokens, unread_tokens=0, computed_tokens=0, pages=4, resident_pages=4,
        clean_pages=0, age_s=1.0,
    )  # fmt: skip


def sample(time_s: float, **states: tuple[str, int]) -> Sample:
    shown = tuple(
        (name.replace("_", " "), stat(i, *state)) for i, (name, state) in enumerate(states.items())
    )
    return Sample(time_s, shown, 4 * len(shown), 0, 0)


def rendered(thing: object) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(thing)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def report(stalls: int = 0, different: tuple[str, ...] = (), paces: float = 20.0) -> Report:
    """fcfs needs 4 s to a first token and progress 0.5 s; no outcome behind the figures."""
    counters = {"preemptions": 2.0, "recomputed_tokens": 7.0, "swap.bytes": 4e6}
    outcomes = tuple(Outcome(arrival) for arrival in WORKLOAD.arrivals)
    runs = tuple(
        Run(name, outcomes, counters, (), 0.0, (20.0, paces)) for name in ("fcfs", "progress")
    )
    base = replace(measure(runs[0]), output_tokens_per_s=100.0)
    figures = {
        "fcfs": replace(base, ttft_p95_s=4.0, ttft_p50_s=3.0),
        "progress": replace(base, ttft_p95_s=0.5, ttft_p50_s=0.2, visible_stalls=stalls),
    }
    comparison = Comparison(not different, 3, different)
    return Report(DemoOptions(), WORKLOAD, (20.0,), figures, runs, comparison, {}, 4.0)


def test_a_good_report() -> None:
    good = report()
    assert good.problems() == []
    assert good.ratios()["ttft_p95_fcfs"] == 8.0
    assert all(good.targets().values())
    text = " ".join(story(good))
    assert "8.0 times as long" in text and "no reader noticed" in text
    assert "token for token the same" in text and "with care" not in text
    assert good.as_json()["outputs_identical"] is True


def test_a_bad_report_says_why() -> None:
    bad = report(stalls=3, different=("long 1",), paces=50.0)
    assert len(bad.problems()) == 1, "what a busy machine does is told, not failed"
    on_gpu = replace(bad, options=replace(bad.options, driver="cuda"))
    assert on_gpu.problems() == [], "there bits depend on the batch: told, not failed"
    assert not bad.targets()["no_visible_stalls"] and not bad.targets()["outputs_identical"]
    text = " ".join(story(bad))
    assert "NOT all the same" in text and "3 times" in text and "2.5-fold" in text


def test_the_table_has_every_policy_and_row() -> None:
    text = rendered(table(report().figures))
    assert "fcfs" in text and "progress" in text
    assert all(label.strip() in text for label, _ in ROWS)


def test_the_timeline_shows_states() -> None:
    samples = [
        sample(0.1, long_1=("running", 1), short_1=("new", 0)),
        sample(0.3, long_1=("swapped", 20), short_1=("ready", 0), short_2=("new", 0)),
        sample(0.6, long_1=("ready", 30), short_1=("ready", 3), short_2=("new", 0)),
    ]
    lines = rendered(timeline(samples, WORKLOAD)).splitlines()
    assert "█░█" in lines[0] and f"30/{QUICK.long_tokens}" in lines[0]
    assert lines[-2].rstrip().endswith("1")
    assert "121" in lines[-1]
    assert "fcfs" in header("fcfs", samples[-1], WORKLOAD).plain


def test_a_long_run_fits_into_the_timeline() -> None:
    samples = [sample(0.25 * i, long_1=("running", i)) for i in range(1000)]
    assert len(columns(samples)) <= COLUMNS
