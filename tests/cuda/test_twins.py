"""Twins of the fake GPU against the oracles of the kernels, on random pages."""

import numpy as np
import pytest

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.kernels import oracles
from tokenix.drivers.cuda.kernels.abi import OPS
from tokenix.drivers.cuda.kernels.pages import Page
from tokenix.tests.cuda import twins
from tokenix.tests.cuda.fake import Twin

ROWS, PAGES, FRAMES, SLOTS, DIM, SPLIT = 6, 5, 12, 3, 64, 32


class Case:
    """Random arguments of every op, for a kind of numbers and a group of query heads."""

    def __init__(self, rng, kind, group, extras):
        self.kv_heads, self.heads = 2, 2 * group
        self.shape = FrameShape(2, self.kv_heads, Page(kind, DIM))
        self.kind = kind
        words = self.shape.stride_bytes // 4
        numbers = rng.standard_normal(FRAMES * words * (1 if kind == "f32" else 2)) * 0.5
        positions = np.array([0, 79, 15, 31, -1, 32], np.int32)
        every = (self.heads + 2 * self.kv_heads) * DIM
        self.arrays = {
            "arena": oracles.narrow(kind, numbers),
            "tables": rng.integers(0, FRAMES, SLOTS * PAGES).astype(np.int32),
            "slots": np.array([0, 1, 2, 1, 0, 2], np.int32),
            "positions": positions,
            "qkv": oracles.narrow(kind, rng.standard_normal(ROWS * every)),
            "bias": rng.standard_normal(every if extras else 0).astype(np.float32),
            "q_norm": rng.standard_normal(DIM if extras else 0).astype(np.float32),
            "k_norm": rng.standard_normal(DIM if extras else 0).astype(np.float32),
            "cos": rng.standard_normal(80 * DIM // 2).astype(np.float32),
            "sin": rng.standard_normal(80 * DIM // 2).astype(np.float32),
            "q": rng.standard_normal(ROWS * self.heads * DIM).astype(np.float32),
            "parts": np.zeros(ROWS * self.heads * 3 * DIM, np.float32),
            "stats": np.zeros(ROWS * self.heads * 3 * 2, np.float32),
            "out": np.zeros(ROWS * self.heads * DIM // (1 if kind == "f32" else 2), np.uint32),
        }
        self.scalars = {
            "layer_at": self.shape.layer_words,
            "frame_words": words,
            "rows": ROWS,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "half": DIM // 2,
            "max_pages": PAGES,
            "eps": 1e-5,
            "split_tokens": SPLIT,
            "splits": 3,
            "scale": 0.2,
            "items": ROWS * self.heads,
        }

    def run(self, op, by):
        """All arrays after the op was done by `twins` or `oracles`."""
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        names = [arg.name for arg in OPS[op].args]
        if by is twins:
            at = {n: a.ctypes.data if len(a) else 0 for n, a in arrays.items()}
            values = {name: {**self.scalars, **at}[name] for name in names}
            twin = Twin(op, self.shape, self.heads, self.kind)
            twins.TWINS[op](twin, twin.grid(ROWS, 3), values)
        else:
            values = {name: {**self.scalars, **arrays}[name] for name in names}
            kinds = {"append": (self.kind, self.shape.page), "decode": (self.shape.page,)}
            getattr(oracles, op)(*kinds.get(op, (self.kind,)), **values)
        return arrays


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize(("kind", "group"), [("f32", 1), ("f16", 3), ("bf16", 4)])
def test_a_twin_does_what_its_oracle_does(kind, group, extras, seed):
    case = Case(np.random.default_rng(seed), kind, group, extras)
    for op, written in (
        ("append", ("q", "arena")),
        ("decode", ("parts", "stats")),
        ("combine", ("out",)),
    ):
        mine, theirs = case.run(op, twins), case.run(op, oracles)
        for name in written:
            a, b = mine[name], theirs[name]
            if a.dtype == np.uint32:
                a, b = oracles.widen(kind, a), oracles.widen(kind, b)
            assert np.allclose(a, b, rtol=1e-2 if kind == "bf16" else 2e-3, atol=1e-5), (op, name)
        case.arrays = mine
