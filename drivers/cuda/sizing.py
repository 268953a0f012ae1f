"""How many pages a GPU and its host have room for, where nobody has said."""

import contextlib
import errno
import os

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.dense import DenseKind
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.ranks.shard import Shard
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


def count_weights(config: ModelConfig, ranks: int = 1) -> int:
    """Numbers of all matrices that one of several GPUs has (`ranks/shard.py`)."""
    part = Shard(0, ranks).config(config)
    heads = part.heads * part.head_dim
    keys = part.kv_heads * part.head_dim
    layer = config.hidden * (2 * heads + 2 * keys + 3 * part.ffn)
    head = 0 if config.tied_embeddings else -(-config.vocab_tokens // ranks)
    return config.layers * layer + config.hidden * (config.vocab_tokens + head)


def choose_frames(config: ModelConfig, shape: FrameShape, dense: DenseKind, ranks: int = 1) -> int:
    """Frames beside the weights, on each of so many GPUs; shape: of one's part. OSError ENODEV
    without a GPU, ENOMEM if the model alone is too large."""
    left = min(_free_bytes(ordinal) for ordinal in range(ranks))
    weights = count_weights(config, ranks) * _BYTES[dense]
    frames = int((left * USED_SHARE - weights - STEP_BYTES) // shape.stride_bytes)
    if frames < 2:
        need = (weights + STEP_BYTES + 2 * shape.stride_bytes) / USED_SHARE
        raise OSError(
            errno.ENOMEM,
            f"model {config.name} needs {need / (1 << 30):.1f} GiB of "
            f"{'the GPU' if ranks == 1 else f'each of {ranks} GPUs'}, and "
            f"{left / (1 << 30):.1f} GiB are free; end what else uses it, use a smaller model, or "
            "more GPUs (tensor_parallel)",
        )
    return frames


def choose_slots(frames: int, shape: FrameShape, ranks: int = 1) -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(HOST_POOLS * frames, int(memory * HOST_SHARE) // (ranks * shape.stride_bytes))


def _free_bytes(ordinal: int) -> int:
    with contextlib.closing(CudaDriver(ordinal)) as driver:
        return driver.free_bytes()
