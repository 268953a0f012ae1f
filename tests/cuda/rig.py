"""A CUDA device on the fake GPU, with a tiny model."""

from dataclasses import replace
from typing import Any

from tokenix.drivers.cuda import arrival, rates
from tokenix.drivers.cuda.device import CudaDevice
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights
from tokenix.tests.cuda import fake
from tokenix.tests.device.tiny import RandomWeights, tiny_config

TINY = replace(
    tiny_config(), heads=2, kv_heads=1, head_dim=64, rope=replace(tiny_config().rope, dim=64)
)
"""The smallest heads that there are kernels for."""

WEIGHTS = RandomWeights(TINY)

rates.PREFILL_TOKENS, rates.TIMES = 16, 1  # what a fake GPU does in a second is of no interest
arrival.PATIENCE_S = 60.0  # nor how long the machine of a test has no time for a thread


def device(
    seed: int = 1,
    eager_percent: int = 10,
    config: ModelConfig = TINY,
    weights: Weights = WEIGHTS,
    **options: Any,
) -> CudaDevice:
    """A device, and the order in which streams run from now on."""
    fake.load().draw(seed, eager_percent)
    settings: dict[str, Any] = {
        "frames": 32,
        "host_slots": 16,
        "kv_dtype": "f32",
        "dense": "f32",
        "dense_by": fake.CpuDense,
        "kernels_by": fake.twin_kernels,
    }
    return CudaDevice(config, weights, **settings | options)


def failures() -> list[str]:
    """What kernels and dense work have raised."""
    return fake.load().failures
