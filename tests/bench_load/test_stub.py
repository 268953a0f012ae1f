"""What the generator measures, against a server whose delays are known.

The stub writes down when it wrote each piece, by the clock that the client reads too. What the
two differ by is the generator's error. Its times are the system's, so it is small on a busy machine
too; what is left there is the stub's, between its look at the clock and its write, which how late
its timers were bounds.
"""

import math
import random
from itertools import pairwise
from pathlib import Path

import pytest

from tokenix.bench.load.clients import Clients
from tokenix.bench.load.player import Played
from tokenix.bench.load.sessions import make_parts
from tokenix.bench.load.summary import Wants, summarize
from tokenix.bench.metrics import percentile
from tokenix.tests.bench_load.stubs import Stub, play, stub

PERCENTS = (50, 95, 99)


def delays(chance: random.Random, pieces: int, ttft_s: float, itl_s: float) -> list[float]:
    """Lognormal tails around the two medians; no gap below what a timer can be trusted with."""
    at_s = ttft_s * math.exp(0.6 * chance.gauss())
    times_s = [at_s]
    for _ in range(pieces - 1):
        at_s += 0.2 * itl_s + 0.8 * itl_s * math.exp(0.5 * chance.gauss())
        times_s.append(at_s)
    return times_s


def pairs(played: Played, server: Stub, plan) -> tuple[dict, dict, float]:
    """What the client measured, what the server did, and how late (P99) its timers were."""
    done = server.written()
    ours: dict[str, list[float]] = {"ttft": [], "itl": []}
    true: dict[str, list[float]] = {"ttft": [], "itl": []}
    late = []
    for record in played.records:
        number = int(record.name.rpartition("-")[2]) - 1
        line = done[number]
        written = line["written_s"]
        ours["ttft"].append(record.times_s[0] - record.sent_s)
        ours["itl"] += record.itls_s
        true["ttft"].append(written[0] - line["came_s"])
        true["itl"] += [after - before for before, after in pairwise(written)]
        late += [
            at_s - line["came_s"] - due for at_s, due in zip(written, plan[number], strict=True)
        ]
    return ours, true, percentile(late, 99)


def check_recovery(ours: dict, true: dict, slack_s: float) -> None:
    for name in ("ttft", "itl"):
        assert len(ours[name]) == len(true[name])
        for percent in PERCENTS:
            mine, real = percentile(ours[name], percent), percentile(true[name], percent)
            assert mine == pytest.approx(real, rel=0.02, abs=slack_s), (name, percent)


def test_known_delays_are_recovered(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    plan = [delays(chance, 12, 0.25, 0.06) for _ in range(60)]
    parts = make_parts((Clients(requests=60, rate=40.0, output_tokens=12),), seed)
    with stub(plan, tmp_path) as server:
        played = play(server.url, parts)
        ours, true, late_s = pairs(played, server, plan)
    assert all(record.ending == "length" and not record.error for record in played.records)
    check_recovery(ours, true, max(0.002, 2 * late_s))
    summary = summarize(played, parts, Wants(), {})
    assert summary["completed"] == 60 and summary["total_output_tokens"] == 720
    from_due = [r.times_s[0] - r.due_s for r in played.records]
    assert summary["p95_ttft_ms"] == pytest.approx(percentile(from_due, 95) * 1e3)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_five_hundred_streams_cost_less_than_half_a_core(tmp_path: Path, seed: int) -> None:
    """Each at 10 tokens a second, for a quarter of a minute: errors below 2 ms, and 2 %."""
    chance = random.Random(seed)
    plan = [delays(chance, 150, 0.3, 0.1) for _ in range(500)]
    parts = make_parts((Clients(requests=500, rate=200.0, output_tokens=150),), seed)
    with stub(plan, tmp_path) as server:
        played = play(server.url, parts)
        ours, true, late_s = pairs(played, server, plan)
    check_recovery(ours, true, max(0.0, 2 * late_s - 0.004))
    errors = [abs(mine - real) for mine, real in zip(ours["itl"], true["itl"], strict=True)]
    assert percentile(errors, 95) < 0.002
    assert percentile(errors, 99) < max(0.002, late_s)
    assert played.client_cpu_s / played.duration_s < 0.5
