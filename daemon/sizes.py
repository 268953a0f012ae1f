"""Sizes as people write them: 4096, 512M, 2G."""

import math

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

MOST_BYTES = 1 << 62


def bytes_of(text: str) -> int:
    """The number of bytes; K, M, G and T are powers of 1024. ValueError."""
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = word[-1:] if word[-1:] in UNITS else ""
    try:
        number = float(word.removesuffix(unit))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{text!r} is no size; write bytes, or a number with K, M, G or T")
    count = number * UNITS[unit]
    if count > MOST_BYTES:
        raise ValueError(f"{text!r} is too much; a size is at most {MOST_BYTES // UNITS['T']}T")
    return int(count)
