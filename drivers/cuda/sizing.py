"""How many pages a GPU and its host have room for, where nobody has said."""

import errno
import os

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.dense import DenseKind
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.models.config import ModelConfig

_BYTES: dict[DenseKind, int] = {"bf16": 2, "f16": 2, "f32": 4}

USED_SHARE = 0.9
"""Of what the GPU has left: the rest is for torch and for graphs."""

STEP_BYTES = 1 << 30
"""Buffers of a step (`layers.py`)."""

HOST_SHARE = 0.5
"""Of the host's memory. Pinned memory is nobody else's."""

HOST_POOLS = 4
"""Host slots, in device pools, if there is room."""


def count_weights(config: ModelConfig) -> int:
    """Numbers of all matrices."""
    heads = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    layer = config.hidden * (2 * heads + 2 * keys + 3 * config.ffn)
    return config.layers * layer + config.vocab_tokens * config.hidden * (
        1 if config.tied_embeddings else 2
    )


def choose_frames(
    config: ModelConfig, shape: FrameShape, dense: DenseKind, ordinal: int = 0
) -> int:
    """Frames beside the weights. OSError ENODEV without a GPU, ENOMEM if the model alone is too
    large for it."""
    left = CudaDriver(ordinal).free_bytes()
    weights = count_weights(config) * _BYTES[dense]
    frames = int((left * USED_SHARE - weights - STEP_BYTES) // shape.stride_bytes)
    if frames < 2:
        need = (weights + STEP_BYTES + 2 * shape.stride_bytes) / USED_SHARE
        raise OSError(
            errno.ENOMEM,
            f"model {config.name} needs {need / (1 << 30):.1f} GiB of the GPU, and "
            f"{left / (1 << 30):.1f} GiB are free; end what else uses it, or use a smaller model",
        )
    return frames


def choose_slots(frames: int, shape: FrameShape) -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(HOST_POOLS * frames, int(memory * HOST_SHARE) // shape.stride_bytes)
