import numpy as np
import pytest

from tokenix.models.ggml_types import BY_ID, dequantize
from tokenix.models.gguf_header import read_header
from tokenix.models.gguf_weights import half_split_rows
from tokenix.models.registry import load_image
from tokenix.models.tensor_names import expected_shapes
from tokenix.tests.models import tiny_models as tiny

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "IQ4_XS"]


def test_block_sizes_are_those_of_gguf():
    import gguf

    ours = {t.name: (t.id, t.block, t.block_bytes) for t in BY_ID.values()}
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name in ours:
            assert ours[kind.name] == (kind.value, block, size)


def test_every_readable_type_is_dequantized():
    for kind in BY_ID.values():
        blocks = np.zeros((2, kind.block_bytes), np.uint8)
        if kind.readable:
            assert dequantize(blocks, kind.name).shape == (2, kind.block)
            assert dequantize(blocks, kind.name).dtype == np.float32
        else:
            with pytest.raises(AssertionError):
                dequantize(blocks, kind.name)


@pytest.mark.parametrize("kind", KINDS)
def test_dequantization_is_that_of_gguf(tmp_path, kind):
    import gguf

    cfg = tiny.config(layers=1)
    written = tiny.write_gguf(tmp_path / "m.gguf", cfg, kind=kind)
    weights = load_image(tmp_path / "m.gguf").weights
    for name, blocks in written.items():
        whole = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        part = name.rpartition(".")[2]
        heads = {"q": cfg.heads, "k": cfg.kv_heads}.get(part)
        rows = np.arange(len(blocks)) if heads is None else half_split_rows(len(blocks), heads)
        raw_kind, raw = weights.quantized(name)
        assert raw_kind == weights.kind(name) == kind
        np.testing.assert_array_equal(raw, blocks.view(np.uint8).reshape(len(blocks), -1)[rows])
        np.testing.assert_array_equal(weights.float32(name), whole[rows])
        for first in range(0, len(raw) + 48, 48):  # across heads, and beyond the end
            some_kind, some = weights.rows(name, first, first + 48)
            assert some_kind == kind
            np.testing.assert_array_equal(some, raw[first : first + 48])


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_roundtrip(tmp_path, arch):
    cfg = tiny.config(arch)
    values = tiny.random_weights(cfg)
    tiny.write_gguf(tmp_path / "tiny.gguf", cfg, values)
    image = load_image(tmp_path / "tiny.gguf")
    assert image.config.rms_eps == pytest.approx(1e-5)
    assert image.config == tiny.config(arch, rms_eps=image.config.rms_eps)
    assert image.weights.names() == list(expected_shapes(cfg))
    for name, value in values.items():
        np.testing.assert_array_equal(image.weights.float32(name), value)
    assert image.name == "tiny" and image.format == "gguf"
    assert image.size_bytes == (tmp_path / "tiny.gguf").stat().st_size


def test_biases_of_llama_are_put_in_half_split_order(tmp_path):
    cfg = tiny.config(qkv_bias=True, layers=1)
    values = tiny.random_weights(cfg)
    tiny.write_gguf(tmp_path / "m.gguf", cfg, values)
    weights = load_image(tmp_path / "m.gguf").weights
    for part in ("q_bias", "k_bias", "v_bias"):
        np.testing.assert_array_equal(
            weights.float32(f"layers.0.{part}"), values[f"layers.0.{part}"]
        )


def test_half_split_order():
    stored = [f"{i}{side}" for i in range(3) for side in "ab"]
    assert [stored[row] for row in half_split_rows(6, 1)] == ["0a", "1a", "2a", "0b", "1b", "2b"]
    rows = np.arange(4 * 64)
    np.testing.assert_array_equal(tiny.permute(rows, 4)[half_split_rows(256, 4)], rows)


def test_float32_is_a_new_array_and_raw_blocks_are_read_only(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf")
    weights = load_image(tmp_path / "m.gguf").weights
    weights.float32("norm")[:] = 7
    assert not np.any(weights.float32("norm") == 7)
    assert not weights.quantized("embed")[1].flags.writeable
    assert weights.quantized("norm")[1].shape == (1, 1024)
    with pytest.raises(KeyError):
        weights.float32("layers.9.q")


def test_tied_embeddings(tmp_path):
    cfg = tiny.config(tied_embeddings=True)
    tiny.write_gguf(tmp_path / "m.gguf", cfg)
    image = load_image(tmp_path / "m.gguf")
    assert image.config.tied_embeddings and "head" not in image.weights.names()


def test_frequency_factors_of_the_file_are_honoured(tmp_path):
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    tiny.write_gguf(
        tmp_path / "m.gguf", extra=lambda writer: writer.add_tensor("rope_freqs.weight", factors)
    )
    image = load_image(tmp_path / "m.gguf")
    assert image.config.rope.freq_factors == tuple(factors.tolist())
    assert "rope_freqs" not in " ".join(image.weights.names())


def test_yarn_metadata(tmp_path):
    import gguf

    def extra(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    tiny.write_gguf(tmp_path / "m.gguf", extra=extra)
    rope = load_image(tmp_path / "m.gguf").config.rope
    assert (rope.scaling, rope.factor, rope.original_context_tokens) == ("yarn", 4.0, 32)


def test_the_two_formats_agree(tmp_path):
    for arch in ("llama", "qwen2", "qwen3"):
        cfg = tiny.config(arch)
        values = tiny.random_weights(cfg, seed=3)
        tiny.write_gguf(tmp_path / "tiny.gguf", cfg, values, kind="F16")
        tiny.write_hf(tmp_path / arch, cfg, values, dtype="F16")
        a, b = load_image(tmp_path / "tiny.gguf"), load_image(tmp_path / arch)
        assert a.weights.names() == b.weights.names()
        for name in a.weights.names():
            np.testing.assert_array_equal(a.weights.float32(name), b.weights.float32(name))
            if values[name].ndim == 2:
                left, right = a.weights.quantized(name), b.weights.quantized(name)
                assert left[0] == right[0] == "F16"
                np.testing.assert_array_equal(left[1], right[1])
        text = "hello world 123 é <|im_end|>"
        assert a.tokenizer.encode(text) == b.tokenizer.encode(text)
        assert a.config.eos_tokens == b.config.eos_tokens
        assert a.config.rope.theta == b.config.rope.theta


def test_smollm2_loads_quickly_and_completely(smollm2):
    config = smollm2.config
    assert (config.layers, config.hidden, config.heads, config.kv_heads) == (30, 576, 9, 3)
    assert config.tied_embeddings and config.vocab_tokens == 49152
    assert smollm2.tokenizer.vocab_tokens == 49152
    assert config.eos_tokens == (2, 0)
    assert smollm2.weights.quantized("layers.0.down")[0] == "Q4_1"


def test_smollm2_query_rows_are_those_of_transformers(smollm2):
    import gguf
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    header = read_header(smollm2.path)
    process = LlamaTensorProcessor(config={})
    for ours, theirs, heads in (("q", "attn_q", 9), ("k", "attn_k", 3)):
        tensor = header.tensors[f"blk.7.{theirs}.weight"]
        data = np.frombuffer(header.data, np.uint8, tensor.size_bytes, tensor.start)
        kind = gguf.GGMLQuantizationType[tensor.type.name]
        whole = gguf.quants.dequantize(data.reshape(tensor.shape[0], -1), kind)
        want = process._reverse_permute_weights(whole, 9, heads)
        np.testing.assert_array_equal(smollm2.weights.float32(f"layers.7.{ours}"), want)


def test_loading_reports_progress(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf")
    seen = []
    load_image(tmp_path / "m.gguf", lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == list(range(len(seen)))
    assert seen[-1] == ("model", 4, 4)
