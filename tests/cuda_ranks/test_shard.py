"""Parts of a model put together are the model; what does not divide is refused with what would."""

import errno
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")

from gguf import GGMLQuantizationType
from gguf.quants import quantize

from tokenix.drivers.cuda.ranks.messages import (
    command_of,
    encode,
    read_request,
    request_of,
)
from tokenix.drivers.cuda.ranks.shard import Shard, ShardWeights, check_shards
from tokenix.drivers.ops import (
    CopyFrame,
    CopyIn,
    CopyOut,
    Decodes,
    Forward,
    PageIn,
    PageOut,
    Poison,
    Row,
    SampleSpec,
    TableDelta,
)
from tokenix.drivers.sampling import SamplingParams
from tokenix.models.config import ModelConfig, RopeConfig
from tokenix.models.ggml_types import dequantize
from tokenix.models.tensor_names import expected_shapes
from tokenix.models.weights import CodedMatrix

CONFIG = ModelConfig(
    name="tiny", architecture="qwen2", layers=1, hidden=96, heads=8, kv_heads=4, head_dim=32,
    ffn=384, vocab_tokens=203, max_context_tokens=256, rms_eps=1e-5,
    rope=RopeConfig(theta=1e4, dim=32), qkv_bias=True,
)  # fmt: skip


class Stored:
    """Weights whose matrices are stored in `kind`."""

    def __init__(self, kind):
        chance = np.random.default_rng(0)
        self.stored = {}
        for name, shape in expected_shapes(CONFIG).items():
            rows = chance.standard_normal((1, *shape)[-2:]).astype(np.float32)
            stored = kind if len(shape) == 2 and not shape[1] % 32 else "F32"
            raw = quantize(rows, GGMLQuantizationType[stored])
            self.stored[name] = stored, raw.view(np.uint8).reshape(len(rows), -1), shape

    def names(self):
        return list(self.stored)

    def quantized(self, name):
        return self.stored[name][:2]

    def float32(self, name):
        kind, rows, shape = self.stored[name]
        return dequantize(rows, kind).reshape(shape)


AXIS = {
    "q": 0, "k": 0, "v": 0, "gate": 0, "up": 0, "head": 0, "o": 1, "down": 1,
    "q_bias": 0, "k_bias": 0, "v_bias": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_are_the_whole(kind, count):
    """Also where a block of the file is in two parts: 96 columns of a rank are three of 32."""
    weights = Stored(kind)
    parts = [ShardWeights(weights, Shard(i, count)) for i in range(count)]
    for name in weights.names():
        found, whole = [part.float32(name) for part in parts], weights.float32(name)
        axis = AXIS.get(name.rpartition(".")[2])
        if axis is None:
            assert all(np.array_equal(one, whole) for one in found), name
            continue
        assert len({one.shape for one in found}) == 1, name
        joined = np.concatenate(found, axis)
        assert np.array_equal(joined[: len(whole)], whole), name
        assert not joined[len(whole) :].any(), name


def test_blocks_that_are_in_two_parts():
    """24 columns are less than a block."""
    blocks = quantize(
        np.random.default_rng(1).random((3, 96), np.float32), GGMLQuantizationType.Q8_0
    )
    weights = Stored("F32")
    weights.stored["layers.0.down"] = "Q8_0", blocks, (3, 96)
    found = [ShardWeights(weights, Shard(i, 4)).float32("layers.0.down") for i in range(4)]
    assert np.array_equal(np.concatenate(found, 1), weights.float32("layers.0.down"))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_of_codes_have_the_scales_of_their_rows(count):
    class Coded(Stored):
        def fp8(self, name):
            shape = self.stored[name][2]
            if len(shape) != 2 or not name.startswith("layers"):
                return None
            chance = np.random.default_rng(len(name))
            codes = chance.integers(0, 255, shape, np.uint8)
            return CodedMatrix(codes, chance.random(shape[0], np.float32))

    weights = Coded("F32")
    parts = [ShardWeights(weights, Shard(i, count)) for i in range(count)]
    assert all(part.fp8("norm") is None for part in parts)
    for name, axis in (("layers.0.q", 0), ("layers.0.gate", 0), ("layers.0.down", 1)):
        whole, found = weights.fp8(name), [part.fp8(name) for part in parts]
        assert np.array_equal(np.concatenate([one.codes for one in found], axis), whole.codes)
        if axis == 0:
            assert np.array_equal(np.concatenate([one.scales for one in found]), whole.scales)
        else:
            assert all(np.array_equal(one.scales, whole.scales) for one in found)
    assert ShardWeights(Stored("F32"), Shard(0, count)).fp8("layers.0.q") is None


def test_a_tied_head_is_a_view_of_the_embedding():
    import torch

    whole = torch.arange(12.0).reshape(6, 2)
    parts = [Shard(i, 3).head(whole) for i in range(3)]
    assert torch.equal(torch.cat(parts), whole)
    assert parts[1].data_ptr() == whole[2:].data_ptr()
    assert torch.equal(Shard(1, 4).head(whole), whole[2:4])
    assert torch.equal(Shard(2, 4).head(whole), whole[4:])
    assert torch.equal(Shard(3, 4).head(whole), torch.zeros(2, 2))


def test_a_part_is_a_smaller_model():
    part = Shard(1, 4).config(CONFIG)
    assert part == replace(CONFIG, heads=2, kv_heads=1, ffn=96)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_divides(count):
    check_shards(CONFIG, count)


@pytest.mark.parametrize(
    ("config", "count", "words"),
    [
        (
            CONFIG,
            3,
            "tensor_parallel=3 does not divide the 8 heads, 4 KV heads and 384 .*1, 2 or 4",
        ),
        (CONFIG, 8, "1, 2 or 4 would"),
        (CONFIG, 0, "tensor_parallel=0"),
        (replace(CONFIG, kv_heads=1), 2, "only 1 would"),
        (replace(CONFIG, ffn=6), 4, "1 or 2 would"),
    ],
)
def test_what_does_not_divide_is_refused(config, count, words):
    with pytest.raises(OSError, match=words) as refused:
        check_shards(config, count)
    assert refused.value.errno == errno.EINVAL


def test_commands_arrive_as_they_were_asked():
    """But for how tokens are drawn."""
    draws = SampleSpec(SamplingParams(), (), 0)
    asks = SampleSpec(SamplingParams(temperature=1.0, seed=3), [1, 2, 3], 2, (7,))

    def forward(ticket, spec):
        return Forward(
            ticket,
            (Row(3, 16, (5, 6, 7), None), Row(4, 0, (8,), spec)),
            (TableDelta(3, 1, (9, 2)),),
            (5,),
            Decodes((1, 2), (10, 20), (11, 21), (spec, spec)),
        )

    for command, arrived in [
        (forward(0, asks), forward(70, draws)),
        (CopyFrame(0, 1, 2), CopyFrame(70, 1, 2)),
        (Poison((1, 2)), Poison((1, 2))),
        (CopyOut(0, (PageOut(1, 2, 33),)), CopyOut(70, (PageOut(1, 2, 0),))),
        (CopyIn(0, (PageIn(1, 33, 2),)), CopyIn(70, (PageIn(1, 0, 2),))),
    ]:
        found = command_of(read_request(encode(request_of(command, 70))))
        if isinstance(found, Forward):
            assert found.all_rows() == arrived.all_rows()
            assert (found.tables, found.drop, found.ticket) == (arrived.tables, (5,), 70)
        else:
            assert found == arrived
