"""How the weights of a model may be kept, by name: what `weights` may be."""

from typing import Literal, get_args

WeightKind = Literal["auto", "native", "bf16", "exact", "fp8"]
"""
native: in the blocks of 4 or 8 bits of their file, token rows rounded to 8 bits: the fastest
bf16: as bfloat16, token rows rounded to it: the numbers of most files that are not quantized
exact: as float16, token rows in float32: nearest to the model in float32
auto: keeps what the file has. Of a quantized one native, where the processor has the instructions
      for it (AVX512-VNNI); of one in bfloat16 bf16, likewise (AVX512-BF16); else exact
On GPUs weights are in bfloat16, but
native, auto: in 8 bits those that are so in their file
fp8: in 8 bits all matrices of layers, token rows rounded to 8 bits; of the cuda driver
"""

WEIGHT_KINDS: tuple[WeightKind, ...] = get_args(WeightKind)
