"""Weights in 8 bits: products against float64, what is kept of a file, what a machine is told."""

import numpy as np
import pytest
import torch

import tokenix
from tokenix.drivers.cuda.matrix import Fp8Matrix, choose_fp8, multiply, quantize
from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import Forward, Row, SampleSpec, TableDelta
from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.boot import find_warnings
from tokenix.models.fp8 import NUMBERS
from tokenix.models.weights import CodedMatrix
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.bench import CudaBench

CPU = torch.device("cpu")


class Stored:
    """The rig's weights, with matrices of layers in fp8 as a file would have them."""

    def __init__(self):
        self.names = rig.WEIGHTS.names
        self.quantized = rig.WEIGHTS.quantized

    def fp8(self, name):
        rows = rig.WEIGHTS.float32(name)
        if not name.startswith("layers.") or rows.ndim != 2:
            return None
        made = quantize(rows, CPU)
        return CodedMatrix(made.codes.view(torch.uint8).numpy(), made.scales.numpy().reshape(-1))

    def float32(self, name):
        found = self.fp8(name)
        if found is None:
            return rig.WEIGHTS.float32(name)
        return NUMBERS[found.codes] * found.scales[:, None]


def rounded(rows):
    """What float32 rows are in e4m3 with a scale each, in float64."""
    scales = np.abs(rows).max(axis=1, keepdims=True) / np.float32(448)
    codes = torch.from_numpy(rows / scales).to(torch.float8_e4m3fn)
    return codes.float().numpy().astype(np.float64) * scales


def test_products_are_those_of_rounded_numbers(seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((48, 64)).astype(np.float32) * rng.uniform(0.01, 9, (48, 1))
    matrix = quantize(rows.astype(np.float32), CPU)
    x = torch.from_numpy(rng.standard_normal((5, 64)).astype(np.float32)).bfloat16()
    found = multiply(x, matrix)
    wanted = rounded(x.float().numpy()) @ rounded(rows.astype(np.float32)).T
    assert found.dtype == torch.bfloat16
    scale = np.abs(wanted).max()
    assert np.abs(found.float().numpy() - wanted).max() < 2**-8 * scale
    into = torch.empty_like(found)
    assert multiply(x, matrix, into).data_ptr() == into.data_ptr() and (into == found).all()
    alone = torch.cat([multiply(x[i : i + 1], matrix) for i in range(5)])
    assert (alone == found).all(), "a row does not depend on what it is batched with"


def test_what_is_no_number_stays_none_and_zeros_stay_zeros():
    matrix = quantize(np.ones((16, 16), np.float32), CPU)
    x = torch.ones(4, 16, dtype=torch.bfloat16)
    x[0, 3], x[1], x[2, 5] = float("nan"), 0, float("inf")
    found = multiply(x, matrix)
    assert found[0].isnan().all() and (found[1] == 0).all() and not found[2].isfinite().any()
    assert (found[3] == 16).all()


@pytest.mark.parametrize(
    ("asked", "stored", "capability", "kind", "use", "words"),
    [
        ("all", False, (9, 0), "bf16", "all", ""),
        ("stored", True, (8, 9), "bf16", "stored", ""),
        ("all", False, (8, 0), "bf16", "never", "but as bf16: compute capability 8.0 has no"),
        ("stored", True, (8, 0), "bf16", "never", "compute capability 8.0"),
        ("stored", True, (9, 0), "f16", "never", "activations are f16"),
        ("stored", False, (8, 0), "bf16", "stored", ""),
        ("never", True, (8, 0), "f32", "never", ""),
    ],
)
def test_what_a_chip_lacks_is_told(asked, stored, capability, kind, use, words):
    weights = Stored() if stored else rig.WEIGHTS
    found, note = choose_fp8(asked, weights, capability, kind)
    assert found == use and words in note and bool(note) == bool(words)


def logits(**options):
    """Of a prompt's last token, and the device's first layer."""
    bench = CudaBench(dense="bf16", kv_dtype="bf16", **options)
    tokens = tuple(range(3, 23))
    spec = SampleSpec(SamplingParams(logprobs=rig.TINY.vocab_tokens), (), 0)
    done = bench.do(Forward, (Row(1, 0, tokens, spec),), (TableDelta(1, 0, (4, 2)),))
    (drawn,) = done.results
    layer, notes = bench.device._layers._weights.layers[0], bench.device.info().notes
    bench.close()
    return dict(drawn.top), layer, notes


def test_a_file_in_fp8_is_multiplied_as_it_is(fake):
    found, layer, notes = logits(weights=Stored())
    assert isinstance(layer.qkv, Fp8Matrix) and isinstance(layer.gate_up, Fp8Matrix)
    stored = [Stored().fp8(f"layers.0.{name}") for name in "qkv"]
    codes = np.concatenate([each.codes for each in stored])
    assert (layer.qkv.codes.view(torch.uint8).numpy() == codes).all() and notes == ()
    wide, plain, _ = logits(weights=Stored(), fp8="never")
    assert isinstance(plain.qkv, torch.Tensor)
    apart = sum(np.exp(wide[token]) * (wide[token] - found[token]) for token in wide)
    assert 0 < apart < 0.05, "rows of 8 bits are near those of 16"


def test_any_model_is_put_into_fp8_by_one_argument(fake):
    made, layer, _ = logits(fp8="all")
    assert isinstance(layer.down, Fp8Matrix)
    assert made == logits(weights=Stored())[0], "as a file that was made so"


def test_boot_says_where_it_cannot_be():
    with pytest.raises(OSError, match="weights='fp8' is of the cuda driver"):
        tokenix.boot("smollm2", weights="fp8")
    info = DeviceInfo("cuda", 9, 16, 1, 4, 9, 99, 1.0, 1.0, 1.0, 1.0, notes=("as bf16",))
    assert find_warnings(info)[0] == "as bf16" and len(find_warnings(info)) == 2
