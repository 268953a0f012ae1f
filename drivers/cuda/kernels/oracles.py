"""What each kernel should do, in NumPy and float64, called as the kernel is called.

Pointers are flat arrays (`abi.py`), arenas are read and written in place. Sums are of what is
stored: of numbers as the page's format rounds them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cpu.sampling import candidates, uniform
from tokenix.drivers.cuda.kernels import codes
from tokenix.drivers.cuda.kernels.abi import FAULT, PAGE_TOKENS
from tokenix.drivers.cuda.kernels.pages import Page
from tokenix.drivers.cuda.kernels.words import Kind

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def widen(kind: Kind, words: Array) -> Float64:
    """The numbers of words, the last axis longer by what a word holds."""
    words = np.ascontiguousarray(words)
    if kind == "f32":
        return words.view(np.float32).astype(np.float64)
    if kind == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def narrow(kind: Kind, numbers: Array) -> Array:
    """Words of numbers, each rounded to nearest even from float32."""
    numbers = np.ascontiguousarray(numbers, np.float32)
    if kind == "f32":
        return numbers.view(np.uint32)
    if kind == "f16":
        return numbers.astype(np.float16).view(np.uint32)
    bits = numbers.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype(np.uint16).view(np.uint32)


def _places(
    page: Page, tables: Array, slot: int, tokens: Array, layer_at: int, frame_words: int, pages: int
) -> Array:
    """Where the K of tokens of the layer's first kv head begin, in words of the arena."""
    frames = tables[slot * pages + tokens // PAGE_TOKENS].astype(np.int64)
    inside: Array = frames * frame_words + layer_at + tokens % PAGE_TOKENS * page.token_words
    return inside


def append(
    x: Kind, page: Page, qkv: Array, bias: Array, q_norm: Array, k_norm: Array, cos: Array,
    sin: Array, positions: Array, slots: Array, tables: Array, q: Array, arena: Array,
    layer_at: int, frame_words: int, rows: int, heads: int, kv_heads: int, half: int,
    max_pages: int, eps: float,
) -> None:  # fmt: skip
    """`abi.APPEND`; bias and norms are empty arrays where the variant has none."""
    every, dim = heads + 2 * kv_heads, page.dim
    all_rows = widen(x, qkv).reshape(rows, every, dim)
    if len(bias):
        all_rows = all_rows + bias.astype(np.float64).reshape(every, dim)
    for row in np.flatnonzero(positions[:rows] >= 0):
        vectors = all_rows[row].copy()
        turned = vectors[: heads + kv_heads]
        if len(q_norm):
            turned /= np.sqrt((turned**2).mean(axis=1, keepdims=True) + eps)
            turned[:heads] *= q_norm
            turned[heads:] *= k_norm
        position = int(positions[row])
        c = cos[position * half : (position + 1) * half].astype(np.float64)
        s = sin[position * half : (position + 1) * half].astype(np.float64)
        low, high = turned[:, :half].copy(), turned[:, half : 2 * half].copy()
        turned[:, :half] = low * c - high * s
        turned[:, half : 2 * half] = high * c + low * s
        turned[:] = codes.turn(page, turned)
        if page.kind == "int4":
            turned[:heads] /= page.dim // page.groups
        q[row * heads * dim : (row + 1) * heads * dim] = turned[:heads].ravel()
        where = np.array([position])
        at = _places(page, tables, slots[row], where, layer_at, frame_words, max_pages)
        write_heads(page, arena, int(at[0]), position % PAGE_TOKENS, vectors[heads:])


def write_heads(page: Page, arena: Array, at: int, inside: int, heads: Float64) -> None:
    """K and V of a token [2 * kv_heads, dim]; at: where its K of the first head is."""
    kind: Any = page.kind
    starts = at + np.arange(len(heads)) * page.words
    if not page.is_coded:
        arena[starts[:, None] + np.arange(page.token_words)] = narrow(kind, heads)
        return
    coded, scales, lows = codes.encode(page, heads)
    arena[starts[:, None] + np.arange(page.token_words)] = codes.pack(page, coded)
    halves = arena.view(np.uint16)
    for place, bits in _scale_places(
        page, starts - inside * page.token_words, inside, scales, lows
    ):
        halves[place] = bits


def _scale_places(
    page: Page, starts: Array, inside: Any, scales: Any = None, lows: Any = None
) -> list[tuple[Array, Any]]:
    """Where scales [n, groups], and lows if there are any, are in an arena of 16-bit numbers, with
    what is given for them; starts: of the pages, in words."""
    each = np.asarray(inside * page.groups)[..., None] + np.arange(page.groups)
    places = [(2 * (starts + page.scales_at)[:, None] + each, scales)]
    if page.kind == "int4":
        places.append((2 * (starts + page.lows_at)[:, None] + each, lows))
    return places


def read_head(
    page: Page, arena: Array, tables: Array, slot: int, keys: Array, at: int, frame_words: int,
    max_pages: int,
) -> Float64:  # fmt: skip
    """Numbers [keys, dim] of one head; at: where its pages begin in a frame."""
    kind: Any = page.kind
    where = _places(page, tables, slot, keys, at, frame_words, max_pages)
    words = arena[where[:, None] + np.arange(page.token_words)]
    if not page.is_coded:
        return widen(kind, words)
    inside = keys % PAGE_TOKENS
    halves = arena.view(np.uint16)
    found = [halves[at] for at, _ in _scale_places(page, where - inside * page.token_words, inside)]
    scales, lows = found[0], found[-1] if len(found) > 1 else np.zeros_like(found[0])
    return codes.decode(page, codes.unpack(page, words), scales, lows)


def decode(
    page: Page, q: Array, arena: Array, tables: Array, slots: Array, positions: Array,
    parts: Array, stats: Array, layer_at: int, frame_words: int, kv_heads: int, max_pages: int,
    split_tokens: int, splits: int, scale: float,
) -> None:  # fmt: skip
    """`abi.DECODE`. The peak of a split is the largest score; a kernel's may be any near it."""
    rows, dim = len(positions), page.dim
    queries = q.reshape(rows, kv_heads, -1, dim).astype(np.float64)
    heads = kv_heads * queries.shape[2]
    all_parts = parts.reshape(rows, heads, splits, dim)
    all_stats = stats.reshape(rows, heads, splits, 2)
    for row in range(rows):
        for split in range((positions[row] + split_tokens) // split_tokens):
            end = min(int(positions[row]) + 1, (split + 1) * split_tokens)
            keys = np.arange(split * split_tokens, end)
            for kv in range(kv_heads):
                at = layer_at + kv * page.words
                spread = (arena, tables, slots[row], keys)
                strides = (frame_words, max_pages)
                k = read_head(page, *spread, at, *strides)
                v = read_head(page, *spread, at + kv_heads * page.words, *strides)
                scores = queries[row, kv] @ k.T * scale
                peak = scores.max(axis=1)
                weights = np.exp2(scores - peak[:, None])
                group = slice(kv * len(peak), (kv + 1) * len(peak))
                all_parts[row, group, split] = weights @ v
                all_stats[row, group, split, 0] = peak
                all_stats[row, group, split, 1] = weights.sum(axis=1)


def combine(
    x: Kind, parts: Array, stats: Array, positions: Array, out: Array, items: int, heads: int,
    split_tokens: int, splits: int,
) -> None:  # fmt: skip
    """`abi.COMBINE`"""
    all_parts = parts.reshape(items, splits, -1).astype(np.float64)
    all_stats = stats.reshape(items, splits, 2).astype(np.float64)
    numbers = np.zeros((items, all_parts.shape[2]))
    for item in range(items):
        used = (int(positions[item // heads]) + split_tokens) // split_tokens
        if used > 0:
            peaks, sums = all_stats[item, :used].T
            c = np.exp2(peaks - peaks.max())
            numbers[item] = (all_parts[item, :used] * c[:, None]).sum(axis=0) / (sums * c).sum()
    out[:] = narrow(x, numbers).ravel()


def gate(x: Kind, both: Array, out: Array, rows: int, width: int) -> None:
    """`abi.GATE`"""
    low, up = widen(x, both).reshape(rows, 2, width).swapaxes(0, 1)
    with np.errstate(over="ignore"):  # its inverse is 0
        out[:] = narrow(x, low / (1 + np.exp(-low)) * up).ravel()


def attend(
    page: Page, q: Array, arena: Array, tables: Array, slots: Array, positions: Array,
    layer_at: int, frame_words: int, kv_heads: int, max_pages: int, scale: float,
) -> Float64:  # fmt: skip
    """Attention of all rows, [rows, heads, dim]: what decode and combine, or prefill, come to."""
    rows, dim = len(positions), page.dim
    splits, heads = 1, len(q) // rows // dim
    parts, stats = np.zeros((rows, heads, splits, dim)), np.ones((rows, heads, splits, 2))
    longest = int(positions.max()) + 1
    decode(
        page, q, arena, tables, slots, positions, parts, stats, layer_at, frame_words, kv_heads,
        max_pages, longest, splits, scale,
    )  # fmt: skip
    return parts[:, :, 0] / stats[:, :, 0, 1:]


def sample(
    logits: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array, seeds: Array,
    positions: Array, tokens: Array, vocab: int,
) -> None:  # fmt: skip
    """`abi.SAMPLE`, by the functions of `drivers/cpu/sampling.py`."""
    for row in np.flatnonzero(positions >= 0):
        scores = logits[row * vocab : (row + 1) * vocab]
        if not np.isfinite(scores[scores.argmax()]):
            tokens[row] = FAULT
        elif temperature[row] <= 0:
            tokens[row] = scores.argmax()
        else:
            ids, weights = candidates(
                scores.astype(np.float64), float(temperature[row]), int(top_k[row]),
                float(top_p[row]),
            )  # fmt: skip
            kept = weights >= min_p[row] * weights.max()
            ids, running = ids[kept], weights[kept].cumsum()
            target = uniform(int(seeds[row]), int(positions[row])) * running[-1]
            at = min(int(running.searchsorted(target, side="right")), len(ids) - 1)
            while weights[kept][at] == 0:
                at -= 1
            tokens[row] = ids[at]
