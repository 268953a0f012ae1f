"""The figures, from runs made by hand."""

from dataclasses import replace

import pytest

from tokenix.bench.drive import Outcome, Run
from tokenix.bench.latency import pauses_s, resumes_s, returns_s
from tokenix.bench.metrics import compare_outputs, measure, percentile
from tokenix.bench.workload import Arrival
from tokenix.syscalls.types import ExitReason, Pid, TraceEvent

COUNTERS = {"preemptions": 2.0, "recomputed_tokens": 7.0, "swap.bytes": 4096.0}


def outcome(
    name: str,
    at_s: float,
    times_s: tuple[float, ...],
    reason: ExitReason | None = ExitReason.LENGTH,
    qos: str = "interactive",
    **more: object,
) -> Outcome:
    arrival = Arrival(name, at_s, "prompt", max(1, len(times_s)), qos, 10.0)
    made = Outcome(arrival, Pid(1), reason=reason, times_s=times_s)
    made.tokens = tuple(range(len(times_s)))
    for field, value in more.items():
        setattr(made, field, value)
    return made


def run(*outcomes: Outcome, events: tuple[TraceEvent, ...] = (), start_s: float = 0.0) -> Run:
    return Run("progress", outcomes, COUNTERS, events, start_s, (20.0, 40.0))


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 95, None),
        ([3.0], 99, 3.0),
        ([2.0, 1.0], 50, 1.5),
        (range(101), 95, 95.0),
        ([0.0, 10.0, 20.0], 95, 19.0),
    ],
)
def test_percentile(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == (None if expected is None else pytest.approx(expected))


def test_figures_of_a_run() -> None:
    figures = measure(
        run(
            outcome("long 1", 0.0, (0.4, 0.5, 0.6, 2.0), qos="stream"),  # stalls once
            outcome("short 1", 1.0, (1.2, 1.3)),  # good
            outcome("short 2", 1.0, (2.6, 2.7)),  # too late
            outcome("short 3", 1.0, (), None, refused="overloaded"),
            outcome("short 4", 1.0, (1.4,), ExitReason.ERROR, error="broken"),
        )
    )
    assert figures.ttft_p50_s == pytest.approx(0.4)
    assert figures.ttft_all_p50_s == pytest.approx(0.4)
    assert figures.ttft_p99_s == pytest.approx(1.6, abs=0.03)
    assert (figures.visible_stalls, figures.stalled_requests) == (1, 1)
    assert figures.goodput == pytest.approx(1 / 5)
    assert (figures.rejected, figures.failed) == (1, 1)
    assert figures.output_tokens == 9
    assert figures.makespan_s == pytest.approx(2.7)
    assert figures.output_tokens_per_s == pytest.approx(9 / 2.7)
    assert (figures.preemptions, figures.wasted_tokens, figures.swap_bytes) == (2, 7, 4096)
    assert figures.pace_steps_per_s == pytest.approx(30.0)


def test_figures_without_any_answer() -> None:
    figures = measure(run(outcome("short 1", 1.0, (), None, refused="overloaded")))
    assert figures.ttft_p95_s is None
    assert figures.goodput == 0.0
    assert figures.output_tokens_per_s == 0.0


def event(time_s: float, pid: int, kind: str, new: str = "") -> TraceEvent:
    return TraceEvent(0, time_s, Pid(pid), kind, (("new", new),) if new else ())


EVENTS = (
    event(11.0, 1, "pause"),
    event(11.0, 1, "state", "swapping-out"),
    event(11.1, 2, "pause"),
    event(11.1, 2, "state", "swapped"),
    event(11.3, 1, "state", "swapped"),
    event(12.0, 1, "resume"),
    event(12.0, 1, "state", "swapping-in"),
    event(12.2, 1, "state", "ready"),
    event(12.5, 1, "state", "zombie"),
)


def test_latencies_from_the_trace() -> None:
    assert pauses_s(EVENTS) == pytest.approx([0.0, 0.3])
    assert resumes_s(EVENTS) == pytest.approx([0.2])
    shown = run(outcome("long 1", 0.0, (0.5, 2.4), qos="stream"), events=EVENTS, start_s=10.0)
    assert returns_s(shown) == pytest.approx([0.4])


def test_outputs_are_compared_where_all_finished() -> None:
    a = outcome("a", 0.0, (1.0, 2.0))
    other = replace(a, tokens=(7, 7))
    refused = outcome("b", 0.0, (), None, refused="overloaded")
    answered = outcome("b", 0.0, (1.0,))

    same = compare_outputs([run(a, refused), run(a, answered)])
    assert (same.identical, same.compared, same.different) == (True, 1, ())
    differs = compare_outputs([run(a), run(other)])
    assert (differs.identical, differs.different) == (False, ("a",))
    nothing = compare_outputs([run(refused), run(answered)])
    assert (nothing.identical, nothing.compared) == (False, 0)
