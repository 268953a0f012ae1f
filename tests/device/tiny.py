"""A tiny random model for drivers that compute a real one, in memory."""

import math

import numpy as np
import numpy.typing as npt

from tokenix.models.config import ModelConfig, RopeConfig

VOCAB = 256


def tiny_config() -> ModelConfig:
    return ModelConfig(
        name="tiny",
        architecture="llama",
        layers=2,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        ffn=128,
        vocab_tokens=VOCAB,
        max_context_tokens=512,
        rms_eps=1e-5,
        rope=RopeConfig(theta=10_000.0, dim=16),
    )


class RandomWeights:
    """Keeps `models.weights.Weights`: seeded normal matrices, wide enough that attention matters
    to the output."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        chance = np.random.default_rng(seed)
        self._tensors = {
            name: (
                np.ones(shape, np.float32)
                if len(shape) == 1
                else (chance.standard_normal(shape) * _gain(name, shape)).astype(np.float32)
            )
            for name, shape in _shapes(config).items()
        }

    def names(self) -> list[str]:
        return list(self._tensors)

    def kind(self, name: str) -> str:
        return "F32"

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        return self._tensors[name].copy()

    def quantized(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        tensor = self._tensors[name]
        return "F32", tensor.reshape(tensor.shape[0], -1).view(np.uint8)


def _gain(name: str, shape: tuple[int, ...]) -> float:
    if name == "embed":
        return 1.0
    gain = 2.0 if name.endswith((".q", ".k", "head")) else 1.2
    return gain / math.sqrt(shape[1])


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_tokens, config.hidden)}
    queries = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    for i in range(config.layers):
        shapes |= {
            f"layers.{i}.attn_norm": (config.hidden,),
            f"layers.{i}.q": (queries, config.hidden),
            f"layers.{i}.k": (keys, config.hidden),
            f"layers.{i}.v": (keys, config.hidden),
            f"layers.{i}.o": (config.hidden, queries),
            f"layers.{i}.ffn_norm": (config.hidden,),
            f"layers.{i}.gate": (config.ffn, config.hidden),
            f"layers.{i}.up": (config.ffn, config.hidden),
            f"layers.{i}.down": (config.hidden, config.ffn),
        }
    return shapes | {"norm": (config.hidden,), "head": (config.vocab_tokens, config.hidden)}
