"""What `make gpu-check` says of several GPUs, on fake ones."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.driver")

from tokenix.drivers.cuda.check.ranks import check_ranks
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup
from tokenix.tests.cuda import fake as fakes

fakes.load()
parts = pytest.importorskip("tokenix.tests.cuda_ranks.parts")

pytestmark = pytest.mark.timeout(400)
"""Processes that import torch, on a busy machine."""

SMALL = Setup(
    (),
    model=replace(parts.CONFIG, kv_heads=2),
    kind="f32",
    kind_kv="f32",
    batches=(1, 2),
    context=80,
    real=False,
    kernels_by=fakes.twin_kernels,
    dense_by=parts.Torch,
    backend="gloo",
)


def test_several_gpus_are_compared_with_one():
    fakes.load().reset()
    fakes.load().machine(devices=parts.GPUS)
    report = Report(lambda line: None)
    check_ranks(report, SMALL)
    found = {line.name: line for line in report.lines}
    assert found["GPUs"].value == 4
    assert found["2 GPUs: log probabilities apart"].value < 1e-4
    for batch in (1, 2):
        name = f"2 GPUs: decode, batch {batch}, 2 layers"
        assert found[name].value > 0 and found[f"{name}: times one GPU"].value > 0
    assert not any(line.good is False for line in report.lines)


def test_one_gpu_is_told_and_nothing_else():
    fakes.load().reset()
    report = Report(lambda line: None)
    check_ranks(report, SMALL)
    assert [(line.name, line.value) for line in report.lines] == [("GPUs", 1)]
