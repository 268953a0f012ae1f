"""The demo itself, small, on the real model. Times depend on the machine and are not judged; stalls
only where the machine kept its own pace, as one that halves it makes any reader wait."""

import json

import pytest

from tokenix.bench.demo import POLICIES, DemoOptions, check_policies
from tokenix.cli.main import main


@pytest.mark.timeout(300)
def test_quick_demo(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["demo", "--quick", "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)

    assert code == (1 if found["problems"] else 0), printed.err
    assert list(found["policies"]) == list(POLICIES)
    assert found["outputs_identical"] is True
    assert found["outputs_compared"] >= found["workload"]["long_streams"]
    assert found["pool"]["long_streams_need_pages"] > 1.2 * found["pool"]["device_pages"]
    for name, figures in found["policies"].items():
        assert figures["failed"] == 0, name
        assert 0 < figures["output_tokens"], name
        assert 0 <= figures["goodput"] <= 1, name
        assert figures["ttft_all_p50_s"] <= figures["ttft_all_p95_s"] <= figures["ttft_all_p99_s"]
    ours = found["policies"]["progress"]
    if found["machine"]["pace_spread"] < 1.5:
        assert ours["visible_stalls"] == 0
    assert ours["wasted_tokens"] == 0, "what is paused is swapped, not computed again"
    assert ours["preemptions"] > 0
    assert {"ratios", "targets", "workload", "machine", "model", "took_s"} <= found.keys()


def test_policies_are_checked() -> None:
    assert check_policies(()) == POLICIES
    assert check_policies(("progress", "fcfs", "progress")) == ("progress", "fcfs")
    with pytest.raises(ValueError, match="no policy 'lifo'"):
        check_policies(("lifo",))
    assert DemoOptions(quick=True).shape.long_tokens < DemoOptions().shape.long_tokens
