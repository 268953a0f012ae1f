"""The whole kernel on two ranks gives the tokens of one GPU, preempted and short of memory; a rank
that is killed; ranks whose kernel is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.driver")

import tokenix
from tokenix.kernel.calls import Read, Spawn, Swapon
from tokenix.sched.plan import PauseMode
from tokenix.tests.cuda import fake as fakes
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.whole import Kernel
from tokenix.tests.device.machine import words

fakes.load()
parts = pytest.importorskip("tokenix.tests.cuda_ranks.parts")

pytestmark = pytest.mark.timeout(400)
"""Processes that import torch, on a busy machine."""

PATIENCE_S = 300.0
PROMPTS = [
    words(length, parts.CONFIG.vocab_tokens, seed) for seed, length in enumerate((3, 20, 33))
]


@pytest.fixture(autouse=True)
def fake():
    machine = fakes.load()
    machine.reset()
    yield machine
    machine.reset()


def one_gpu(**options):
    return rig.device(config=parts.CONFIG, weights=parts.open_weights(), **options)


def test_preempted_and_short_of_memory_then_killed(fake, tmp_path):
    kernel = Kernel(32, 0, make=one_gpu)
    alone = kernel.outputs(PROMPTS)
    kernel.close()

    modes = (PauseMode.SWAP, PauseMode.RECOMPUTE)
    kernel = Kernel(6, 4, modes=modes, make=parts.device)
    page_bytes = kernel.device.info().frame_bytes
    kernel.ask(Swapon(str(tmp_path), 16 * page_bytes))
    assert kernel.outputs(PROMPTS) == alone
    assert min(kernel.scheduler.forced[mode] for mode in modes) > 0
    assert rig.failures() == []

    pid = kernel.ask(Spawn(tuple(PROMPTS[0]), max_tokens=60))
    assert kernel.ask(Read(pid)).outputs
    (rank,) = kernel.device._team.pids
    os.kill(rank, signal.SIGKILL)
    while not (result := kernel.ask(Read(pid))).eof:
        pass
    assert f"GPU 1 (pid {rank}) was ended by signal 9" in result.error
    assert "restart it" in result.error
    kernel.pump.close()


HANGING = """
from tokenix.tests.cuda_ranks import parts
parts.device(2, open_weights=parts.weights_that_take_for_ever)
"""


def test_ranks_end_with_their_parent():
    """Whatever they are at; this one has just begun."""
    deadline_s = time.monotonic() + PATIENCE_S
    with subprocess.Popen([sys.executable, "-c", HANGING]) as parent:
        try:
            while not (found := ranks_of(parent.pid)):
                assert parent.poll() is None and time.monotonic() < deadline_s
                time.sleep(0.02)
        finally:
            parent.kill()
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)


def ranks_of(pid):
    """Processes of ranks, whichever thread has started them."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [child for task in tasks for child in task.read_text(encoding="utf-8").split()]
    return [
        child
        for child in found
        if b"tokenix.drivers.cuda.ranks" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


@pytest.mark.parametrize(
    ("options", "words_said"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel=2 is of the cuda driver"),
        ({"tensor_parallel": 0}, "tensor_parallel must be at least 1"),
        ({"tensor_parallel": 1.5}, "tensor_parallel must be a whole number"),
        ({"driver": "cuda", "tensor_parallel": 2}, "does not divide the 9 heads.*1 or 3 would"),
        ({"driver": "cuda", "tensor_parallel": 3}, "needs 3 GPUs, and there is 1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fake, options, words_said):
    with pytest.raises(OSError, match=words_said):
        tokenix.boot("smollm2", **options)
