"""Tensor types of GGUF files: block sizes, and which of them can be dequantized."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenix.models.image_error import ENOEXEC, image_error


@dataclass(frozen=True, slots=True)
class GgmlType:
    """`block` elements of a row are stored in `block_bytes` bytes."""

    id: int
    name: str
    block: int
    block_bytes: int
    readable: bool = True
    """Whether the `gguf` package can dequantize it."""


BY_ID = {
    t.id: t
    for t in (
        GgmlType(0, "F32", 1, 4),
        GgmlType(1, "F16", 1, 2),
        GgmlType(2, "Q4_0", 32, 18),
        GgmlType(3, "Q4_1", 32, 20),
        GgmlType(6, "Q5_0", 32, 22),
        GgmlType(7, "Q5_1", 32, 24),
        GgmlType(8, "Q8_0", 32, 34),
        GgmlType(9, "Q8_1", 32, 40, readable=False),
        GgmlType(10, "Q2_K", 256, 84),
        GgmlType(11, "Q3_K", 256, 110),
        GgmlType(12, "Q4_K", 256, 144),
        GgmlType(13, "Q5_K", 256, 176),
        GgmlType(14, "Q6_K", 256, 210),
        GgmlType(15, "Q8_K", 256, 292, readable=False),
        GgmlType(16, "IQ2_XXS", 256, 66),
        GgmlType(17, "IQ2_XS", 256, 74),
        GgmlType(18, "IQ3_XXS", 256, 98),
        GgmlType(19, "IQ1_S", 256, 50),
        GgmlType(20, "IQ4_NL", 32, 18),
        GgmlType(21, "IQ3_S", 256, 110),
        GgmlType(22, "IQ2_S", 256, 82),
        GgmlType(23, "IQ4_XS", 256, 136),
        GgmlType(24, "I8", 1, 1, readable=False),
        GgmlType(25, "I16", 1, 2, readable=False),
        GgmlType(26, "I32", 1, 4, readable=False),
        GgmlType(27, "I64", 1, 8, readable=False),
        GgmlType(28, "F64", 1, 8, readable=False),
        GgmlType(29, "IQ1_M", 256, 56),
        GgmlType(30, "BF16", 1, 2),
        GgmlType(34, "TQ1_0", 256, 54),
        GgmlType(35, "TQ2_0", 256, 66),
        GgmlType(39, "MXFP4", 32, 17),
        GgmlType(40, "NVFP4", 64, 36, readable=False),
        GgmlType(41, "Q1_0", 128, 18, readable=False),
    )
}
BY_NAME = {t.name: t for t in BY_ID.values()}


def check_readable(where: str, tensor: str, kind: GgmlType) -> None:
    """Raise OSError ENOEXEC if tensors of this type cannot be dequantized."""
    if not kind.readable:
        names = ", ".join(t.name for t in BY_ID.values() if t.readable)
        raise image_error(
            ENOEXEC,
            f"{where}: tensor {tensor} has type {kind.name}, which is not supported; "
            f"supported: {names}",
        )


def dequantize(blocks: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    """Rows of raw blocks, uint8 [rows, bytes per row], to a new float32 [rows, elements].

    KeyError for an unknown type name. Only for `readable` types.
    """
    kind = BY_NAME[type_name]
    blocks = np.ascontiguousarray(blocks)
    if type_name == "F32":
        return blocks.view("<f4").astype(np.float32)
    if type_name == "F16":
        return blocks.view("<f2").astype(np.float32)
    if type_name == "BF16":
        wide = blocks.view("<u2").astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    assert kind.readable, f"{type_name} was refused when the file was opened"
    # Importing gguf takes a quarter of a second, so it waits until something is dequantized.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as gguf_dequantize

    return np.asarray(gguf_dequantize(blocks, GGMLQuantizationType(kind.id)), dtype=np.float32)
