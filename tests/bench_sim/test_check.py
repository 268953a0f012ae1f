"""The simulated fcfs against measured runs of vLLM."""

from pathlib import Path

import pytest

from tokenix.bench import calibrate
from tokenix.bench.calibrate import errors_of, read_measured, simulate_measured, worst_error
from tokenix.bench.metrics import percentile
from tokenix.bench.traces import TraceError
from tokenix.syscalls.simulation import builtin

DATA = Path(calibrate.__file__).parent / "data"
RTX_4090 = DATA / "vllm_measured_rtx4090_llama31_8b.csv"
RTX_PRO = DATA / "vllm_measured_rtxpro6000_llama31_8b.csv"


def test_first_waits_are_as_measured() -> None:
    """A short part of the next tests: nobody waits for those who arrive later."""
    measured = read_measured(RTX_4090)
    result = simulate_measured(measured, builtin(), duration_s=3.4)
    waits = [o.ttft_s or 0.0 for o in result.outcomes]
    assert len(waits) > 30
    for percent in (90, 95, 99):
        want = percentile(measured.ttft_s[: len(waits)], percent)
        assert percentile(waits, percent) == pytest.approx(want, rel=0.1)


@pytest.mark.slow
def test_steps_of_a_roomy_device_are_within_six_percent() -> None:
    measured = read_measured(RTX_PRO)
    errors = errors_of(measured, simulate_measured(measured, builtin()))
    assert worst_error(errors) < 0.06, errors
    assert calibrate.mean_error(errors) < 0.03


@pytest.mark.slow
def test_preemption_on_a_full_device_is_within_three_percent() -> None:
    measured = read_measured(RTX_4090)
    result = simulate_measured(measured, builtin())
    errors = errors_of(measured, result)
    assert worst_error(errors) < 0.03, errors
    assert result.preemptions > 100, "the run is about preemption"


def test_the_file_name_tells_the_settings() -> None:
    measured = read_measured(RTX_4090)
    assert (measured.device, measured.kv_pages, measured.max_running) == ("rtx4090", 2588, 256)
    given = read_measured(RTX_4090, device="h100", kv_pages=100, max_running=8)
    assert (given.device, given.kv_pages, given.max_running) == ("h100", 100, 8)


def test_what_is_not_a_measured_run_is_said(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n")
    with pytest.raises(TraceError, match="no column 'ttft_s'"):
        read_measured(path)
    path.write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,decode_s\n0,5,5,0.1,0.2\n")
    with pytest.raises(TraceError, match="does not tell the device"):
        read_measured(path)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("0,10,5,nan,1\n", "row 1 cannot be read: ttft_s must be positive"),
        ("0,10,5,0,1\n", "row 1 cannot be read: ttft_s must be positive"),
        ("0,10,5,1,1\n1,10,5,1,-2\n", "row 2 cannot be read: decode_s must be positive"),
        ("0,10,5,1,\n", "row 1 cannot be read"),
        ("0,10,5,1\n", "row 1 cannot be read"),
        ("0,10,1,1,1\n", "no request has a second token"),
    ],
)
def test_times_that_cannot_be_compared(tmp_path: Path, rows: str, why: str) -> None:
    path = tmp_path / "rtx4090.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,decode_s\n" + rows)
    with pytest.raises(TraceError, match=why):
        read_measured(path)


def test_calibration_finds_the_device_that_was_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run 'measured' on a slower device: the search must move towards it."""
    path = tmp_path / "rtx4090.csv"
    rows = [f"{i * 0.4},{300 + 50 * (i % 5)},{20 + i % 9}" for i in range(12)]
    head = "arrival_s,prompt_tokens,output_tokens,ttft_s,decode_s\n"
    path.write_text(head + "".join(f"{row},0.1,0.1\n" for row in rows))
    catalog = builtin()
    slow = calibrate.replace(
        catalog.gpu("rtx4090"), bandwidth_efficiency=0.72, compute_efficiency=0.8
    )
    truth = simulate_measured(
        read_measured(path), calibrate.replace(catalog, gpus={"rtx4090": slow})
    )
    lines = [
        f"{row},{outcome.ttft_s},{outcome.last_s - outcome.first_s}\n"  # type: ignore[operator]
        for row, outcome in zip(rows, truth.outcomes, strict=True)
    ]
    path.write_text(head + "".join(lines))
    measured = read_measured(path)
    before = worst_error(errors_of(measured, simulate_measured(measured, catalog)))
    gpu, errors = calibrate.calibrate(measured, catalog, rounds=4)
    assert worst_error(errors) < 0.5 * before
    assert gpu.bandwidth_efficiency == pytest.approx(0.72, rel=0.05)
    text = calibrate.preset_toml(gpu, "rtx4090", path, errors)
    preset = tmp_path / "fitted.toml"
    preset.write_text(text)
    from tokenix.syscalls.simulation import load_presets

    assert load_presets(preset).gpu("rtx4090-fitted").bandwidth_efficiency == pytest.approx(
        gpu.bandwidth_efficiency
    )
