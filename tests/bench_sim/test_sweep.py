"""Sweeps: one property moves, the arrivals stay where they can."""

from dataclasses import replace

import pytest

from tokenix.bench.points import Point, Size
from tokenix.bench.sweep import AXES, sweep, sweep_jobs
from tokenix.bench.traces import Trace
from tokenix.tests.bench_sim.worlds import make_trace

BASE = Point("made", "h100", 1.0, 0.05, 10.0, 25.0)
SMALL = Size(few=40, many=40)


def made(count: int = 60, output: int = 30) -> Trace:
    return replace(make_trace(count, output=output), name="made")


@pytest.mark.parametrize("what", AXES)
def test_only_what_is_swept_moves(what: str) -> None:
    values = AXES[what][:2]
    first, second = sweep_jobs(what, BASE, made(), ["fcfs"], values, SMALL)
    one, two = first.setup, second.setup
    assert one != two
    assert (one.window == two.window) == (what not in ("load", "seed"))
    moved = {
        "pool": one.machine.kv_pages != two.machine.kv_pages,
        "reader": one.reader != two.reader,
        "link": one.machine.link_gb_per_s != two.machine.link_gb_per_s,
        "host": one.machine.host_pools != two.machine.host_pools,
        "load": one.window != two.window and what != "seed",
        "seed": one.window.seed != two.window.seed,
    }
    assert {name for name, moves in moved.items() if moves} == {what}


def test_results_are_found_by_value_and_policy() -> None:
    swept = sweep("pool", BASE, made(), ["progress", "fcfs"], (0.03, 0.2), SMALL)
    assert [r.policy for r in swept.results] == ["progress", "fcfs"] * 2
    assert [r.policy for r in swept.of("fcfs")] == ["fcfs"] * 2
    assert swept.of("fcfs")[0].kv_pages < swept.of("fcfs")[1].kv_pages
    assert [value for value, _ in swept.rows()] == [0.03, 0.03, 0.2, 0.2]
    assert len({r.requests for r in swept.results}) == 1, "the same requests in all pools"


def test_what_cannot_be_swept_is_said() -> None:
    with pytest.raises(ValueError, match="there are load, pool"):
        sweep("moon", BASE, made(), ["fcfs"])
