"""The tensors of a directory of safetensors files under their normalized names."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenix.models import fp8
from tokenix.models.config import ModelConfig
from tokenix.models.ggml_types import dequantize
from tokenix.models.image_error import EINVAL, ENOENT, ENOEXEC, image_error
from tokenix.models.mapped_file import read_json
from tokenix.models.safetensors_file import StoredTensor, read_safetensors
from tokenix.models.tensor_names import check_tensors, expected_shapes, hf_name
from tokenix.models.weights import CodedMatrix

DTYPES = ("F32", "F16", "BF16", fp8.DTYPE)
INDEX = "model.safetensors.index.json"


class HfWeights:
    """Weights over safetensors files. Nothing is read or converted before it is asked for."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Map the files and check that they have exactly the tensors of `config`.

        Errors: OSError; ENOENT a file or tensor is missing, EINVAL a damaged file or wrong shape,
        ENOEXEC an unsupported dtype or a tensor of a kind that is not used here.
        """
        self._shapes = expected_shapes(config)
        stored = stored_tensors(folder)
        expected = {hf_name(name): shape for name, shape in self._shapes.items()}
        found = {name: tensor.shape for name, tensor in stored.items()}
        unknown = [
            name
            for name in found
            if name not in expected
            and not name.endswith("rotary_emb.inv_freq")
            and not (config.tied_embeddings and name == "lm_head.weight")
            and not _is_of_fp8(name, stored)
        ]
        check_tensors(str(folder), expected, found, unknown)
        for name in expected:
            if stored[name].dtype not in DTYPES:
                raise image_error(
                    ENOEXEC,
                    f"{folder}: tensor {name} has dtype {stored[name].dtype}, which is not "
                    f"supported; supported: {', '.join(DTYPES)}",
                )
        self._stored = {name: stored[hf_name(name)] for name in self._shapes}
        self._scales = {
            name: _read_scales(folder, hf_name(name), stored)
            for name, tensor in self._stored.items()
            if tensor.dtype == fp8.DTYPE
        }

    def names(self) -> list[str]:
        """All normalized names, in the order layers run."""
        return list(self._shapes)

    def kind(self, name: str) -> str:
        """One of DTYPES. KeyError if there is none."""
        return self._stored[name].dtype

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32, a new array [out, in] or [n]. KeyError if there is none."""
        kind, rows = self.quantized(name)
        return dequantize(rows, kind).reshape(self._shapes[name])

    def quantized(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """("F32" | "F16" | "BF16", raw bytes uint8 [out, bytes per row]), a read-only view of the
        file; of fp8 a new array, as "F32". A vector is one row. KeyError if there is none."""
        return self.rows(name, 0, self._shapes[name][0])

    def rows(self, name: str, first: int, last: int) -> tuple[str, npt.NDArray[np.uint8]]:
        """Keeps `RowWeights`. KeyError if there is none."""
        shape = self._shapes[name]
        tensor = self._stored[name]
        raw = tensor.raw().reshape(shape[0] if len(shape) == 2 else 1, -1)
        if name in self._scales:
            numbers = fp8.dequantize_fp8(raw, self._scales[name], first, last)
            return "F32", numbers.view(np.uint8)
        return tensor.dtype, raw[first:last]

    def fp8(self, name: str) -> CodedMatrix | None:
        """A matrix of e4m3 as it is in the file; None if it is not, or its rows have several
        scales. KeyError if there is none."""
        tensor, shape = self._stored[name], self._shapes[name]
        scales = fp8.by_row(self._scales[name], shape) if name in self._scales else None
        return None if scales is None else CodedMatrix(tensor.raw().reshape(shape), scales)


def _is_of_fp8(name: str, stored: Mapping[str, StoredTensor]) -> bool:
    """Whether it is something beside a matrix of e4m3."""
    of, _, what = name.rpartition(".")
    matrix = stored.get(f"{of}.weight")
    return what in (*fp8.SCALES, *fp8.UNUSED) and matrix is not None and matrix.dtype == fp8.DTYPE


def _read_scales(
    folder: Path, name: str, stored: Mapping[str, StoredTensor]
) -> npt.NDArray[np.float32]:
    """Of a matrix of e4m3."""
    of = name.removesuffix("weight")
    found = next((stored[of + each] for each in fp8.SCALES if of + each in stored), None)
    if found is None or found.dtype not in ("F32", "F16", "BF16"):
        raise image_error(ENOENT, f"{folder}: tensor {name} is in fp8, and has no {fp8.SCALES[0]}")
    scales = dequantize(found.raw().reshape(1, -1), found.dtype).reshape(found.shape)
    if len(stored[name].shape) != 2 or not fp8.fits(scales, stored[name].shape):
        raise image_error(
            EINVAL,
            f"{folder}: scales of shape {list(found.shape)} do not fit tensor {name} of shape "
            f"{list(stored[name].shape)}: there is one for it, for each row or for 128 x 128 of it",
        )
    return scales


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model directory, those of its index if it has one.

    OSError: ENOENT if there are none or one is missing (it is named), EINVAL for a wrong index.
    """
    index = folder / INDEX
    if not index.exists():
        single = folder / "model.safetensors"
        files = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
        if not files:
            raise image_error(
                ENOENT,
                f"{folder}: has no *.safetensors file; pickled weights (*.bin, *.pth) are not "
                "read, convert them to safetensors",
            )
        return files
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(n, str) for n in named.values()):
        raise image_error(EINVAL, f"{index}: has no weight_map")
    shards = sorted(set(named.values()))
    for shard in shards:
        if Path(shard).name != shard:
            raise image_error(EINVAL, f"{index}: {shard!r} is not a plain file name")
        if not (folder / shard).exists():
            raise image_error(
                ENOENT,
                f"{folder}: shard {shard} of {len(shards)} named in {INDEX} is missing; download "
                "the directory again",
            )
    return [folder / shard for shard in shards]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a model directory by the file's own names. Errors as `weight_files`."""
    stored: dict[str, StoredTensor] = {}
    for path in weight_files(folder):
        stored.update(read_safetensors(path))
    return stored
