"""/metrics: names and labels that dashboards rely on, values that are those of the kernel."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from tokenix.gateway.metrics import render
from tokenix.gateway.traffic import Traffic
from tokenix.kernel.calls import Kill, Metrics, Principal, Signal, Spawn, Vmstat, Wait
from tokenix.sched.entity import Qos, Reader
from tokenix.tests.sim.machine import SimMachine

GOLDEN = Path(__file__).parent / "metric_names.txt"
DASHBOARD = Path(__file__).parents[2] / "gateway" / "grafana" / "tokenix.json"
PROMPT = tuple(range(40, 53))
NAME = re.compile(r"\b(?:tokenix|vllm)[_:][a-z0-9_]+")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def machine() -> SimMachine:
    """Streams that preempted each other; all classes; two tenants; one that still runs."""
    machine = SimMachine(16, 64)
    for number in range(5):
        prompt = tuple(range(number, number + 12))
        machine.spawn(prompt, 40, reader=Reader(tokens_per_s=1.0))
    machine.run(until_s=0.2)
    machine.call(Kill(machine.spawn(PROMPT, 5), Signal.KILL))
    machine.run()
    for qos in Qos:
        machine.call(Spawn(PROMPT, max_tokens=3, qos=qos), Principal("other"))
    machine.run()
    machine.call(Spawn(PROMPT, max_tokens=40, reader=Reader(tokens_per_s=1.0)))
    machine.run(until_s=machine.now_s + 0.05)
    return machine


def traffic() -> Traffic:
    traffic = Traffic()
    traffic.note_request("/v1/chat/completions", "POST", 200)
    traffic.note_request("/v1/models/smollm2", "GET", 200)
    traffic.note_request("/../../etc", "BREW", 0)
    traffic.note_disconnect("/v1/completions")
    return traffic


def shown(machine: SimMachine, compat: str = "") -> str:
    counted = traffic()
    with counted.stream():
        body, content_type = render(
            machine.call(Metrics()), machine.call(Vmstat()), "smollm2", compat, counted
        )
    assert content_type.startswith("text/plain; version=0.0.4")
    return body.decode()


def samples(families: Iterable[Metric]) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{sample.name} is there twice"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    """Summed over all samples with these labels."""
    mine = [v for (n, own), v in found.items() if n == name and labels.items() <= own]
    assert mine, f"no {name} {labels}"
    return sum(mine)


def test_names_types_and_labels_are_what_they_were(machine: SimMachine) -> None:
    """Dashboards and alerts depend on them: change the list on purpose only."""
    lines = []
    for family in parse(shown(machine, "vllm")):
        assert family.documentation, f"{family.name} has a help text"
        labels = {name for s in family.samples for name in s.labels} - {"le"}
        lines.append(f"{family.name} {family.type} {' '.join(sorted(labels))}".rstrip())
    assert "\n".join(lines) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_names_follow_the_rules(machine: SimMachine) -> None:
    for family in parse(shown(machine)):
        assert family.name.startswith("tokenix_")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        assert not re.search(r"_(ms|mb|percent|s)(_|$)", family.name), "base units, in full"


def test_values_are_those_of_the_usages(machine: SimMachine) -> None:
    found = samples(parse(shown(machine)))
    zombies = [*machine.kernel.zombies.values()]
    usages = [process.usage for process in zombies]
    (running,) = machine.kernel.processes.values()
    made = sum(usage.output_tokens for usage in usages) + running.entity.delivered_tokens
    assert value(found, "tokenix_generation_tokens_total") == made
    preempted = sum(usage.preemptions for usage in usages)
    assert value(found, "tokenix_preemptions_total") == preempted > 0
    assert value(found, "tokenix_preemption_pause_seconds_count") == preempted
    seconds = value(found, "tokenix_e2e_request_latency_seconds_sum")
    assert seconds == pytest.approx(sum(usage.total_s for usage in usages))
    assert value(found, "tokenix_requests_finished_total", finished_reason="length") == 9
    assert value(found, "tokenix_requests_finished_total", finished_reason="killed") == 1
    for qos in Qos:
        count = value(
            found, "tokenix_time_to_first_token_seconds_count",
            tenant="other", **{"class": qos.name.lower()},
        )  # fmt: skip
        assert count == 1


def test_buckets_add_up(machine: SimMachine) -> None:
    for family in parse(shown(machine, "vllm")):
        if family.type != "histogram":
            continue
        counts: dict[frozenset[tuple[str, str]], list[float]] = {}
        for sample in family.samples:
            own = frozenset((k, v) for k, v in sample.labels.items() if k != "le")
            if sample.name.endswith(("_bucket", "_count")):
                counts.setdefault(own, []).append(sample.value)
        for series in counts.values():
            assert series == sorted(series) and series[-1] == series[-2], family.name


def test_gauges_are_what_vmstat_says(machine: SimMachine) -> None:
    found, figures = samples(parse(shown(machine))), machine.call(Vmstat())
    for tier, total in (("device", "frames"), ("host", "host")):
        places = value(found, "tokenix_kv_pages", tier=tier)
        assert places == figures[f"{total}.total"]
    assert value(found, "tokenix_processes", state="running") == figures["processes.running"]
    assert value(found, "tokenix_processes", state="zombie") == len(machine.kernel.zombies)
    lead = value(found, "tokenix_reader_lead_seconds", streams="running", stat="min")
    assert lead == figures["lead.running_min_s"]
    assert value(found, "tokenix_swapped_pages_total", lane="out") == figures["swap.pages_out"]


def test_vllm_s_names_are_sums_of_ours(machine: SimMachine) -> None:
    assert "vllm:" not in shown(machine)
    found = samples(parse(shown(machine, "vllm")))
    for theirs, ours in (
        ("time_to_first_token_seconds_sum", "time_to_first_token_seconds_sum"),
        ("inter_token_latency_seconds_count", "inter_token_latency_seconds_count"),
        ("generation_tokens_total", "generation_tokens_total"),
        ("prefix_cache_hits_total", "prefix_cache_hits_total"),
        ("num_preemptions_total", "preemptions_total"),
    ):
        mine = value(found, f"tokenix_{ours}")
        assert value(found, f"vllm:{theirs}", model_name="smollm2") == pytest.approx(mine)
    assert value(found, "vllm:num_requests_running") == 1
    assert value(found, "vllm:request_success_total", finished_reason="abort") == 1
    assert value(found, "vllm:request_success_total", finished_reason="length") == 9


def test_openmetrics_is_spoken_to_those_who_ask(machine: SimMachine) -> None:
    report, figures = machine.call(Metrics()), machine.call(Vmstat())
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    body, content_type = render(report, figures, "smollm2", accept=accept)
    assert content_type.startswith("application/openmetrics-text")
    plain, _ = render(report, figures, "smollm2")
    assert samples(parse_open(body.decode())) == samples(parse(plain.decode()))
    _, content_type = render(report, figures, "smollm2", "vllm", accept=accept)
    assert content_type.startswith("text/plain"), "vLLM's names have a colon"


def test_paths_of_clients_make_no_labels(machine: SimMachine) -> None:
    found = samples(parse(shown(machine)))
    name = "tokenix_http_requests_total"
    assert value(found, name, path="/v1/models", method="GET", status="200") == 1
    assert value(found, name, path="other", method="other", status="499") == 1
    assert value(found, "tokenix_http_streams") == 1
    assert value(found, "tokenix_http_disconnects_total", path="/v1/completions") == 1


def test_labels_cannot_break_out() -> None:
    machine = SimMachine(16, 64)
    hostile = 'a"} 1\nb\\'
    pid = machine.call(Spawn(PROMPT, max_tokens=1), Principal(hostile))
    machine.run()
    found = samples(parse(shown(machine)))
    assert value(found, "tokenix_generation_tokens_total", tenant=hostile) == 1
    machine.call(Wait(pid))


def test_an_idle_machine_has_something_to_show() -> None:
    found = samples(parse(shown(SimMachine(16, 0), "vllm")))
    assert value(found, "tokenix_kv_cache_usage_ratio") == 0
    assert value(found, "vllm:request_success_total") == 0


def test_the_dashboard_asks_for_what_there_is(machine: SimMachine) -> None:
    there = {sample.name for family in parse(shown(machine)) for sample in family.samples}
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]  # fmt: skip
    used = {name for expr in asked for name in NAME.findall(expr)}
    assert used and used <= there, used - there
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
