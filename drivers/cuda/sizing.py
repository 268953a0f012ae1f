"""How many pages a GPU and its host have room for, where nobody has said."""

import contextlib
import errno
import os
from pathlib import Path

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.dense import DenseKind
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.matrix import Fp8Use, choose_fp8, has_fp8, is_aligned
from tokenix.drivers.cuda.ranks.shard import Shard
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights

_BYTES: dict[DenseKind, int] = {"bf16": 2, "f16": 2, "f32": 4}

USED_SHARE = 0.9
"""Of what the GPU has left: the rest is for torch and for graphs."""

STEP_BYTES = 1 << 30
"""Buffers of a step (`layers.py`)."""

HOST_SHARE = 0.5
"""Of the host memory that is free, or of what this process may have. Pinned memory is nobody
else's, and all of it is there from the beginning."""

MEMINFO, CGROUP_LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")

HOST_POOLS = 4
"""Host slots, in device pools, if there is room."""


def list_matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """(rows, columns) of those of a layer, as they are on a GPU (`weights.py`)."""
    heads, every = config.heads, config.heads + 2 * config.kv_heads
    return [
        (every * config.head_dim, config.hidden), (config.hidden, heads * config.head_dim),
        (2 * config.ffn, config.hidden), (config.hidden, config.ffn),
    ]  # fmt: skip


def count_bytes(config: ModelConfig, kind: DenseKind, fp8: bool = False, ranks: int = 1) -> int:
    """Of all matrices that one of several GPUs has (`ranks/shard.py`). fp8: those of layers are in
    8 bits, with a float32 for each row, where there are products of that shape."""
    part, width = Shard(0, ranks).config(config), _BYTES[kind]
    layer = sum(
        rows * columns + 4 * rows if fp8 and is_aligned((rows, columns)) else width * rows * columns
        for rows, columns in list_matrices(part)
    )
    head = 0 if config.tied_embeddings else -(-config.vocab_tokens // ranks)
    return config.layers * layer + width * config.hidden * (config.vocab_tokens + head)


def choose_frames(
    config: ModelConfig,
    weights: Weights,
    shape: FrameShape,
    dense: DenseKind,
    fp8: Fp8Use = "stored",
    ranks: int = 1,
) -> int:
    """Frames beside the weights, on each of so many GPUs; shape: of one's part. OSError ENODEV
    without a GPU, ENOMEM if the model alone is too large."""
    found = [_look_at(ordinal) for ordinal in range(ranks)]
    left = min(free for free, _ in found)
    narrow = all(
        has_fp8(choose_fp8(fp8, weights, capability, dense)[0], weights) for _, capability in found
    )
    size = count_bytes(config, dense, narrow, ranks)
    frames = int((left * USED_SHARE - size - STEP_BYTES) // shape.stride_bytes)
    if frames < 2:
        need = (size + STEP_BYTES + 2 * shape.stride_bytes) / USED_SHARE
        raise OSError(
            errno.ENOMEM,
            f"model {config.name} needs {need / (1 << 30):.1f} GiB of "
            f"{'the GPU' if ranks == 1 else f'each of {ranks} GPUs'}, and "
            f"{left / (1 << 30):.1f} GiB are free; end what else uses it, use a smaller model, or "
            "more GPUs (tensor_parallel)",
        )
    return frames


def choose_slots(frames: int, shape: FrameShape, ranks: int = 1) -> int:
    most = int(_host_bytes() * HOST_SHARE) // (ranks * shape.stride_bytes)
    return min(HOST_POOLS * frames, most)


def _host_bytes(meminfo: Path = MEMINFO, limit: Path = CGROUP_LIMIT) -> int:
    """Of host memory that pages could be pinned in."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
    with contextlib.suppress(OSError, ValueError):  # "max": there is none
        found.append(int(limit.read_text()))
    return min(found)


def _look_at(ordinal: int) -> tuple[int, tuple[int, int]]:
    """Free bytes and compute capability of a GPU."""
    with contextlib.closing(CudaDriver(ordinal)) as driver:
        return driver.free_bytes(), driver.gpu.capability
