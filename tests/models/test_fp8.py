"""Checkpoints in fp8: what codes and their scales come to, as torch has it; what is refused."""

import errno

import numpy as np
import pytest

from tokenix.models import fp8
from tokenix.models.registry import load_image
from tokenix.models.safetensors_file import read_safetensors
from tokenix.tests.models import tiny_models as tiny

CFG = tiny.config(layers=1)
METHODS = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "compressed": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
    },
}


def write_fp8(folder, scales_of, key="weight_scale", method="fp8", left_out=""):
    """A directory whose linear layers are in fp8; scales_of([out, in]) -> their scales. What the
    matrices are, by normalized name."""
    import torch
    from safetensors.torch import save_file

    tiny.write_hf(folder, CFG, dtype="F32", quantization_config=METHODS[method])
    tensors, wanted = {}, {}
    for name, stored in read_safetensors(folder / "model.safetensors").items():
        value = torch.from_numpy(stored.raw().view(np.float32).reshape(stored.shape).copy())
        if "proj" not in name:
            tensors[name] = value
            continue
        scales = scales_of(value)
        spread = scales
        if scales.dim() == 2 and scales.shape[1] > 1:
            spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
            spread = spread[: value.shape[0], : value.shape[1]]
        codes = (value / spread).to(torch.float8_e4m3fn)
        tensors[name] = codes
        wanted[name] = (codes.float() * spread).numpy()
        if name != left_out:
            of = name.removesuffix("weight")
            tensors |= {of + key: scales.contiguous(), of + "input_scale": torch.ones(1)}
    save_file(tensors, folder / "model.safetensors")
    return wanted


def whole(value):
    return (value.abs().max() / 448).reshape(1)


def rows(value):
    return value.abs().amax(1, keepdim=True) / 448


def blocks(value):
    import torch

    count = [-(-size // 128) for size in value.shape]
    return torch.arange(1, count[0] * count[1] + 1).reshape(count) / 100


def test_codes_are_torchs():
    import torch

    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(fp8.NUMBERS, codes.float().numpy())


@pytest.mark.parametrize(
    ("scales_of", "key", "method"),
    [(whole, "weight_scale", "fp8"), (rows, "weight_scale", "compressed"),
     (blocks, "weight_scale_inv", "fp8")],
)  # fmt: skip
def test_a_checkpoint_in_fp8_is_read(tmp_path, scales_of, key, method):
    wanted = write_fp8(tmp_path / "m", scales_of, key, method)
    weights = load_image(tmp_path / "m").weights
    np.testing.assert_array_equal(
        weights.float32("layers.0.gate"), wanted["model.layers.0.mlp.gate_proj.weight"]
    )
    kind, raw = weights.quantized("layers.0.o")
    assert kind == "F32" and raw.shape == (CFG.hidden, 4 * CFG.hidden)
    assert weights.kind("layers.0.o") == "F8_E4M3"
    for first in range(0, CFG.hidden, 48):  # across blocks of 128
        some_kind, some = weights.rows("layers.0.o", first, first + 48)
        assert some_kind == kind and (some == raw[first : first + 48]).all()
    found = weights.fp8("layers.0.k")
    if scales_of is blocks:
        assert found is None, "a row has several scales"
    else:
        numbers = fp8.NUMBERS[found.codes] * found.scales[:, None]
        np.testing.assert_array_equal(numbers, wanted["model.layers.0.self_attn.k_proj.weight"])
    assert weights.fp8("embed") is None


@pytest.mark.parametrize(
    ("scales_of", "left_out", "words", "number"),
    [
        (
            whole, "model.layers.0.mlp.up_proj.weight", r"up_proj.weight is in fp8, and has no",
            errno.ENOENT,
        ),
        (lambda value: value.new_ones(3), "", r"scales of shape \[3\] do not fit", errno.EINVAL),
    ],
)  # fmt: skip
def test_scales_that_do_not_fit_are_refused(tmp_path, scales_of, left_out, words, number):
    if left_out:
        write_fp8(tmp_path / "m", scales_of, left_out=left_out)
    else:
        write_fp8(tmp_path / "m", whole)
        replace_scales(tmp_path / "m", scales_of)
    with pytest.raises(OSError, match=words) as raised:
        load_image(tmp_path / "m")
    assert raised.value.errno == number


def replace_scales(folder, scales_of):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("weight_scale"):
            tensors[name] = scales_of(tensor)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    "method",
    [
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"type": "i"}}}},
        {"quant_method": "fp8", "fmt": "e5m2"},
        "fp8",
    ],
)  # fmt: skip
def test_other_quantizations_are_refused(tmp_path, method):
    tiny.write_hf(tmp_path / "m", CFG, quantization_config=method)
    with pytest.raises(OSError, match="are not supported; use one in fp8"):
        load_image(tmp_path / "m")
