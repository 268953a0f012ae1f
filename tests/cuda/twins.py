"""Kernels of the fake GPU: the float64 oracles again, on the memory that a launch points to, and
many rows at a time. `test_check.py` compares them."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS

Grid = tuple[int, int, int]
Values = Mapping[str, Any]


def flat(address: float, dtype: Any, count: int) -> Any:
    """Memory as an array [count]; an address of 0 has none."""
    if address == 0:
        return np.empty(0, dtype)
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_ubyte * size).from_address(int(address)), dtype)


def _pages(values: Values, slots: Any) -> dict[str, Any]:
    """The tables that slots reach, and the arena that these tables reach."""
    tables = flat(values["tables"], np.int32, (int(slots.max()) + 1) * values["max_pages"])
    assert (tables >= 0).all(), "tables that were freed"
    words = (int(tables.max()) + 1) * values["frame_words"]
    return {"tables": tables, "arena": flat(values["arena"], np.uint32, words)}


def append(twin: Any, grid: Grid, values: Values) -> None:
    rows, heads, kv_heads = values["rows"], values["heads"], values["kv_heads"]
    page, half = twin.shape.page, values["half"]
    dim, every = page.dim, heads + 2 * kv_heads
    positions = flat(values["positions"], np.int32, rows)
    slots = flat(values["slots"], np.int32, rows)
    words = rows * every * dim // (1 if twin.kind == "f32" else 2)
    x = oracles.widen(twin.kind, flat(values["qkv"], np.uint32, words)).reshape(rows, every, dim)
    x = x + flat(values["bias"], np.float32, every * dim).reshape(-1, dim) if values["bias"] else x
    used = np.flatnonzero(positions >= 0)
    x, positions, slots = x[used], positions[used], slots[used]
    if not len(used):
        return
    turned = x[:, : heads + kv_heads]
    if values["q_norm"]:
        turned /= np.sqrt((turned**2).mean(axis=2, keepdims=True) + values["eps"])
        turned[:, :heads] *= flat(values["q_norm"], np.float32, dim)
        turned[:, heads:] *= flat(values["k_norm"], np.float32, dim)
    angles = (int(positions.max()) + 1) * half
    cos, sin = (
        flat(values[name], np.float32, angles).reshape(-1, half)[positions][:, None]
        for name in ("cos", "sin")
    )
    low, high = turned[..., :half].copy(), turned[..., half : 2 * half].copy()
    turned[..., :half], turned[..., half : 2 * half] = (
        low * cos - high * sin,
        high * cos + low * sin,
    )
    flat(values["q"], np.float32, rows * heads * dim).reshape(rows, -1)[used] = x[
        :, :heads
    ].reshape(len(used), -1)
    memory = _pages(values, slots)
    frames = memory["tables"][slots * values["max_pages"] + positions // PAGE_TOKENS]
    at = frames.astype(np.int64) * values["frame_words"] + values["layer_at"]
    at += positions % PAGE_TOKENS * page.token_words
    places = at[:, None] + np.arange(2 * kv_heads) * page.words
    stored = oracles.narrow(page.kind, x[:, heads:])
    memory["arena"][places[..., None] + np.arange(page.token_words)] = stored


def decode(twin: Any, grid: Grid, values: Values) -> None:
    """Row by row, so that a row's sums do not depend on its batch. Rows of a slot share what is
    read of its pages."""
    rows, splits = grid[0], values["splits"]
    dim, kv_heads = twin.shape.page.dim, values["kv_heads"]
    slots = flat(values["slots"], np.int32, rows)
    positions = flat(values["positions"], np.int32, rows)
    q = flat(values["q"], np.float32, rows * twin.heads * dim)
    q = q.reshape(rows, kv_heads, -1, dim).astype(np.float64) * values["scale"]
    shape = rows, kv_heads, q.shape[2], splits
    parts = flat(values["parts"], np.float32, rows * twin.heads * splits * dim).reshape(*shape, dim)
    stats = flat(values["stats"], np.float32, rows * twin.heads * splits * 2).reshape(*shape, 2)
    memory = _pages(values, slots)
    for slot in np.unique(slots[positions >= 0]):
        mine = np.flatnonzero((slots == slot) & (positions >= 0))
        keys, sums = _read(twin, values, memory, int(slot), int(positions[mine].max()) + 1)
        for row in mine:
            count = int(positions[row]) + 1
            for split in range(-(-count // values["split_tokens"])):
                part = slice(
                    split * values["split_tokens"], min(count, (split + 1) * values["split_tokens"])
                )
                scores = q[row] @ keys[:, :, part]
                peaks = scores.max(axis=2, keepdims=True)
                weights = np.exp2(scores - peaks)
                parts[row, :, :, split] = weights @ sums[:, part]
                stats[row, :, :, split, 0] = peaks[..., 0]
                stats[row, :, :, split, 1] = weights.sum(axis=2)


def _read(twin: Any, values: Values, memory: dict[str, Any], slot: int, count: int) -> Any:
    """K [kv heads, dim, keys] and V [kv heads, keys, dim] of the first keys of a slot."""
    page, tokens = twin.shape.page, np.arange(count)
    frames = memory["tables"][slot * values["max_pages"] + tokens // PAGE_TOKENS]
    at = frames.astype(np.int64) * values["frame_words"] + values["layer_at"]
    at += tokens % PAGE_TOKENS * page.token_words
    places = np.arange(2 * values["kv_heads"])[:, None] * page.words + at
    both = oracles.widen(
        page.kind, memory["arena"][places[..., None] + np.arange(page.token_words)]
    )
    return both[: values["kv_heads"]].swapaxes(1, 2), both[values["kv_heads"] :]


def combine(twin: Any, grid: Grid, values: Values) -> None:
    items, splits, dim = values["items"], values["splits"], twin.shape.page.dim
    parts = flat(values["parts"], np.float32, items * splits * dim).reshape(items, splits, dim)
    stats = flat(values["stats"], np.float32, items * splits * 2).reshape(items, splits, 2)
    positions = flat(values["positions"], np.int32, items // values["heads"]).repeat(
        values["heads"]
    )
    used = (positions + values["split_tokens"]) // values["split_tokens"]
    told = np.arange(splits) < used[:, None]
    peaks = np.where(told, stats[..., 0].astype(np.float64), -np.inf)
    peaks = np.exp2(peaks - np.where(used > 0, peaks.max(axis=1), 0.0)[:, None])
    weights = np.where(told, peaks, 0.0)
    numbers = np.zeros((items, dim))
    for split in range(splits):  # in order, as the kernel does
        some = told[:, split]
        numbers[some] += parts[some, split] * weights[some, split, None]
    total = np.where(told, stats[..., 1] * weights, 0.0).sum(axis=1)
    numbers /= np.where(used > 0, total, 1.0)[:, None]
    words = items * dim // (1 if twin.kind == "f32" else 2)
    flat(values["out"], np.uint32, words)[:] = oracles.narrow(twin.kind, numbers).ravel()


def prefill(twin: Any, grid: Grid, values: Values) -> None:
    """Tile by tile; the scores of its rows with keys behind them are nothing."""
    tiles = flat(values["tiles"], np.int32, 2 * grid[0]).reshape(-1, 2)
    rows = int(tiles.sum(axis=1).max())
    dim, heads = twin.shape.page.dim, twin.heads
    slots, positions = (flat(values[name], np.int32, rows) for name in ("slots", "positions"))
    q = flat(values["q"], np.float32, rows * heads * dim)
    q = q.reshape(rows, values["kv_heads"], -1, dim).astype(np.float64) * values["scale"]
    words = heads * dim // (1 if twin.kind == "f32" else 2)
    out = flat(values["out"], np.uint32, rows * words).reshape(rows, words)
    memory = _pages(values, slots)
    for first, count in tiles.tolist():
        mine = slice(first, first + count)
        longest = int(positions[mine].max()) + 1
        keys, sums = _read(twin, values, memory, int(slots[first]), longest)
        scores = np.einsum("rhgd,hdk->rhgk", q[mine], keys)
        scores[:, :, :, :] = np.where(
            np.arange(longest) <= positions[mine, None, None, None], scores, -np.inf
        )
        weights = np.exp2(scores - scores.max(axis=3, keepdims=True))
        numbers = np.einsum("rhgk,hkd->rhgd", weights, sums) / weights.sum(axis=3)[..., None]
        out[mine] = oracles.narrow(twin.kind, numbers.reshape(count, -1))


def gate(twin: Any, grid: Grid, values: Values) -> None:
    rows, width = values["rows"], values["width"]
    words = rows * width // (1 if twin.kind == "f32" else 2)
    both, out = (flat(values[n], np.uint32, words * k) for n, k in (("both", 2), ("out", 1)))
    oracles.gate(twin.kind, both, out, rows, width)


def sample(twin: Any, grid: Grid, values: Values) -> None:
    rows, vocab = grid[0], values["vocab"]
    kinds = {
        "temperature": np.float64, "top_k": np.int32, "top_p": np.float64, "min_p": np.float64,
        "seeds": np.uint64, "positions": np.int32, "tokens": np.int32,
    }  # fmt: skip
    arrays = {name: flat(values[name], dtype, rows) for name, dtype in kinds.items()}
    arrays["logits"] = flat(values["logits"], np.float32, rows * vocab)
    oracles.sample(**{**values, **arrays})


TWINS: dict[str, Callable[[Any, Grid, Values], None]] = {
    "append": append,
    "decode": decode,
    "combine": combine,
    "prefill": prefill,
    "gate": gate,
    "sample": sample,
}
