"""The report: sections say what their figures say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tokenix.bench import report, sections
from tokenix.bench.points import Point
from tokenix.bench.report import QUICK, Lab
from tokenix.bench.simulate import Result, run
from tokenix.bench.sweep import Sweep
from tokenix.bench.traces import Trace
from tokenix.cli.main import main
from tokenix.tests.bench_sim.worlds import make_setup, make_trace

pytest.importorskip("matplotlib")


def named(name: str, count: int = 80) -> Trace:
    return replace(make_trace(count, output=12), name=name)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab({name: named(name) for name in report.TRACES}, tmp_path, QUICK)


def test_a_report_has_its_sections_plots_and_commands(lab: Lab) -> None:
    chosen = {name: sections.SECTIONS[name] for name in ("pools", "misses", "heat", "regimes")}
    told: list[str] = []
    path = report.make_report(lab, chosen, told.append)
    text = path.read_text(encoding="utf-8")
    assert told == [f"section {name}" for name in chosen]
    assert text.count("\n## ") == 4
    images = re.findall(r"!\[.*\]\((.*)\)", text)
    assert len(images) == 2 + 1 + 2
    for image in images:
        data = (path.parent / image).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) < 150_000
    assert text.count("    tokenix sim sweep --what pool") == 2
    assert "    tokenix sim report --out reports --only heat" in text
    assert {what for what, _, _ in lab.swept} == {"pool", "link", "reader", "load"}


def test_fairness_and_reasoning(lab: Lab) -> None:
    fair = sections.fairness(lab)
    assert [image.name for image in fair.images] == ["tenants.png", "classes.png"]
    assert all(image.is_file() for image in fair.images)
    assert any("| progress, weights 1 and 2 |" in text for text in fair.text)
    thinking = sections.reasoning(lab)
    assert "--hidden" in thinking.commands[0]


def test_the_rest_of_the_sections(lab: Lab) -> None:
    for name in ("first_tokens", "overload", "contention"):
        section = sections.SECTIONS[name](lab)
        assert section.text and section.commands, name


@pytest.fixture(scope="module")
def result() -> Result:
    return run(make_trace(6), make_setup())


def swept(result: Result, goodputs: dict[str, tuple[float, ...]]) -> Sweep:
    values = tuple(float(1 + at) for at in range(len(next(iter(goodputs.values())))))
    results = [
        replace(result, policy=policy, goodput=goods[at])
        for at in range(len(values))
        for policy, goods in goodputs.items()
    ]
    base = Point("t", "h100", 1.0, 0.5, 10.0, 25.0)
    return Sweep("load", base, values, tuple(goodputs), tuple(results))


def test_the_highest_load_ends_at_the_first_gap(result: Result) -> None:
    made = swept(result, {"progress": (0.99, 0.96, 0.94, 0.97), "fcfs": (0.9, 0.99, 0.1, 0.1)})
    assert sections._highest(made, "progress") == 2.0
    assert sections._highest(made, "fcfs") == 0.0


def test_the_best_other_is_not_ours(result: Result) -> None:
    made = swept(result, {"progress": (0.99,), "fcfs": (0.4,), "retract": (0.5,)})
    name, best = report.best_other(report.by_policy(made, 0))
    assert (name, best.goodput) == ("retract", 0.5)


def test_regimes_tell_gains_from_none(lab: Lab, result: Result) -> None:
    """The first value gains nothing, the second much, at the third all is lost."""
    goods = {"progress": (0.99, 0.99, 0.3), "fcfs": (0.985, 0.5, 0.1)}
    for base in report.BASES.values():
        for what in ("reader", "pool", "load"):
            policies = lab.policies((*report.MAIN, "mlfq"))
            lab.swept[what, base, policies] = replace(swept(result, goods), what=what)
    none, lost = (sections.regimes(lab).text[at] for at in (1, 3))
    assert "| reader 1 |" in none and "reader 2" not in none and "reader 3" not in none
    assert "| reader 3 |" in lost and "reader 1" not in lost


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in report.TRACES:
        rows = [f"{r.arrival_s},{r.prompt_tokens},9\n" for r in named(name, 60).requests]
        text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(rows)
        (tmp_path / f"{name}.csv").write_text(text)
    words = ["sim", "report", "--quick", "--folder", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*words, "--only", "hosts"]) == 0
    assert (tmp_path / "out" / "policies.md").is_file()
    assert "section hosts" in capsys.readouterr().err
    assert main([*words, "--only", "weather"]) == 2
    assert "no section 'weather'" in capsys.readouterr().err
    assert main([*words[:3], "--folder", str(tmp_path / "no"), "--out", str(tmp_path)]) == 1
    assert "No such file" in capsys.readouterr().err
