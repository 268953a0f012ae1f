"""Products with the matrices of a model: in 16 or 32 bits, or in 8 where the chip multiplies those.

    w   e4m3 [out, in], float32 for each row: as the file has them, or made of it at load
    x   rounded to e4m3 for the product, with a scale for each row: 448 is its largest number
    y   float32 sums, times both scales, in the dtype of x

So a row of y depends on that row of x alone, whatever it is batched with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, Union

import numpy as np
import numpy.typing as npt

from tokenix.drivers.cuda.dense import DenseKind
from tokenix.models.weights import CodedMatrix, Fp8Weights, Weights

if TYPE_CHECKING:
    import torch

Fp8Use = Literal["stored", "all", "never"]
"""Which matrices are in 8 bits: those that are so in their file, all of the layers, none."""

LEAST_CAPABILITY = (8, 9)
MOST = 448.0
ALIGNMENT = 16
"""Of both sides of a matrix, for products in 8 bits."""

_LEAST_SCALE = 1e-30
"""Of rows that are zeros."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """number = code * scale of its row."""

    codes: "torch.Tensor"
    """float8_e4m3fn [out, in]"""
    scales: "torch.Tensor"
    """float32 [1, out]"""


Matrix: TypeAlias = Union["torch.Tensor", Fp8Matrix]
"""[out, in]"""


def choose_fp8(
    asked: Fp8Use, weights: Weights, capability: tuple[int, int], kind: DenseKind
) -> tuple[Fp8Use, str]:
    """What is done here, and why it is not what was asked for, if it is not."""
    if asked == "never" or not has_fp8(asked, weights):
        return asked, ""
    if capability < LEAST_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
        why = f"compute capability {have} has no products of them, {need} has"
    elif kind != "bf16":
        why = f"activations are {kind}, and products of them are bf16"
    else:
        return asked, ""
    return "never", f"weights are not kept in fp8 but as {kind}: {why}"


def has_fp8(use: Fp8Use, weights: Weights) -> bool:
    """Whether there are matrices in 8 bits."""
    if use != "stored":
        return use == "all"
    return isinstance(weights, Fp8Weights) and any(
        weights.fp8(name) is not None for name in weights.names() if name.startswith("layers.0.")
    )


def join_stored(weights: Weights, names: Sequence[str]) -> CodedMatrix | None:
    """Matrices below each other as they are in their file; None if one of them is not e4m3."""
    found = [weights.fp8(name) if isinstance(weights, Fp8Weights) else None for name in names]
    parts = [part for part in found if part is not None]
    if len(parts) < len(names):
        return None
    codes = np.concatenate([part.codes for part in parts])
    return CodedMatrix(codes, np.concatenate([part.scales for part in parts]))


def is_aligned(shape: tuple[int, ...]) -> bool:
    """Whether there are products in 8 bits with a matrix of that shape."""
    return not any(size % ALIGNMENT for size in shape)


def quantize(rows: npt.NDArray[np.float32], device: "torch.device") -> Fp8Matrix:
    """Each row with the scale that makes its largest number 448."""
    import torch

    numbers = torch.from_numpy(np.ascontiguousarray(rows)).to(device)
    codes, scales = _encode(numbers)
    return Fp8Matrix(codes, scales.reshape(1, -1))


def multiply(
    x: "torch.Tensor", matrix: Matrix, out: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """x [rows, in] @ matrix.T, as the dtype of x; into `out` [rows, out] if there is one."""
    import torch

    if isinstance(matrix, torch.Tensor):
        return torch.mm(x, matrix.t(), out=out)
    codes, scales = _encode(x)
    return torch._scaled_mm(
        codes, matrix.codes.t(), scale_a=scales, scale_b=matrix.scales, out_dtype=x.dtype, out=out
    )


def multiply_wide(
    x: "torch.Tensor", matrix: "torch.Tensor", out: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """x [rows, in] @ matrix.T, as the float32 that its sums are; into `out` if there is one.

    Logits are made so: bfloat16 around 20 has steps of 1/8, and the best of them would often be
    several.
    """
    import torch

    if x.dtype is torch.float32:
        return torch.mm(x, matrix.t(), out=out)
    if x.is_cuda:
        return torch.mm(x, matrix.t(), out_dtype=torch.float32, out=out)
    return torch.mm(x.float(), matrix.t().float(), out=out)  # torch has that on GPUs only


def _encode(x: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """(e4m3, float32 [rows, 1]). A number that is none stays none."""
    import torch

    scales = x.abs().amax(dim=1, keepdim=True).float().div_(MOST).clamp_min_(_LEAST_SCALE)
    codes = x.float().div_(scales).clamp_(-MOST, MOST).to(torch.float8_e4m3fn)
    return codes, scales
