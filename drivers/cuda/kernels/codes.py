"""Numbers as codes and scales, and back, in NumPy: what `pages.Page` of int8, fp8 and int4 holds.

    int8   scale = most / 127               code = nearest(x / scale)
    fp8    scale = most / 448               code = e4m3 of x / scale
    int4   scale = (most - least) / 15      code = nearest((x - low) / scale), low = least

Scales and lows are bfloat16; a scale below 1e-30 has codes of zero. As `drivers/cpu/kvformat.py`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.kernels.pages import Page

Array = npt.NDArray[Any]

_NOTHING = np.float32(1e-30)
_LARGEST = {"int8": np.float32(127.0), "fp8": np.float32(448.0), "int4": np.float32(15.0)}


def bf16_bits(x: Array) -> npt.NDArray[np.uint16]:
    """Rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def bf16_values(bits: Array) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


_FP8_VALUES = np.array(
    [
        (-1.0 if code & 0x80 else 1.0)
        * (
            (8 + (code & 7)) * 2.0 ** ((code >> 3 & 15) - 10)
            if code >> 3 & 15
            else (code & 7) * 2.0**-9
        )
        for code in range(256)
    ],
    np.float32,
)
"""Of e4m3 codes, its two not-a-numbers read as 480."""


def _fp8_codes(x: Array) -> npt.NDArray[np.uint8]:
    """The nearest e4m3, of two equally near the even one."""
    values = _FP8_VALUES[:0x7F]
    size = np.minimum(np.nan_to_num(np.abs(x)), values[-1])
    above = np.minimum(np.searchsorted(values, size), len(values) - 1)
    below = np.maximum(above - 1, 0)
    up, down = values[above] - size, size - values[below]
    nearer = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    signed: npt.NDArray[np.uint8] = np.where(x < 0, nearer | 0x80, nearer).astype(np.uint8)
    return signed


def encode(page: Page, x: Array) -> tuple[Array, Array, Array]:
    """Of heads float32 [n, dim]: codes uint8 [n, dim] (a byte each), scales and lows bfloat16 bits
    [n, groups]."""
    grouped = np.ascontiguousarray(x, np.float32).reshape(len(x), page.groups, -1)
    strange = np.where(np.isfinite(grouped).all(axis=2), np.float32(0.0), np.float32(np.nan))
    low = np.zeros(grouped.shape[:2], np.float32)
    if page.kind == "int4":
        low = bf16_values(bf16_bits(grouped.min(axis=2)))
        most = grouped.max(axis=2) - low
    else:
        most = np.abs(grouped).max(axis=2)
    scales = bf16_bits(most / _LARGEST[page.kind] + strange)
    scale = bf16_values(scales)
    usable = scale > _NOTHING
    inverse = np.where(usable, np.float32(1.0) / np.where(usable, scale, 1), 0).astype(np.float32)
    with np.errstate(invalid="ignore"):  # what is not finite has a scale that says so
        y = (grouped - low[:, :, None]) * inverse[:, :, None]
    if page.kind == "fp8":
        codes = _fp8_codes(y)
    else:
        least, largest = (0, 15) if page.kind == "int4" else (-127, 127)
        codes = np.rint(np.clip(np.nan_to_num(y), least, largest)).astype(np.int8).view(np.uint8)
    return codes.reshape(x.shape), scales, bf16_bits(low)


def decode(page: Page, codes: Array, scales: Array, lows: Array) -> npt.NDArray[np.float64]:
    """Numbers [n, dim] of what `encode` gives."""
    if page.kind == "fp8":
        plain = _FP8_VALUES[codes]
    else:
        plain = (codes.view(np.int8) if page.kind == "int8" else codes).astype(np.float32)
    grouped = plain.reshape(len(codes), page.groups, -1).astype(np.float64)
    numbers = grouped * bf16_values(scales)[:, :, None] + bf16_values(lows)[:, :, None]
    return numbers.reshape(codes.shape)


def pack(page: Page, codes: Array) -> npt.NDArray[np.uint32]:
    """Words [n, token_words] of codes [n, dim]: of 4 bits, the even dim in the low half."""
    if page.kind == "int4":
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    return np.ascontiguousarray(codes, np.uint8).view(np.uint32)


def unpack(page: Page, words: Array) -> npt.NDArray[np.uint8]:
    """Codes [n, dim] of words [n, token_words]."""
    codes = np.ascontiguousarray(words).view(np.uint8)
    if page.kind == "int4":
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(words), -1)
    return codes


def turn(page: Page, x: Array) -> Array:
    """Keys or queries [..., dim] multiplied by the Hadamard matrix of a group's size, group by
    group, if the format is int4; queries are divided by that size besides."""
    if page.kind != "int4":
        return x
    size = page.dim // page.groups
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    turned: Array = (x.reshape(*x.shape[:-1], page.groups, size) @ matrix).reshape(x.shape)
    return turned
