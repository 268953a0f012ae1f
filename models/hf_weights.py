"""The tensors of a directory of safetensors files under their normalized names."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenix.models.config import ModelConfig
from tokenix.models.ggml_types import dequantize
from tokenix.models.image_error import EINVAL, ENOENT, ENOEXEC, image_error
from tokenix.models.mapped_file import read_json
from tokenix.models.safetensors_file import StoredTensor, read_safetensors
from tokenix.models.tensor_names import check_tensors, expected_shapes, hf_name

DTYPES = ("F32", "F16", "BF16")
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

    def names(self) -> list[str]:
        """All normalized names, in the order layers run."""
        return list(self._shapes)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32, a new array [out, in] or [n]. KeyError if there is none."""
        kind, rows = self.quantized(name)
        return dequantize(rows, kind).reshape(self._shapes[name])

    def quantized(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """("F32" | "F16" | "BF16", raw bytes uint8 [out, bytes per row]), a read-only view of the
        file. A vector is one row. KeyError if there is none."""
        shape = self._shapes[name]
        tensor = self._stored[name]
        return tensor.dtype, tensor.raw().reshape(shape[0] if len(shape) == 2 else 1, -1)


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
