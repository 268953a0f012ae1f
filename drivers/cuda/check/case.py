"""Random arguments of every kernel, run on the device and compared with the float64 oracle.

Outputs are not-a-number before, so that what is not written is seen; so are pages that no row may
read. Bounds are those of the narrowest numbers that take part.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.abi import OPS, PAGE_TOKENS
from tokenix.drivers.cuda.kernels.gate import count_blocks
from tokenix.drivers.cuda.kernels.pages import Page
from tokenix.drivers.cuda.kernels.prefill import make_tiles
from tokenix.drivers.cuda.kernels.registry import Shape
from tokenix.drivers.cuda.launcher import Launcher

Arrays = dict[str, npt.NDArray[Any]]

POSITIONS = (0, 79, 15, 31, -1, 32, 33, 34, 35)
"""Of the rows; the last four are a chunk of one slot."""

CHUNK = (5, 4)
"""First row, rows."""

SLOTS = (0, 1, 2, 1, 0, 2, 2, 2, 2)
PAGES, FRAMES, SPLIT, VOCAB = 5, 16, 32, 97
SPLITS = 3

WRITTEN = {
    "append": ("q", "arena"),
    "decode": ("parts", "stats"),
    "combine": ("out",),
    "prefill": ("out",),
    "gate": ("out",),
    "sample": ("tokens",),
}

BOUNDS: dict[str, float] = {"f32": 1e-4, "f16": 4e-3, "bf16": 3e-2}
"""Of what is computed of such numbers. Codes are exact: what is computed of them is not worse."""

STORED: dict[str, float] = {**BOUNDS, "int8": 5e-2, "fp8": 0.15, "int4": 0.5}
"""Of a number in its page: a step to the next code, where a sum was at the edge of two."""


class Case:
    """Arguments for one shape, the same for each seed."""

    def __init__(self, shape: Shape, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.shape = shape
        self.frames = FrameShape(2, shape.kv_heads, Page(shape.kv, shape.dim))
        rows, heads, dim, x = len(POSITIONS), shape.heads, shape.dim, shape.x
        words = self.frames.stride_bytes // 4
        every = (heads + 2 * shape.kv_heads) * dim
        # Rows of one slot share its pages, those of two slots share none.
        tables = rng.permutation(FRAMES)[: 3 * PAGES].astype(np.int32)
        self.arrays: Arrays = {
            "arena": self._draw_arena(rng),
            "tables": tables,
            "slots": np.array(SLOTS, np.int32),
            "positions": np.array(POSITIONS, np.int32),
            "qkv": oracles.narrow(x, rng.standard_normal(rows * every)),
            "bias": _normal(rng, every if shape.bias else 0),
            "q_norm": _normal(rng, dim if shape.norm else 0),
            "k_norm": _normal(rng, dim if shape.norm else 0),
            "cos": _normal(rng, 80 * dim // 2),
            "sin": _normal(rng, 80 * dim // 2),
            "q": _normal(rng, rows * heads * dim),
            "parts": np.full(rows * heads * SPLITS * dim, np.nan, np.float32),
            "stats": np.full(rows * heads * SPLITS * 2, np.nan, np.float32),
            "out": np.full(rows * heads * dim // (1 if x == "f32" else 2), 0xFFFFFFFF, np.uint32),
            "both": oracles.narrow(x, rng.standard_normal(2 * rows * heads * dim) * 3),
            "tiles": make_tiles([CHUNK]),
            "logits": _normal(rng, rows * VOCAB) * np.float32(3),
            "temperature": rng.choice([0.0, 0.7, 1.0], rows),
            "top_k": rng.choice([0, 5], rows).astype(np.int32),
            "top_p": rng.choice([1.0, 0.8], rows),
            "min_p": rng.choice([0.0, 0.05], rows),
            "seeds": rng.integers(0, 1 << 62, rows).astype(np.uint64),
            "tokens": np.full(rows, -9, np.int32),
        }
        self.scalars: dict[str, float] = {
            "layer_at": self.frames.layer_words,
            "frame_words": words,
            "rows": rows,
            "heads": heads,
            "kv_heads": shape.kv_heads,
            "half": dim // 2,
            "max_pages": PAGES,
            "eps": 1e-5,
            "split_tokens": SPLIT,
            "splits": SPLITS,
            "scale": 1.4427 / dim**0.5,
            "items": rows * heads,
            "vocab": VOCAB,
            "width": heads * dim,
        }

    def _draw_arena(self, rng: np.random.Generator) -> npt.NDArray[np.uint32]:
        """Every number of every frame, and junk where there is none."""
        frames, page = self.frames, self.frames.page
        words = frames.stride_bytes // 4
        kind: Any = page.kind
        if not page.is_coded:
            numbers = rng.standard_normal(FRAMES * words * (1 if kind == "f32" else 2)) * 0.5
            return oracles.narrow(kind, numbers)
        arena = np.full(FRAMES * words, 0xFFFFFFFF, np.uint32)
        for at in range(0, FRAMES * words, words):
            for layer in range(frames.layers):
                for token in range(PAGE_TOKENS):
                    heads = rng.standard_normal((2 * frames.kv_heads, page.dim))
                    place = at + layer * frames.layer_words + token * page.token_words
                    oracles.write_heads(page, arena, place, token, heads)
        return arena

    def _numbers(self, arena: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
        """All that is in the frames, whatever the format."""
        page: Page = self.frames.page
        kind: Any = page.kind
        if not page.is_coded:
            return oracles.widen(kind, arena)
        heads = self.frames.layers * 2 * self.frames.kv_heads
        keys, tables = np.arange(FRAMES * PAGE_TOKENS), np.arange(FRAMES)
        words = self.frames.stride_bytes // 4
        with np.errstate(invalid="ignore"):
            return np.stack([
                oracles.read_head(page, arena, tables, 0, keys, head * page.words, words, FRAMES)
                for head in range(heads)
            ])  # fmt: skip

    def expect(self, op: str) -> Arrays:
        """What the op writes, by its oracle; what no row reads is not-a-number, as before."""
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        values: dict[str, Any] = {
            name: arrays.get(name, self.scalars.get(name)) for name, _ in OPS[op].args
        }
        page = self.frames.page
        if op == "prefill":
            self._expect_prefill(arrays)
        elif op == "append":
            oracles.append(self.shape.x, page, **values)
        elif op == "decode":
            oracles.decode(page, **values)
        elif op == "gate":
            oracles.gate(self.shape.x, **values)
        elif op == "combine":
            oracles.combine(self.shape.x, **values)
        else:
            oracles.sample(**values)
        return {name: arrays[name] for name in WRITTEN[op]}

    def _expect_prefill(self, arrays: Arrays) -> None:
        first, count = CHUNK
        width = self.shape.heads * self.shape.dim
        numbers = oracles.attend(
            self.frames.page,
            arrays["q"][first * width : (first + count) * width],
            arrays["arena"], arrays["tables"], arrays["slots"][first:], arrays["positions"][first:],
            int(self.scalars["layer_at"]), int(self.scalars["frame_words"]), self.shape.kv_heads,
            PAGES, self.scalars["scale"],
        )  # fmt: skip
        words = len(arrays["out"]) // len(POSITIONS)
        narrow = oracles.narrow(self.shape.x, numbers.reshape(-1))
        arrays["out"][first * words : (first + count) * words] = narrow

    def compute(self, op: str, driver: CudaDriver, launcher: Launcher) -> Arrays:
        """What the op writes on the device."""
        names = [name for name, kind in OPS[op].args if kind.endswith("*")]
        scalars = {name: self.scalars[name] for name, _ in OPS[op].args if name not in names}
        rows = {
            "prefill": len(self.arrays["tiles"]) // 2,
            "gate": count_blocks(len(POSITIONS), int(self.scalars["width"])),
        }.get(op, len(POSITIONS))
        held: dict[str, int] = {}
        try:
            for name in names:
                held[name] = _upload(driver, self.arrays[name])
            block = Block(OPS[op], {**held, **scalars})
            launcher.launch(block, rows, SPLITS if op in ("decode", "combine") else 1)
            driver.sync(launcher.stream)
            found: Arrays = {}
            for name in WRITTEN[op]:
                found[name] = np.empty_like(self.arrays[name])
                driver.download(found[name].ctypes.data, int(held[name]), found[name].nbytes)
            return found
        finally:
            for address in held.values():
                if address:
                    driver.free(int(address))

    def take(self, found: Mapping[str, npt.NDArray[Any]]) -> None:
        """What one kernel has written is what the next is given."""
        self.arrays.update(found)

    def error(self, op: str, found: Arrays) -> float:
        """The largest difference from the oracle, as part of the bound: 1 and less is right."""
        expected = self.expect(op)
        if op == "decode":  # a split's peak may be any near the largest score
            found, expected = self._combine(found), self._combine(expected)
        if op == "sample":
            known = self.arrays["positions"] >= 0
            right = (found["tokens"] == expected["tokens"])[known].all()
            return 0.0 if right else float("inf")
        worst = 0.0
        for name in expected:
            mine, theirs, bound = found[name], expected[name], BOUNDS["f32"]
            if name == "arena":
                mine, theirs, bound = (
                    self._numbers(mine),
                    self._numbers(theirs),
                    STORED[self.shape.kv],
                )
            elif mine.dtype == np.uint32:
                mine, theirs = (oracles.widen(self.shape.x, each) for each in (mine, theirs))
                bound = BOUNDS[self.shape.x]
            elif op == "decode":
                bound = BOUNDS.get(self.shape.kv, BOUNDS["f16"])
            worst = max(worst, _distance(mine, theirs) / bound)
        return worst

    def _combine(self, found: Arrays) -> Arrays:
        out = np.zeros(len(POSITIONS) * self.shape.heads * self.shape.dim, np.uint32)
        values = {name: self.scalars[name] for name in ("items", "heads", "split_tokens", "splits")}
        oracles.combine(
            "f32", found["parts"], found["stats"], self.arrays["positions"], out,
            **{name: int(value) for name, value in values.items()},
        )  # fmt: skip
        return {"out": out.view(np.float32)}


def _distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Relative to 1 or the number, whichever is larger; what is not-a-number in one must be so in
    the other."""
    strange = np.isnan(a) != np.isnan(b)
    if strange.any():
        return float("inf")
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    return float(np.nan_to_num(gaps).max())


def _normal(rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    return rng.standard_normal(count).astype(np.float32)


def _upload(driver: CudaDriver, array: npt.NDArray[Any]) -> int:
    """0 for nothing."""
    if array.nbytes == 0:
        return 0
    address = driver.alloc(array.nbytes)
    driver.upload(address, array.ctypes.data, array.nbytes)
    return address


assert max(POSITIONS) < PAGES * PAGE_TOKENS
