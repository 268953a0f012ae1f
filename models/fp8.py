"""Numbers of 8 bits (e4m3: sign, 4 bits of exponent, 3 of mantissa), and the scales beside them.

    number = code * scale          a scale for the tensor, for each row, or for blocks of 128 x 128

Files name the scales of `x.weight` `x.weight_scale`, or `x.weight_scale_inv`, which is the same
thing. What they say of activations is not needed: those are scaled as they are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

DTYPE = "F8_E4M3"
SCALES = ("weight_scale", "weight_scale_inv")
UNUSED = ("input_scale",)

_BLOCK = 128
_MIDDLE = 7
"""Of the exponents; those of 0 have no leading one."""


def _numbers() -> npt.NDArray[np.float32]:
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    powers = np.maximum(exponent, 1) - _MIDDLE
    numbers = np.ldexp((exponent > 0) + mantissa / 8, powers) * np.where(bits < 128, 1, -1)
    numbers[[127, 255]] = np.nan
    return np.asarray(numbers, np.float32)


NUMBERS = _numbers()
"""float32 [256], by code."""


def fits(scales: npt.NDArray[np.float32], shape: tuple[int, ...]) -> bool:
    """Whether they are scales for a matrix of that shape."""
    blocks = tuple(-(-size // _BLOCK) for size in shape)
    return scales.size == 1 or scales.size == shape[0] or scales.shape == blocks


def by_row(scales: npt.NDArray[np.float32], shape: tuple[int, ...]) -> Any:
    """float32 [out]; None if a row has several."""
    if scales.size == 1:
        return np.full(shape[0], scales.reshape(-1)[0], np.float32)
    return scales.reshape(-1) if scales.size == shape[0] else None


def dequantize_fp8(
    codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.float32], first: int, last: int
) -> npt.NDArray[np.float32]:
    """Rows first..last-1 of codes [out, in], fewer at the end; float32 [rows, in]."""
    numbers: npt.NDArray[np.float32] = NUMBERS[codes[first:last]]
    rows = by_row(scales, codes.shape)
    if rows is not None:
        numbers *= rows[first:last, None]
    else:
        spread = scales[np.arange(len(codes))[first:last] // _BLOCK]
        numbers *= spread.repeat(_BLOCK, axis=1)[:, : codes.shape[1]]
    return numbers


def is_fp8(method: Mapping[str, Any]) -> bool:
    """Whether a `quantization_config` says that weights are of this kind."""
    kind = method.get("quant_method")
    if kind == "compressed-tensors":
        groups = method.get("config_groups")
        found = list(groups.values()) if isinstance(groups, Mapping) else []
        kinds = [group.get("weights") if isinstance(group, Mapping) else None for group in found]
        return bool(kinds) and all(
            isinstance(w, Mapping) and (w.get("type"), w.get("num_bits")) == ("float", 8)
            for w in kinds
        )
    return kind == "fbgemm_fp8" or (kind == "fp8" and method.get("fmt", "e4m3") == "e4m3")
