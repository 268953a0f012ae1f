"""How a page of one head lies in words, for every format of keys and values.

    f32 f16 bf16   numbers [16 tokens][dim]
    int8 fp8       codes [16][dim]      | scales bf16 [16]
    int4           codes [16][dim / 2]  | scales bf16 [16][groups] | lows, alike

A code depends on its token alone. What codes mean, and why keys of 4 bits are turned, is in
`drivers/cpu/kvformat.py`; there pages lie differently, in lanes of a vector.
"""

from dataclasses import dataclass

from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.kvkind import KvKind

DIMS = (64, 80, 96, 128, 256)
"""Head dims that kernels are made for."""

MOST_GROUP = 16
"""Query heads of one kv head."""

_BITS: dict[KvKind, int] = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8, "fp8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class Page:
    """A page of one head, K or V."""

    kind: KvKind
    dim: int

    @property
    def is_coded(self) -> bool:
        return self.kind in ("int8", "fp8", "int4")

    @property
    def token_words(self) -> int:
        """Words of a token's numbers or codes."""
        return self.dim * _BITS[self.kind] // 32

    @property
    def groups(self) -> int:
        """Groups of dims with a scale of their own, 0 if numbers are as they are."""
        if self.kind == "int4":
            return self.dim // (32 if self.dim % 32 == 0 else 16)
        return 1 if self.is_coded else 0

    @property
    def scales_at(self) -> int:
        """In words; the low half of a word is the scale that comes first."""
        return PAGE_TOKENS * self.token_words

    @property
    def lows_at(self) -> int:
        return self.scales_at + PAGE_TOKENS * self.groups // 2

    @property
    def words(self) -> int:
        lows = self.groups if self.kind == "int4" else 0
        return self.lows_at + PAGE_TOKENS * lows // 2


def layer_words(kind: KvKind, dim: int, kv_heads: int) -> int:
    """Words of a layer in a frame: K of all kv heads, then V of all."""
    return 2 * kv_heads * Page(kind, dim).words
