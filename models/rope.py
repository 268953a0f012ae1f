"""Rotary position embedding frequencies of every supported scaling."""

import math

import numpy as np
import numpy.typing as npt

from tokenix.models.config import RopeConfig
from tokenix.models.image_error import EINVAL, ENOEXEC, image_error

SCALINGS = ("none", "linear", "llama3", "yarn")


def inv_freq(rope: RopeConfig) -> tuple[npt.NDArray[np.float64], float]:
    """Angle per position of each pair, float64 [dim/2], and the factor for cos and sin.

    The angle of pair i at position p is p * inv_freq[i]; cos and sin are multiplied by the
    attention factor (1.0 except for yarn). Errors: OSError ENOEXEC for an unknown scaling, EINVAL
    for parameters that cannot be.
    """
    _check(rope)
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64)
    base: npt.NDArray[np.float64] = np.power(rope.theta, -pairs / rope.dim)
    if rope.freq_factors:
        base = base / np.asarray(rope.freq_factors, dtype=np.float64)
    if rope.scaling == "linear":
        return base / rope.factor, 1.0
    if rope.scaling == "llama3":
        return _llama3(rope, base), 1.0
    if rope.scaling == "yarn":
        return _yarn(rope, base), yarn_attention_factor(rope)
    return base, 1.0


def _check(rope: RopeConfig) -> None:
    if rope.scaling not in SCALINGS:
        raise image_error(
            ENOEXEC,
            f"rope scaling {rope.scaling!r} is not supported; supported: {', '.join(SCALINGS)}",
        )
    if rope.dim < 2 or rope.dim % 2 or rope.theta <= 0 or rope.factor <= 0:
        raise image_error(
            EINVAL, f"impossible rope: dim {rope.dim}, theta {rope.theta}, factor {rope.factor}"
        )
    if rope.freq_factors and len(rope.freq_factors) != rope.dim // 2:
        raise image_error(
            EINVAL, f"rope has {len(rope.freq_factors)} frequency factors, not {rope.dim // 2}"
        )
    if rope.scaling in ("llama3", "yarn") and rope.original_context_tokens < 1:
        raise image_error(EINVAL, f"rope scaling {rope.scaling} lacks its original context length")
    if rope.scaling == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise image_error(EINVAL, "rope scaling llama3 needs high_freq_factor > low_freq_factor")


def _llama3(rope: RopeConfig, base: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Long waves are divided by the factor, short ones kept, those between blended (Llama 3.1)."""
    wavelength = 2 * math.pi / base
    original = rope.original_context_tokens
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep: npt.NDArray[np.float64] = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return keep * base + (1 - keep) * base / rope.factor


def _yarn(rope: RopeConfig, base: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Interpolate slow dimensions, keep fast ones, ramp between (YaRN, arXiv 2309.00071)."""

    def turns_at(rotations: float) -> float:
        waves = rope.original_context_tokens / (rotations * 2 * math.pi)
        return rope.dim * math.log(waves) / (2 * math.log(rope.theta))

    low, high = turns_at(rope.beta_fast), turns_at(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp: npt.NDArray[np.float64] = np.clip(
        (np.arange(rope.dim // 2) - low) / (high - low), 0.0, 1.0
    )
    return base / rope.factor * ramp + base * (1 - ramp)


def yarn_attention_factor(rope: RopeConfig) -> float:
    """The factor for cos and sin: as given, else 0.1 ln(factor) + 1."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
