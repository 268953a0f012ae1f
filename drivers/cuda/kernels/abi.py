"""What each kernel is called with: the one list that signatures, twins and launchers are made of.

Arguments are raw device pointers, strides and scalars, in this order, with the alignment of C. A
word is a uint32: one float32, two 16-bit floats (the first in the low half), or four codes.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

ArgKind = Literal["f32*", "f64*", "u32*", "i32*", "i64*", "u64*", "f32", "i32", "u32", "i64"]

PAGE_TOKENS = 16
"""Tokens of a page. The driver refuses other sizes."""

SPLIT_TOKENS = 256
"""Keys of one split of a decode. A constant, so that a row's sums do not depend on its batch."""

NOTHING = -1
"""A position: the row is padding. Nothing is read or written for it but its outputs, zeros."""

FAULT = -1
"""A token: the row's logits are not finite."""


class Arg(NamedTuple):
    """One argument of a kernel."""

    name: str
    kind: ArgKind


@dataclass(frozen=True, slots=True)
class Op:
    """An operation: what all its implementations are called with."""

    name: str
    args: tuple[Arg, ...]


def _op(name: str, **kinds: ArgKind) -> Op:
    return Op(name, tuple(Arg(arg, kind) for arg, kind in kinds.items()))


APPEND = _op(
    "append",
    qkv="u32*",
    bias="f32*",
    q_norm="f32*",
    k_norm="f32*",
    cos="f32*",
    sin="f32*",
    positions="i32*",
    slots="i32*",
    tables="i32*",
    q="f32*",
    arena="u32*",
    layer_at="i64",
    frame_words="i64",
    rows="i32",
    heads="i32",
    kv_heads="i32",
    half="i32",
    max_pages="i32",
    eps="f32",
)
DECODE = _op(
    "decode",
    q="f32*",
    arena="u32*",
    tables="i32*",
    slots="i32*",
    positions="i32*",
    parts="f32*",
    stats="f32*",
    layer_at="i64",
    frame_words="i64",
    kv_heads="i32",
    max_pages="i32",
    split_tokens="i32",
    splits="i32",
    scale="f32",
)
COMBINE = _op(
    "combine",
    parts="f32*",
    stats="f32*",
    positions="i32*",
    out="u32*",
    items="i32",
    heads="i32",
    split_tokens="i32",
    splits="i32",
)
PREFILL = _op(
    "prefill",
    q="f32*",
    arena="u32*",
    tables="i32*",
    slots="i32*",
    positions="i32*",
    tiles="i32*",
    out="u32*",
    layer_at="i64",
    frame_words="i64",
    kv_heads="i32",
    max_pages="i32",
    scale="f32",
)
GATE = _op("gate", both="u32*", out="u32*", rows="i32", width="i32")
SAMPLE = _op(
    "sample",
    logits="f32*",
    temperature="f64*",
    top_k="i32*",
    top_p="f64*",
    min_p="f64*",
    seeds="u64*",
    positions="i32*",
    tokens="i32*",
    vocab="i32",
)

OPS: dict[str, Op] = {op.name: op for op in (APPEND, DECODE, COMBINE, PREFILL, GATE, SAMPLE)}
