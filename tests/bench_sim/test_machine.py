"""The simulated machine and whole runs: timing as the strict device, figures, equal digests."""

import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tokenix.bench.parallel import run_all
from tokenix.bench.simulate import Result, Setup, run
from tokenix.bench.traces import Request, Trace, Window
from tokenix.drivers.device import Device
from tokenix.drivers.ops import CopyOut, Forward
from tokenix.drivers.sim import CostModel, SimDevice
from tokenix.drivers.sim.fast import FastDevice
from tokenix.kernel.boot import make_kernel
from tokenix.kernel.calls import Principal, Spawn
from tokenix.kernel.event import Call, Event, Reply
from tokenix.kernel.params import Params
from tokenix.mm.ids import Ticket
from tokenix.syscalls.simulation import VOCAB, SimMachine, SimOptions
from tokenix.tests.bench_sim.worlds import make_setup, make_trace

ROOT = Path(__file__).resolve().parents[2]


def token_times(device: Device, until_s: float) -> dict[int, list[float]]:
    """Spawn 12 processes over a second on a pool that is too small; when each token came."""
    kernel = make_kernel(device, "progress", Params(pipe_tokens=1 << 30, prefix_cache=False))
    now_s, calls = 0.0, 0
    arrivals = [i * 0.08 for i in range(12)]
    while now_s < until_s:
        inbox: list[Event] = []
        while arrivals and arrivals[0] <= now_s:
            arrivals.pop(0)
            calls += 1
            tokens = tuple((calls * 7 + i) % 250 for i in range(30 + calls))
            inbox.append(Call(calls, Principal(), Spawn(tokens, max_tokens=60, ignore_eos=True)))
        inbox += device.poll(now_s)
        for command in kernel.step(now_s, inbox):
            if not isinstance(command, Reply):
                device.submit(command, now_s)
        times = [device.next_completion_s(), kernel.next_wake_s(), *arrivals[:1]]
        known = [time for time in times if time is not None]
        if not known:
            break
        now_s = max(now_s, min(known))
    assert kernel.counters.preemptions > 0, "the world is tight"
    return {
        pid: [output.time_s for output in process.out if hasattr(output, "time_s")]
        for pid, process in sorted(kernel.zombies.items())
    }


def test_the_fast_device_keeps_the_times_of_the_strict_one() -> None:
    cost = CostModel(base_s=0.01, prefill_token_s=1e-4, in_page_s=2e-3, out_page_s=1e-3)
    strict = SimDevice(24, 200, page_tokens=16, cost=cost)
    rate = strict.info().prefill_tokens_per_s
    fast = FastDevice(cost, 24, 200, page_tokens=16, prefill_tokens_per_s=rate)
    times = token_times(strict, 60.0)
    assert strict.violations == []
    assert len(times) == 12
    assert times == token_times(fast, 60.0)


@pytest.mark.parametrize(("forward_s", "copy_s"), [(0.0, 0.002), (0.002, 0.0)])
def test_copies_slow_the_forwards_beside_them(forward_s: float, copy_s: float) -> None:
    """Whichever of the two begins first: 10 ms of work against a copy of 4 ms."""
    cost = CostModel(base_s=0.01, copy_base_s=0.0, out_page_s=1e-3)
    device = FastDevice(cost, 24, 200, copy_contention=0.5)
    commands = {forward_s: Forward(Ticket(1), ()), copy_s: CopyOut(Ticket(2), (None,) * 4)}  # type: ignore[arg-type]
    for at_s, command in sorted(commands.items()):
        device.submit(command, at_s)
    shared_s = 0.004 - max(0.0, forward_s - copy_s)
    assert device.busy_s == pytest.approx(0.01 + 0.5 * shared_s)
    assert len(device.poll(forward_s + device.busy_s - 1e-6)) == 1
    assert device.next_completion_s() == pytest.approx(forward_s + device.busy_s)


def test_contention_is_the_devices_unless_it_is_given() -> None:
    for given, slows in ((None, True), (0.0, False)):
        machine = SimMachine(SimOptions(copy_contention=given))
        assert (machine.roofline.copy_contention > 0) is slows


def test_a_prompt_is_computed_while_what_is_before_it_is_loaded() -> None:
    """The load is hidden behind a longer prompt, unless that is switched off."""
    known, other = tuple(range(4000)), tuple(i % VOCAB for i in range(6000, 0, -1))
    waited_s = []
    for covers, tp in ((True, 1), (False, 1), (True, 2)):
        machine = SimMachine(
            SimOptions(
                prefix_cache=True, kv_pages=400, link_gb_per_s=10.0, tp=tp, cover_loads=covers
            )
        )
        times = []
        for prompt in (known, other, (*known, *range(2000))):
            machine.spawn(prompt, max_tokens=1)
            began_s = machine.now_s
            machine.advance(began_s + 20.0)
            (ended,) = machine.take_ended()
            times.append(ended.times_s[0] - began_s)
        assert ended.cached_host_tokens > 3000
        waited_s.append(times[-1])
    link_s = ended.cached_host_tokens * machine.roofline.model.kv_token_bytes / 10e9
    assert waited_s[1] - waited_s[0] == pytest.approx(7 / 8 * link_s, rel=0.05)
    assert waited_s[2] > link_s, "of several GPUs as one"


def test_weights_of_tenants_reach_the_scheduler() -> None:
    machine = SimMachine(SimOptions(weights={"a": 3.0}))
    assert machine._kernel.scheduler.queues.shares.weights == {"a": 3.0}


def test_a_lone_request_takes_what_the_roofline_says() -> None:
    machine = SimMachine(SimOptions(policy="fcfs"))
    machine.spawn(tuple(range(500)), max_tokens=3)
    machine.advance(10.0)
    machine.advance(10.0)
    (ended,) = machine.take_ended()
    roofline = machine.roofline
    first_s = roofline.forward_s(500, 0, 500, 500 * 501 // 2)
    second_s = first_s + roofline.forward_s(0, 1, 501, 501)
    assert ended.complete and not ended.refused
    assert ended.times_s[:2] == pytest.approx((first_s, second_s))
    assert machine.living == 0 and machine.now_s <= 10.0


def test_time_passes_while_nothing_happens() -> None:
    requests = (Request(0.0, 50, 2), Request(30.0, 50, 2))
    result = run(Trace("gap", "shared", requests), make_setup("fcfs"))
    first, second = result.outcomes
    assert second.ttft_s == pytest.approx(first.ttft_s)
    assert second.first_s > 7.5  # the window runs the trace at four times its speed


@pytest.mark.parametrize("policy", ["fcfs", "retract", "progress"])
def test_every_request_ends_and_figures_agree(policy: str) -> None:
    result = run(make_trace(), make_setup(policy))
    assert result.requests == 40 and result.left_out == 0
    for outcome in result.outcomes:
        assert outcome.finished != outcome.refused
        if outcome.finished:
            assert outcome.tokens == outcome.request.output_tokens
    served = [o for o in result.outcomes if o.finished]
    assert result.rejected == 40 - len(served)
    assert result.goodput == sum(o.good for o in result.outcomes) / 40 <= result.attained
    total = sum(o.tokens for o in served)
    assert result.output_tokens_per_s == pytest.approx(total / result.makespan_s)
    assert next(iter(result.as_json())) == "policy" and "outcomes" not in result.as_json()
    if policy != "progress":
        assert result.swap_gb == 0 and result.rejected == 0


def test_overload_is_refused_by_progress_and_counts_as_failure() -> None:
    setup = replace(make_setup(), window=Window(rate_scale=200.0))
    result = run(make_trace(400, prompt=1500), setup)
    assert result.rejected > 0
    assert result.goodput <= 1 - result.rejected / result.requests + 1e-9


def test_too_long_requests_are_left_out_for_all() -> None:
    trace = make_trace(10)
    long = replace(trace, requests=(*trace.requests, Request(9.0, 2100, 100)))
    result = run(long, make_setup())
    assert (result.requests, result.left_out) == (10, 1)
    with pytest.raises(ValueError, match="no request"):
        run(long, make_setup(kv_pages=5))


def test_what_has_not_finished_at_the_end_is_not_good() -> None:
    trace = Trace("long", "shared", (Request(0.0, 50, 2000),))
    result = run(trace, replace(make_setup("fcfs"), drain_s=1.0))
    (outcome,) = result.outcomes
    assert outcome.attained and not outcome.finished and not outcome.good
    assert 10 < outcome.tokens < 2000 and result.goodput == 0


def test_shared_prefixes_save_prefill() -> None:
    requests = tuple(Request(i * 0.5, 1200, 5, blocks=(1, 2, 100 + i)) for i in range(6))
    trace = Trace("shared", "mooncake", requests)
    off, on = (run(trace, make_setup(kv_pages=400, prefix_cache=cache)) for cache in (False, True))
    assert on.outcomes[0].ttft_s == off.outcomes[0].ttft_s
    assert all(
        o.ttft_s < 0.5 * f.ttft_s for o, f in zip(on.outcomes[1:], off.outcomes[1:], strict=True)
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"policy": "magic"}, "no policy 'magic'"),
        ({"device": "abacus"}, "no 'abacus'"),
        ({"kv_pages": 1}, "holds no process"),
        ({"tunables": {"speed": 3.0}}, "tunables"),
        ({"link_gb_per_s": 0.0}, "link must be faster"),
        ({"host_pools": -1.0}, "host_pools"),
        ({"model": "llama-3.3-70b"}, "does not fit"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SimMachine(SimOptions(**options))  # type: ignore[arg-type]


DIGEST = (
    "from tokenix.tests.bench_sim.worlds import make_setup, make_trace\n"
    "from tokenix.bench.simulate import run\n"
    "r = run(make_trace(), make_setup(prefix_cache=True))\n"
    "print(r.digest, r.ttft_p95_s, r.swap_gb)"
)


def test_equal_runs_have_equal_digests_in_every_process() -> None:
    def once(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / ".lib")}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert once("1") == once("2") != ""


def strip(results: list[Result]) -> list[dict[str, object]]:
    return [result.as_json() for result in results]


def test_processes_give_the_same_results_in_order() -> None:
    trace = make_trace(12)
    setups: list[Setup] = [make_setup("fcfs"), make_setup("progress")]
    told: list[tuple[int, float]] = []
    alone = run_all(trace, setups, 1, lambda index, share: told.append((index, share)))
    assert strip(run_all(trace, setups, 2)) == strip(alone)
    assert [share for index, share in told if index == 1][-1] == 1.0


def test_an_interrupted_experiment_leaves_no_runs_behind() -> None:
    """Not even those under way, which may take minutes."""
    trace = make_trace(count=4000)
    began = []

    def interrupt(index: int, share: float) -> None:
        began.append(index)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(trace, [make_setup()] * 4, processes=2, progress=interrupt)
    assert began
    give_up_s = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < give_up_s:
        time.sleep(0.02)  # the pool's own thread may be the one that collects them
    assert not multiprocessing.active_children()
