"""Ranks on fake GPUs: each process has one of its own, with torch of the CPU and gloo between them.

A rank's process imports this to build its part, so importing it makes the fake GPU of a process.
"""

import errno
import signal
from dataclasses import replace
from functools import partial

from tokenix.drivers.cuda.ranks.device import ParallelDevice
from tokenix.models.weights import Weights
from tokenix.tests.cuda import fake, rig
from tokenix.tests.device.tiny import RandomWeights

GPUS = 4

fake.load().machine(devices=GPUS)

CONFIG = replace(rig.TINY, heads=8, kv_heads=4, vocab_tokens=251)
"""For up to four ranks; none of which has as much of the vocabulary as the last."""


def open_weights(config=CONFIG) -> Weights:
    return RandomWeights(config)


def no_weights() -> Weights:
    raise OSError(errno.ENOENT, "no weights here")


def weights_that_take_for_ever() -> Weights:
    signal.pause()
    raise AssertionError("nobody sends a signal")


class Torch(fake.CpuDense):
    """What imports it has a fake GPU."""


def device(ranks=2, config=CONFIG, seed=1, **options):
    fake.load().machine(devices=GPUS)
    fake.load().draw(seed)
    settings = {
        "frames": 32,
        "host_slots": 16,
        "kv_dtype": "f32",
        "dense": "f32",
        "backend": "gloo",
        "patience_s": 300.0,
        "dense_by": Torch,
        "kernels_by": fake.twin_kernels,
    }
    return ParallelDevice(
        config,
        open_weights(config),
        ranks=ranks,
        **{"open_weights": partial(open_weights, config)} | settings | options,
    )
