"""Weights of a model into one run of bytes for `blocklayers`: every layer's matrices in the order
in which a pass reads them, then the embedding and the head."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from tokenix.drivers.cpu.blockitems import UNIT
from tokenix.drivers.cpu.blocklayers import BlockWeights
from tokenix.drivers.cpu.blocks import (
    ALIGNMENT,
    count_pairs,
    lay_out,
    make_codes,
    pack_codes,
)
from tokenix.drivers.cpu.blocktile import tile_function
from tokenix.drivers.cpu.blocktypes import format_of, keeps, read_codes
from tokenix.drivers.cpu.jit import Array, Int64
from tokenix.drivers.cpu.lanes import LANES
from tokenix.drivers.cpu.pack import read_vectors
from tokenix.drivers.cpu.packcache import PackCache, take_packed
from tokenix.drivers.cpu.pieces import Piece, cut, pack_all
from tokenix.models.config import ModelConfig
from tokenix.models.ggml_types import dequantize
from tokenix.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Matrix:
    """Tensors with their rows stacked, and where each group of 16 of them lies."""

    parts: tuple[str, ...]
    inputs: int
    order: tuple[tuple[int, int], ...]
    """(part, its group), as they lie."""
    entries: Int64


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything goes."""

    matrices: dict[str, Matrix]
    size_bytes: int


def make_plan(config: ModelConfig, weights: Weights) -> Plan:
    """Nothing is packed yet."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    wanted: list[tuple[str, tuple[tuple[str, int], ...], int]] = []
    for i in range(config.layers):
        at = f"layers.{i}."
        wanted += [
            (at + "qkv", ((at + "q", queries), (at + "k", keys), (at + "v", keys)), config.hidden),
            (at + "o", ((at + "o", config.hidden),), queries),
            (at + "gate_up", ((at + "gate", config.ffn), (at + "up", config.ffn)), config.hidden),
            (at + "down", ((at + "down", config.hidden),), config.ffn),
        ]
    wanted.append(("embed", (("embed", config.vocab_tokens),), config.hidden))
    if not config.tied_embeddings:
        wanted.append(("head", (("head", config.vocab_tokens),), config.hidden))
    matrices, end = {}, 0
    for name, parts, inputs in wanted:
        paired = name.endswith("gate_up")
        order = _arrange([-(-rows // LANES) for _, rows in parts], paired)
        forms = [format_of(weights.kind(part)) for part, _ in parts]
        pairs = count_pairs(inputs)
        entries, end = lay_out((forms[part] for part, _ in order), pairs, end)
        names = tuple(part for part, _ in parts)
        matrices[name] = Matrix(names, inputs, tuple(order), np.array(entries, np.int64))
    return Plan(matrices, end)


def _arrange(groups: list[int], paired: bool) -> list[tuple[int, int]]:
    """One part behind the other; or half a UNIT of each in turn, missing ones included."""
    if not paired:
        return [(part, group) for part, count in enumerate(groups) for group in range(count)]
    half = UNIT // 2
    units = -(-groups[0] // half)
    return [
        (part, unit * half + i) for unit in range(units) for part in (0, 1) for i in range(half)
    ]


def fill_blob(
    plan: Plan, weights: Weights, blob: Array, progress: Callable[[str, float], None] | None = None
) -> None:
    """Pack every matrix into its place; blob uint8 [size_bytes] of zeros. ValueError as
    `blocks.as_float16` and `blocks.pack_codes`."""
    pack_all(_jobs(plan, weights, blob, progress))


def _jobs(
    plan: Plan, weights: Weights, blob: Array, progress: Callable[[str, float], None] | None
) -> Iterator[Callable[[], None]]:
    """One for each piece of each matrix."""
    for done, matrix in enumerate(plan.matrices.values()):
        places = list(zip(matrix.order, matrix.entries.tolist(), strict=True))
        for part, name in enumerate(matrix.parts):
            starts = [entry - entry % ALIGNMENT for (of, _), entry in places if of == part]
            at = 0
            for piece in cut(weights, name, matrix.inputs):
                yield partial(_pack_piece, piece, blob, starts[at : at + piece.groups])
                at += piece.groups
        if progress is not None:
            progress("packing weights", (done + 1) / len(plan.matrices))


def _pack_piece(piece: Piece, blob: Array, starts: list[int]) -> None:
    """Its groups to where they begin. ValueError names it."""
    try:
        if keeps(piece.kind):
            codes = read_codes(piece.kind, piece.raw)
        else:
            codes = make_codes(dequantize(piece.raw, piece.kind))
        groups = pack_codes(codes)
    except ValueError as why:
        raise ValueError(f"{piece.name}: {why}") from None
    for start, group in zip(starts, groups, strict=True):
        blob[start : start + len(group)] = group


def pack_model(
    config: ModelConfig,
    weights: Weights,
    progress: Callable[[str, float], None] | None = None,
    keep: PackCache | None = None,
) -> BlockWeights:
    """All weights of a model. ValueError as `fill_blob`."""
    plan = make_plan(config, weights)

    def fill(blob: Array) -> None:
        fill_blob(plan, weights, blob, progress)

    blob = take_packed(keep, "native", config, plan.size_bytes, fill)
    vectors = read_vectors(config, weights)

    def entries(name: str) -> Int64:
        each = [plan.matrices[f"layers.{i}.{name}"].entries for i in range(config.layers)]
        return np.stack(each)

    embed = plan.matrices["embed"].entries
    return BlockWeights(
        tile=tile_function(),
        blob=blob,
        attn_norm=vectors.attn_norm,
        qkv=entries("qkv"),
        bias=vectors.bias,
        q_norm=vectors.q_norm,
        k_norm=vectors.k_norm,
        o=entries("o"),
        ffn_norm=vectors.ffn_norm,
        gate_up=entries("gate_up"),
        down=entries("down"),
        norm=weights.float32("norm"),
        embed=embed,
        head=embed if config.tied_embeddings else plan.matrices["head"].entries,
    )
