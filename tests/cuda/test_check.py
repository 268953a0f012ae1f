"""`make gpu-check` without a GPU: every part but the compilers, on the fake one; and what it says
where there is none."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.check import __main__ as check
from tokenix.drivers.cuda.check import steptime
from tokenix.drivers.cuda.check.__main__ import OPS, PARTS, run, run_each
from tokenix.drivers.cuda.check.case import WRITTEN, Case
from tokenix.drivers.cuda.check.kernels import (
    TOOLS,
    check_attention,
    check_kernels,
    check_sanitizer,
)
from tokenix.drivers.cuda.check.link import check_launches, check_link
from tokenix.drivers.cuda.check.model import check_model
from tokenix.drivers.cuda.check.numbers import check_numbers, divergence
from tokenix.drivers.cuda.check.report import Report, read_lines
from tokenix.drivers.cuda.check.setup import SHAPES as REAL_SHAPES
from tokenix.drivers.cuda.check.setup import Setup, Sizes, Subject, every_kernel, shipped_subject
from tokenix.drivers.cuda.kernels.abi import FAULT
from tokenix.drivers.cuda.kernels.pages import DIMS, Page
from tokenix.drivers.cuda.kernels.registry import Shape, find_recipes
from tokenix.drivers.cuda.probe import find_gpu
from tokenix.tests.cuda import rig, twins
from tokenix.tests.cuda.fake import CpuDense, Twin, twin_kernels
from tokenix.tests.cuda.twins import TWINS
from tokenix.tests.device.machine import words

SHAPES = (
    Shape("f32", "f32", 2, 2, 64),
    Shape("f16", "f16", 6, 2, 64, bias=True),
    Shape("bf16", "bf16", 4, 1, 80, norm=True),
)


def subject():
    return Subject(rig.TINY, rig.WEIGHTS, words(300, rig.TINY.vocab_tokens))


def twins_of(driver, shape):
    frames = FrameShape(2, shape.kv_heads, Page(shape.kv, shape.dim))
    return {op: Twin(op, frames, shape.heads, shape.x) for op in TWINS}


def offers_of(driver, shape, op):
    yield "twin", lambda: twins_of(driver, shape)[op]


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
    product=64,
    swapped_tokens=64,
    subject=subject,
    sizes=Sizes(windows=3, prefilled=21, decoded=6),
    narrow=("f16",),
    real=False,
    seeds=1,
    demo=(sys.executable, "-c", "print('all streams were in time')"),
    whole=(sys.executable, "-c", """print('[{"name": "GPU idle", "value": 0.5, "most": 0.05}]')"""),
    offers_of=offers_of,
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
    for op in OPS:
        check_kernels(report, driver, SMALL, op, seeds=(5, 6))
    assert len(report.lines) == len(SHAPES) * len(WRITTEN)
    assert report.missed() == []


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_pages_of_codes_are_compared_by_their_numbers(kind):
    case = Case(Shape(kind, "bf16", 2, 1, 64), 3)
    for op in ("append", "decode"):
        found = case.expect(op)
        assert case.error(op, found) == 0
    assert case.error("append", {**case.expect("append"), "arena": case.arrays["arena"]}) > 1
    (row,) = np.flatnonzero(np.array(case.arrays["positions"]) == 79)
    parts = found["parts"].reshape(len(case.arrays["positions"]), -1)
    parts[row, 5] += 1
    assert case.error("decode", found) > 1


def test_every_kernel_of_the_registry_is_checked(driver):
    """Of each op all techniques, all formats of pages, all dims."""
    recipes = [
        (shape, op, found) for shape in REAL_SHAPES for op, found in find_recipes(shape).items()
    ]
    techniques = {(op, recipe.technique) for _, op, found in recipes for recipe in found}
    assert techniques == {
        ("append", "numba"), ("append", "cpp"), ("decode", "numba"), ("decode", "mma"),
        ("decode", "cpp"), ("combine", "numba"), ("prefill", "mma"), ("gate", "numba"),
        ("sample", "numba"),
    }  # fmt: skip
    assert {shape.kv for shape in REAL_SHAPES} == {"f32", "f16", "bf16", "int8", "fp8", "int4"}
    assert {shape.dim for shape in REAL_SHAPES} == set(DIMS)
    names = [name for name, _ in every_kernel(driver, REAL_SHAPES[0], "decode")]
    assert names == [recipe.technique for recipe in find_recipes(REAL_SHAPES[0])["decode"]]


def test_a_kernel_that_fails_is_a_line_and_others_follow(driver, report, fake):
    def offers(driver, shape, op):
        yield "refused", lambda: 1 / 0
        yield from offers_of(driver, shape, op)

    fake.fail("cuMemAlloc_v2", 2, after=2)  # the first case of a kernel that is there
    check_kernels(report, driver, replace(SMALL, offers_of=offers), "combine", seeds=(1,))
    failed = [line.value for line in report.missed()]
    assert failed[0] == "ZeroDivisionError: division by zero"
    assert sum("cuMemAlloc" in why for why in failed) == 1
    assert len(report.lines) - len(failed) == len(SHAPES) - 1, "and those behind it are right"
    assert fake.used_bytes == 0


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
    assert {"batch 2, context 40, twin", "16 KiB both ways, of the slower one", "kept block"} <= {
        *found
    }
    assert (fake.used_bytes, fake.pinned_bytes, rig.failures()) == (0, 0, [])


def test_a_model_is_measured(fake, report):
    check_model(report, SMALL)
    found = figures(report)
    assert found.pop("steps that are not captured") == 0
    assert "no profiler" in found.pop("decode, batch 1: kernels of a step")
    assert all(value > 0 for value in found.values())
    for name in ("decode, batch 2: times the roofline", "64 tokens in", "prefill",
                 "in by layers, page by page: times the link's",
                 "16 tokens behind 64 that are loaded, layer by layer beside the load",
                 "plain torch, batch 1: times ours"):  # fmt: skip
        assert name in found
    assert (fake.used_bytes, rig.failures()) == (0, [])


@pytest.mark.timeout(400)
def test_what_a_model_says_is_compared_with_the_cpu(fake, report):
    check_numbers(report, SMALL)
    assert figures(report) == {
        "tokens": 18, "greedy tokens in float32 unlike the CPU's": 0,
        "KL of f16 logits, mean": figures(report)["KL of f16 logits, mean"],
        "KL of f16 logits, worst": figures(report)["KL of f16 logits, worst"],
        "tokens in f16 changed by swap": 0, "tokens in f16 changed by recompute": 0,
    }  # fmt: skip
    assert 0 < figures(report)["KL of f16 logits, mean"] < 1e-4
    assert report.missed() == [] and (fake.used_bytes, rig.failures()) == (0, [])


def test_what_a_model_says_wrongly_is_counted(fake, report, monkeypatch):
    """Attention that reads the page before: on the GPU alone."""
    plain = TWINS["decode"]

    def astray(twin, grid, values):
        plain(twin, grid, {**values, "positions": values["positions"] + 4})

    monkeypatch.setitem(TWINS, "decode", astray)
    check_numbers(report, SMALL)
    assert {line.name for line in report.missed()} >= {
        "greedy tokens in float32 unlike the CPU's", "KL of f16 logits, mean",
    }  # fmt: skip


def test_a_divergence_is_that_of_distributions():
    wanted = np.log(np.array([[0.5, 0.25, 0.25]], np.float32)) + 3
    found = np.log(np.array([[0.25, 0.5, 0.25]], np.float32)) - 5
    assert (
        np.allclose(divergence(wanted, found), 0.25 * np.log(2)) and divergence(found, found) == 0
    )


def test_the_shipped_text_is_long_enough():
    sizes = Setup(REAL_SHAPES).sizes
    assert len(shipped_subject().tokens) >= sizes.windows * (sizes.prefilled + sizes.decoded)


def test_kernels_of_a_step_are_told_by_their_time(report):
    def average(key, micros, count):
        return SimpleNamespace(key=key, self_device_time_total=micros, count=count)

    many = [average(f"small {i}", 1.0, 2) for i in range(20)]
    many.insert(5, average("void  gemm<a,\n b>(int)", 400.0, 64))
    steptime.tell_kernels(report, "batch 2", 2, [*many, average("cudaLaunchKernel", 0.0, 99)])
    found = figures(report)
    assert found["batch 2: kernels of a step"] == 210.0
    assert found["  32 x gemm<a, b>(int)"] == 200.0
    assert len(found) == 2 + steptime.MOST_LINES
    assert [value for name, value in found.items() if name.endswith("others")] == [4.5]


def test_each_tool_of_the_sanitizer_is_told(report, monkeypatch, tmp_path):
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        "#!/bin/sh\n"
        'echo "========= ERROR SUMMARY: of $2"; test "$2" = racecheck && exit 9\n'
        'for word; do test "$word" = gate && exit 0; done; exit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    check_sanitizer(report, 3)
    assert figures(report) == {f"{tool}, exit code": 9 * (tool == "racecheck") for tool in TOOLS}
    assert [line.unit for line in report.missed()] == ["ERROR SUMMARY: of racecheck"]


def test_a_row_that_fails_is_no_figure(fake, report, monkeypatch):
    def spoil(twin, grid, values):
        twins.flat(values["tokens"], "i4", grid[0])[:] = FAULT

    monkeypatch.setitem(TWINS, "sample", spoil)
    check_model(report, SMALL)
    wrong = {line.name: line.value for line in report.missed()}
    assert {"decode, batch 1", "decode, batch 2"} <= set(wrong)
    assert (
        "a row has failed" in wrong["decode, batch 1"] and "not finite" in wrong["decode, batch 1"]
    )


def test_all_parts_run_one_after_another(fake, report):
    """As a GPU would run them, but for the compilers and the sanitizer."""
    with fake.watched():  # a launch of nothing is none that a twin has arguments for
        run(report, find_gpu(), ("launches",), 1, SMALL)
    run(report, find_gpu(), [part for part in PARTS if part != "launches"], 1, SMALL)
    assert report.missed() == []
    assert "exit code" in figures(report) and rig.failures() == []


STUB = """
import json, os, sys, time
part, file = sys.argv[2], sys.argv[6]
if part == "combine":
    time.sleep(1000)
line = {"section": part, "name": "found", "value": 1.0, "good": part != "prefill"}
with open(file, "w") as out:
    json.dump([line], out)
if part == "decode":
    os.abort()
sys.exit(part in ("prefill", "sample"))
"""
"""A part of the check that finds one figure, and then goes wrong in its own way."""


def test_a_part_that_dies_or_hangs_ends_alone(monkeypatch, tmp_path, fake):
    report = Report(lambda line: None, tmp_path / "all.json")
    program = [sys.executable, "-c", STUB]
    run_each(report, find_gpu(), ("append", "decode", "prefill", "sample"), 7, program)
    monkeypatch.setattr(check, "PART_S", 1.0)
    run_each(report, find_gpu(), ("combine",), 7, program)
    found = read_lines(tmp_path / "all.json")
    sections = [line.section for line in found if line.name == "found"]
    assert sections == ["append", "decode", "prefill", "sample"]
    wrong = {line.name: line.value for line in found if line.good is False}
    assert wrong == {
        "decode": "its process ended with -6", "found": 1.0, "sample": "its process ended with 1",
        "combine": "not done within 1 s",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("program", "real", "good", "value"),
    [(SMALL.whole[-1], True, False, 0.5), (SMALL.whole[-1], False, None, 0.5),
     ("import sys; sys.exit('no GPU here')", True, False, "no GPU here")],
)  # fmt: skip
def test_figures_of_the_whole_machine_are_judged(report, program, real, good, value):
    check.check_whole(report, replace(SMALL, whole=(sys.executable, "-c", program), real=real))
    (line,) = report.lines
    assert (line.value, line.good) == (value, good)


def test_what_cannot_be_imported_is_told(fake, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "tokenix.drivers.cuda.check.setup", None)
    assert check.main(["--here", "--only", "append", "--json", str(tmp_path / "found.json")]) == 1
    (line,) = read_lines(tmp_path / "found.json")
    assert (
        line.good is False and "check.setup" in line.value and "FAILED" in capsys.readouterr().out
    )


def test_a_lost_gpu_ends_what_needs_it(fake, report):
    fake.fault(700)
    run(report, find_gpu(), ("append", "link"), 1, SMALL)
    assert [line.name for line in report.missed()][-1] == "append"
    assert all("lost" in line.value for line in report.missed())


def test_a_report_tells_what_was_missed(tmp_path):
    lines = []
    report = Report(lines.append, tmp_path / "found.json")
    report.section("rates")
    report.add("fast enough", 2.0, "GB/s", least=1.0)
    report.add("too slow", 2.0, "GB/s", least=3.0, most=4.0)
    report.add("of no bound", 2.0)
    report.fail("broken", "why")
    del lines[5:]
    report.sum_up()
    assert [line.strip() for line in lines[5:]] == [
        "goals met                                            1 of 3",
        "not met: rates: too slow: 2 GB/s, and the goal is >= 3 <= 4",
        "not met: rates: broken: why",
    ]
    assert [line.name for line in report.missed()] == ["too slow", "broken"]
    assert [line.split()[-1] for line in lines[1:3]] == ["met", "MET"] and "NOT MET" in lines[2]
    assert "met" not in lines[3].lower()
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
