"""The whole kernel with the CUDA device on the fake GPU: forced preemption and little memory change
no token."""

import pytest

from tokenix.kernel.calls import Read, Spawn, Swapon
from tokenix.sched.plan import PauseMode
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.whole import NEW, Kernel, sampling
from tokenix.tests.device.machine import words

PROMPTS = [words(length, rig.TINY.vocab_tokens, seed) for seed, length in enumerate((3, 20, 33, 9))]


@pytest.fixture(scope="module")
def alone():
    """Each by itself, never paused."""
    kernel = Kernel(32, 0)
    found = []
    for i, prompt in enumerate(PROMPTS):
        found.append(
            kernel.tokens(kernel.ask(Spawn(tuple(prompt), sampling=sampling(i), max_tokens=NEW)))
        )
    kernel.close()
    return found


@pytest.mark.parametrize("modes", [(PauseMode.SWAP,), (PauseMode.RECOMPUTE,)])
def test_preempted_after_every_three_tokens(fake, alone, modes):
    for seed in (1, 2):
        kernel = Kernel(32, 32, seed, modes)
        assert kernel.outputs(PROMPTS) == alone
        assert kernel.scheduler.forced[modes[0]] > 10
        kernel.close()


def test_more_than_the_memory_holds(fake, alone, tmp_path):
    """Nine pages are needed at most; six frames, four slots and a swap file are there."""
    kernel = Kernel(6, 4, modes=(PauseMode.SWAP, PauseMode.RECOMPUTE))
    kernel.ask(Swapon(str(tmp_path), 16 * 16384))
    assert kernel.outputs(PROMPTS) == alone
    kernel.close()


def test_16_bit_numbers_keep_their_tokens_through_swaps(fake):
    options = {"dense": "bf16", "kv_dtype": "bf16"}
    streams = []
    for modes in ((), (PauseMode.SWAP,)):
        kernel = Kernel(32, 32, 3, modes, **options)
        streams.append([kernel.outputs([prompt]) for prompt in PROMPTS[:2]])
        kernel.close()
    assert streams[0] == streams[1]


def test_a_lost_gpu_ends_processes_with_a_reason(fake):
    kernel = Kernel(16, 16)
    pid = kernel.ask(Spawn(tuple(PROMPTS[1]), max_tokens=200))
    assert kernel.ask(Read(pid)).outputs
    fake.fault(700)
    while not (result := kernel.ask(Read(pid))).eof:
        pass
    assert "the GPU is lost to this process: restart it" in result.error
    kernel.pump.close()
