"""Attention of one new token of each row over its pages, and the sum of the splits.

    block    a row, a kv head (and up to 5 of its query heads), SPLIT_TOKENS keys
    warp     a quarter of the tokens: 4 warps take turns of `unroll` * tokens_per_warp keys
    lanes    the numbers of one token, 16 bytes of K and of V each

              lane 0  lane 1  ...  lane n-1 | lane n ...
    K, V      [ 16 B ][ 16 B ] ... [ 16 B ]  | the next token      n: a power of two, at least
              <-------- dim numbers ------->                          dim * bytes / 16

Each group of n lanes keeps its own running softmax (m, weights, acc) in registers and sees every
(4 * tokens_per_warp)th key. Nothing is exchanged but partial dot products, until the groups meet in
shared memory at the end. What a row computes depends on nothing but its keys, in a fixed order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.kernels.words import (
    LEAST,
    NUMBER_OF,
    PER_WORD,
    STORE_PAIR,
    Kind,
    cuda,
    device,
    exp2,
    float32,
    load4,
    quotient,
    uint32,
)

WARPS = 4
THREADS = 32 * WARPS
MOST_HEADS = 5
"""Query heads of one block; with 6 Ampere runs out of registers."""

ALL = 0xFFFFFFFF


def count_tiles(group: int) -> int:
    """Blocks among which the query heads of one kv head are shared."""
    return -(-group // MOST_HEADS)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the work of a block lies in its warps and lanes."""

    kind: Kind
    group: int
    dim: int

    @property
    def numbers(self) -> int:
        """Numbers in 16 bytes, a chunk."""
        return 4 * PER_WORD[self.kind]

    @property
    def last_chunk(self) -> int:
        """Of a token. Lanes past it compute with it, and nothing comes of that."""
        return self.dim // self.numbers - 1

    @property
    def lanes(self) -> int:
        """Lanes of one token."""
        return min(32, 1 << self.last_chunk.bit_length())

    @property
    def chunks(self) -> int:
        """Of a lane: chunks `part`, `part + lanes`, ... of the token."""
        return -(-(self.last_chunk + 1) // self.lanes)

    @property
    def mine(self) -> int:
        """Numbers of a lane."""
        return self.chunks * self.numbers

    @property
    def tiles(self) -> int:
        """Blocks among which the query heads of one kv head are shared."""
        return count_tiles(self.group)

    @property
    def heads(self) -> int:
        """Query heads of a block. In the last one some may be past the group: not written."""
        return -(-self.group // self.tiles)

    @property
    def unroll(self) -> int:
        """Tokens of a lane in one turn, so that several loads are under way."""
        return 2 if self.heads <= 4 else 1

    @property
    def warp_tokens(self) -> int:
        """Tokens that a warp takes at once."""
        return 32 // self.lanes

    @property
    def groups(self) -> int:
        """Running softmaxes of a block."""
        return WARPS * self.warp_tokens

    @property
    def token_words(self) -> int:
        return self.dim // PER_WORD[self.kind]


def _make_load_query(t: Tiling) -> Any:
    heads, group, dim, chunks, lanes = t.heads, t.group, t.dim, t.chunks, t.lanes
    last_chunk, numbers = t.last_chunk, t.numbers

    @device
    def load_query(q: Any, head: Any, first: Any, part: Any, scale: Any, query: Any) -> None:
        """The queries of this lane's numbers; `head`: index of the group's first head in q."""
        for g in range(heads):
            at_head = (head + min(first + g, group - 1)) * dim
            for c in range(chunks):
                chunk = part + c * lanes
                at = at_head + min(chunk, last_chunk) * numbers
                for e in range(numbers):
                    seen = q[at + e] * scale
                    query[g, c * numbers + e] = seen if chunk <= last_chunk else float32(0.0)

    return load_query


def _make_load_token(t: Tiling) -> Any:
    chunks, lanes, last_chunk = t.chunks, t.lanes, t.last_chunk

    @device
    def load_token(arena: Any, at: Any, part: Any, u: Any, words: Any) -> None:
        """This lane's words of the token at `at`."""
        for c in range(chunks):
            w0, w1, w2, w3 = load4(arena, at + min(part + c * lanes, last_chunk) * 4)
            words[u, 4 * c] = w0
            words[u, 4 * c + 1] = w1
            words[u, 4 * c + 2] = w2
            words[u, 4 * c + 3] = w3

    return load_token


def _make_score(t: Tiling) -> Any:
    heads, mine, lanes = t.heads, t.mine, t.lanes
    number_of, per_word = NUMBER_OF[t.kind], PER_WORD[t.kind]

    @device
    def score(query: Any, key: Any, u: Any, inside: Any, x: Any) -> None:
        """x[u] = the scores of token u for each head, in all lanes of the token."""
        for g in range(heads):
            x[u, g] = float32(0.0)
        for e in range(mine):
            number = number_of(key[u, e // per_word], e % per_word)
            for g in range(heads):
                x[u, g] += query[g, e] * number
        for g in range(heads):
            total = x[u, g]
            step = lanes // 2
            while step > 0:
                total += cuda.shfl_xor_sync(ALL, total, step)
                step //= 2
            x[u, g] = total if inside else LEAST

    return score


def _make_weigh(t: Tiling) -> Any:
    heads, mine, unroll = t.heads, t.mine, t.unroll
    number_of, per_word = NUMBER_OF[t.kind], PER_WORD[t.kind]

    @device
    def weigh(x: Any, value: Any, m: Any, weights: Any, acc: Any) -> None:
        """Add tokens with scores x to the running softmax: peaks m, their weights, sums acc."""
        for g in range(heads):
            peak = m[g]
            for u in range(unroll):
                peak = max(peak, x[u, g])
            c = exp2(m[g] - peak)
            m[g] = peak
            weights[g] *= c
            for e in range(mine):
                acc[g, e] *= c
            for u in range(unroll):
                weight = exp2(x[u, g] - peak)
                x[u, g] = float32(0.0) if x[u, g] <= LEAST else weight
                weights[g] += x[u, g]
        for u in range(unroll):
            for e in range(mine):
                number = number_of(value[u, e // per_word], e % per_word)
                for g in range(heads):
                    acc[g, e] += x[u, g] * number

    return weigh


def _make_share(t: Tiling) -> Any:
    heads, chunks, lanes = t.heads, t.chunks, t.lanes
    last_chunk, numbers = t.last_chunk, t.numbers

    @device
    def share(
        m: Any, weights: Any, acc: Any, mine_at: Any, part: Any, sums: Any, peaks: Any
    ) -> None:
        """This lane's running softmax into shared memory."""
        for g in range(heads):
            for c in range(chunks):
                chunk = part + c * lanes
                if chunk <= last_chunk:
                    for e in range(numbers):
                        sums[mine_at, g, chunk * numbers + e] = acc[g, c * numbers + e]
            if part == 0:
                peaks[mine_at, g, 0] = m[g]
                peaks[mine_at, g, 1] = weights[g]

    return share


@device
def _merge_groups(sums: Any, peaks: Any, groups: int, g: int, d: int) -> Any:
    """All running softmaxes of a block as one: its peak, its weights, its sum of dim d."""
    peak = LEAST
    for w in range(groups):
        peak = max(peak, peaks[w, g, 0])
    total, weights = float32(0.0), float32(0.0)
    for w in range(groups):
        c = exp2(peaks[w, g, 0] - peak)
        total += sums[w, g, d] * c
        weights += peaks[w, g, 1] * c
    return peak, weights, total


def make_decode(t: Tiling) -> Any:
    """The kernel `abi.DECODE`."""
    load_query, load_token, score = _make_load_query(t), _make_load_token(t), _make_score(t)
    weigh, share = _make_weigh(t), _make_share(t)
    group, dim, tiles, heads, mine = t.group, t.dim, t.tiles, t.heads, t.mine
    lanes, unroll, groups, lane_words = t.lanes, t.unroll, t.groups, 4 * t.chunks
    warp_tokens, token_words = t.warp_tokens, t.token_words

    def decode(
        q: Any, arena: Any, tables: Any, slots: Any, positions: Any, parts: Any, stats: Any,
        layer_at: Any, frame_words: Any, kv_heads: Any, max_pages: Any, split_tokens: Any,
        splits: Any, scale: Any,
    ) -> None:  # fmt: skip
        sums = cuda.shared.array((groups, heads, dim), float32)
        peaks = cuda.shared.array((groups, heads, 2), float32)
        query = cuda.local.array((heads, mine), float32)
        acc = cuda.local.array((heads, mine), float32)
        m = cuda.local.array((heads,), float32)
        weights = cuda.local.array((heads,), float32)
        x = cuda.local.array((unroll, heads), float32)
        key = cuda.local.array((unroll, lane_words), uint32)
        value = cuda.local.array((unroll, lane_words), uint32)
        row, kv, split = cuda.blockIdx.x, cuda.blockIdx.y // tiles, cuda.blockIdx.z
        first_head = cuda.blockIdx.y % tiles * heads
        thread = cuda.threadIdx.x
        warp, token, part = thread // 32, thread % 32 // lanes, thread % lanes
        first = split * split_tokens
        end = min(positions[row] + 1, first + split_tokens)
        if first >= end:
            return
        head = (row * kv_heads + kv) * group
        load_query(q, head, first_head, part, scale, query)
        for g in range(heads):
            m[g] = LEAST
            weights[g] = float32(0.0)
            for e in range(mine):
                acc[g, e] = float32(0.0)
        at_table = slots[row] * max_pages
        at_key = layer_at + kv * token_words * PAGE_TOKENS
        at_value = at_key + kv_heads * token_words * PAGE_TOKENS
        base = first + warp * unroll * warp_tokens
        while base < end:
            for u in range(unroll):
                i = min(base + u * warp_tokens + token, end - 1)
                at = tables[at_table + (i >> 4)] * frame_words + (i & 15) * token_words
                load_token(arena, at_key + at, part, u, key)
                load_token(arena, at_value + at, part, u, value)
            for u in range(unroll):
                score(query, key, u, base + u * warp_tokens + token < end, x)
            weigh(x, value, m, weights, acc)
            base += WARPS * unroll * warp_tokens
        share(m, weights, acc, warp * warp_tokens + token, part, sums, peaks)
        cuda.syncthreads()
        for i in range(thread, heads * dim, THREADS):
            g, d = i // dim, i % dim
            if first_head + g < group:
                peak, weight, total = _merge_groups(sums, peaks, groups, g, d)
                at = (head + first_head + g) * splits + split
                parts[at * dim + d] = total
                if d == 0:
                    stats[at * 2] = peak
                    stats[at * 2 + 1] = weight

    return decode


def make_combine(kind: Kind, dim: int) -> Any:
    """The kernel `abi.COMBINE` for outputs of `kind`: a warp for each row and head."""
    store_pair = STORE_PAIR[kind]
    pairs = dim // 2

    def combine(
        parts: Any,
        stats: Any,
        positions: Any,
        out: Any,
        items: Any,
        heads: Any,
        split_tokens: Any,
        splits: Any,
    ) -> None:
        item = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
        lane = cuda.threadIdx.x % 32
        if item >= items:
            return
        used = quotient(positions[quotient(item, heads)] + split_tokens, split_tokens)
        peak = LEAST
        for s in range(lane, used, 32):
            peak = max(peak, stats[(item * splits + s) * 2])
        step = 16
        while step > 0:
            peak = max(peak, cuda.shfl_xor_sync(ALL, peak, step))
            step //= 2
        for pair in range(lane, pairs, 32):
            low, high, weights = float32(0.0), float32(0.0), float32(0.0)
            for s in range(used):
                at = item * splits + s
                c = exp2(stats[at * 2] - peak)
                weights += stats[at * 2 + 1] * c
                low += parts[at * dim + 2 * pair] * c
                high += parts[at * dim + 2 * pair + 1] * c
            share = np.float32(1.0) / weights if weights > float32(0.0) else float32(0.0)
            store_pair(out, item * pairs + pair, low * share, high * share)

    return combine
