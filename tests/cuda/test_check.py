"""`make gpu-check` without a GPU: every part but the compilers, on the fake one; and what it says
where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.check.case import WRITTEN, Case
from tokenix.drivers.cuda.check.kernels import check_attention, check_kernels
from tokenix.drivers.cuda.check.link import check_launches, check_link
from tokenix.drivers.cuda.check.model import check_model
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup
from tokenix.drivers.cuda.kernels.pages import Page
from tokenix.drivers.cuda.kernels.registry import Shape
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.fake import CpuDense, Twin, twin_kernels
from tokenix.tests.cuda.twins import TWINS

SHAPES = (
    Shape("f32", "f32", 2, 2, 64),
    Shape("f16", "f16", 6, 2, 64, bias=True),
    Shape("bf16", "bf16", 4, 1, 80, norm=True),
)


def twins_of(driver, shape):
    frames = FrameShape(2, shape.kv_heads, Page(shape.kv, shape.dim))
    return {op: Twin(op, frames, shape.heads, shape.x) for op in TWINS}


SMALL = Setup(
    SHAPES,
    attention=((2, 40),),
    copy_bytes=1 << 16,
    link_bytes=1 << 16,
    pieces=(4096, 16384),
    times=2,
    model=rig.TINY,
    kind="f32",
    kind_kv="f32",
    batches=(1, 2),
    context=48,
    swapped_tokens=64,
    real=False,
    kernels_of=twins_of,
    kernels_by=twin_kernels,
    dense_by=CpuDense,
)


@pytest.fixture
def report():
    return Report(lambda line: None)


def figures(report):
    return {line.name: line.value for line in report.lines}


def test_twins_do_what_their_oracles_do(driver, report):
    """Here the twins of the fake are what is checked; on a GPU it is the kernels."""
    check_kernels(report, driver, SMALL, seeds=2)
    assert len(report.lines) == len(SHAPES) * len(WRITTEN)
    assert report.missed() == []


@pytest.mark.parametrize("op", WRITTEN)
def test_a_wrong_kernel_is_found(driver, monkeypatch, op):
    """It leaves its output as it was, which is not what the oracle writes."""
    monkeypatch.setitem(TWINS, op, lambda twin, grid, values: None)
    launcher = SMALL.launcher(driver, SHAPES[1])
    case = Case(SHAPES[1], 0)
    assert case.error(op, case.compute(op, driver, launcher)) > 1
    SMALL.close(driver, launcher)


def test_rates_are_told(driver, report, fake):
    check_attention(report, driver, SMALL)
    check_link(report, driver, SMALL)
    with fake.watched():
        check_launches(report, driver, SMALL)
    found = figures(report)
    assert all(value > 0 for value in found.values())
    assert {"batch 2, context 40", "16 KiB both ways, of the slower one", "kept block"} <= {*found}
    assert (fake.used_bytes, fake.pinned_bytes, rig.failures()) == (0, 0, [])


def test_a_model_is_measured(fake, report):
    check_model(report, SMALL)
    found = figures(report)
    assert all(value > 0 for value in found.values())
    for name in ("decode, batch 2: times the roofline", "64 tokens in", "prefill",
                 "plain torch, batch 1: times ours"):  # fmt: skip
        assert name in found
    assert (fake.used_bytes, rig.failures()) == (0, [])


def test_a_report_tells_what_was_missed(tmp_path):
    lines = []
    report = Report(lines.append)
    report.section("rates")
    report.add("fast enough", 2.0, "GB/s", least=1.0)
    report.add("too slow", 2.0, "GB/s", least=3.0, most=4.0)
    report.add("of no bound", 2.0)
    report.fail("broken", "why")
    assert [line.name for line in report.missed()] == ["too slow", "broken"]
    assert [("MISSED" in line, "ok" in line) for line in lines[1:4]] == [
        (False, True), (True, False), (False, False),
    ]  # fmt: skip
    report.save(tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found[1]["bound"] == ">= 3 <= 4" and found[1]["section"] == "rates"


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_2():
    command = [sys.executable, "-m", "tokenix.drivers.cuda.check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-check: no NVIDIA driver")
    assert len(done.stderr.splitlines()) == 1
