"""The random grid: points, its file, and what is concluded from figures made by hand."""

import fcntl
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tokenix.bench import grid, gridsum
from tokenix.bench.grid import Cell, Figures
from tokenix.bench.points import Point
from tokenix.bench.traces import Trace
from tokenix.tests.bench_sim.worlds import make_trace

POINT = Point("made", "h100", 0.7, 0.1, 10.0, 25.0, seed=5)

FIGURES = Figures(100, 500, 2.0, 0.9, 0.9, 0.0, 0, 0.1, 0.5, 1000.0, 2000.0, 0, 0.0, 0, "d", "c")


def test_points_are_a_function_of_the_seed_and_begin_alike() -> None:
    few, many = grid.draw_points(5, 1), grid.draw_points(5, 2)
    assert few != many and few == grid.draw_points(5, 1)
    assert grid.draw_points(50, 1)[:5] == few
    axes = [replace(point, seed=1) for point in grid.draw_points(10**6, 1)]
    assert len(axes) == len(set(axes)) == 4 * 3 * 7 * 4 * 4 * 4


def short_trace() -> Trace:
    return replace(make_trace(70, output=8), name="made")


def test_results_are_resumed_and_a_broken_line_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    placed = grid.placement({"made": short_trace()})
    cells = grid.cells_of(POINT, ["progress", "fcfs"])
    grid.run_cells(placed, cells, path)
    whole = path.read_bytes()
    first = grid.read_cells(path)
    assert set(first) == set(cells) and first[cells[0]].requests > 50
    path.write_bytes(whole[:-40])
    assert set(grid.read_cells(path)) == {cells[0]}
    grid.run_cells(placed, cells[1:], path)
    assert path.read_bytes() == whole, "equal runs, equal lines"
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(ValueError, match="line 1 is not a result"):
        grid.read_cells(path)


ROW = {
    "point": asdict(POINT), "policy": "fcfs", "bound_s": 0.0, "figures": asdict(FIGURES),
}  # fmt: skip
LINE = json.dumps(ROW)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("my notes", "line 1 is not a result"),
        (LINE + "\nmy notes", "line 2 is not a result"),
        (LINE.replace('"goodput": 0.9', '"goodput": NaN') + "\n", "NaN is not a figure"),
        (LINE.replace('"goodput": 0.9', '"goodput": "x"') + "\n", "goodput cannot be 'x'"),
        (LINE.replace('"goodput": 0.9', '"goodput": null') + "\n", "goodput cannot be None"),
        (LINE.replace('"load": 0.7', '"load": [1]') + "\n", "line 1 is not a result"),
        (LINE.replace("goodput", "goodpot") + "\n", "line 1 is not a result"),
        (b"\xff\xfe\n", "not a file of results"),
    ],
)
def test_a_file_of_something_else_is_left_alone(
    tmp_path: Path, text: str | bytes, why: str
) -> None:
    path = tmp_path / "out.jsonl"
    whole = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=why) as problem:
        grid.read_cells(path)
    assert str(path) in str(problem.value)
    assert path.read_bytes() == whole


def test_a_device_holds_no_results() -> None:
    with pytest.raises(ValueError, match="not a regular file"):
        grid.read_cells(Path("/dev/zero"))


def test_one_grid_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(LINE + "\n" + LINE[:50])
    with path.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another grid is writing it"):
            grid.run_cells(grid.placement({}), [], path)
    assert path.read_text() == LINE + "\n" + LINE[:50]
    grid.run_cells(grid.placement({}), [], path)
    assert path.read_text() == LINE + "\n"


def rows(**goodputs: float) -> dict[Cell, Figures]:
    """All policies at `POINT`; `reject` is fcfs+reject with its second bound."""
    found = {Cell(POINT, "fcfs+reject", bound): FIGURES for bound in grid.BOUNDS}
    for policy in ("fcfs", "retract", "progress"):
        found[Cell(POINT, policy)] = replace(FIGURES, goodput=goodputs[policy])
    for bound in grid.BOUNDS:
        good = goodputs["reject"] if bound == 0.25 else 0.1
        found[Cell(POINT, "fcfs+reject", bound)] = replace(FIGURES, goodput=good)
    return found


def test_the_best_bound_is_chosen_by_goodput() -> None:
    figured = rows(fcfs=0.5, retract=0.4, progress=0.9, reject=0.8)
    summary = gridsum.summarise(figured, [POINT])
    assert summary.bounds == {"made/h100": 0.25}
    assert summary.every.goodput == {
        "fcfs": 0.5, "fcfs+reject": 0.8, "progress": 0.9, "retract": 0.4
    }  # fmt: skip
    assert summary.every.worst_deficit == pytest.approx(-0.1)


@pytest.mark.parametrize(("ours", "within"), [(0.79, 1.0), (0.77, 0.0)])
def test_two_points_below_the_best_of_three_are_within(ours: float, within: float) -> None:
    figured = rows(fcfs=0.5, retract=0.4, progress=ours, reject=0.8)
    summary = gridsum.summarise(figured, [POINT])
    assert summary.every.within == within
    assert [short.policy for short in summary.deficits] == ([] if within else ["fcfs+reject"])


@pytest.mark.parametrize(
    ("goodput", "p95_s", "late"),
    [(0.9, 0.45, 1), (0.9, 0.47, 0), (0.881, 0.45, 1), (0.87, 0.45, 0), (1.0, None, 0)],
)
def test_late_is_against_baselines_of_equal_goodput(
    goodput: float, p95_s: float | None, late: int
) -> None:
    figured = rows(fcfs=0.5, retract=0.4, progress=0.9, reject=0.5)
    figured[Cell(POINT, "fcfs")] = replace(FIGURES, goodput=goodput, ttft_p95_s=p95_s)
    assert gridsum.summarise(figured, [POINT]).every.late == late


def test_points_that_are_not_complete_are_left_out() -> None:
    figured = rows(fcfs=0.5, retract=0.4, progress=0.9, reject=0.5)
    other = replace(POINT, seed=6)
    figured[Cell(other, "progress")] = FIGURES
    assert gridsum.summarise(figured, [POINT, other]).every.points == 1
    with pytest.raises(ValueError, match="no point has results"):
        gridsum.summarise(figured, [other])
