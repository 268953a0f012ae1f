import errno
import json

import numpy as np
import pytest

from tokenix.models.registry import load_image
from tokenix.tests.models import tiny_models as tiny


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_roundtrip(tmp_path, arch, dtype):
    cfg = tiny.config(arch, layers=1)
    values = tiny.random_weights(cfg)
    tiny.write_hf(tmp_path / "m", cfg, values, dtype=dtype)
    image = load_image(tmp_path / "m")
    for name, value in values.items():
        np.testing.assert_array_equal(image.weights.float32(name), value)
        kind, raw = image.weights.quantized(name)
        assert kind == image.weights.kind(name) == dtype and raw.dtype == np.uint8
        assert raw.shape == (
            value.shape[0] if value.ndim == 2 else 1,
            value.shape[-1] * (4 if dtype == "F32" else 2),
        )
    assert image.config == tiny.config(arch, layers=1, name="m")
    assert image.format == "hf" and image.chat is not None


def test_bfloat16_is_that_of_torch(tmp_path):
    import torch

    cfg = tiny.config(layers=1)
    values = {n: v * 1.2345678 for n, v in tiny.random_weights(cfg).items()}
    tiny.write_hf(tmp_path / "m", cfg, values, dtype="BF16")
    got = load_image(tmp_path / "m").weights.float32("embed")
    want = torch.from_numpy(values["embed"]).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(got, want)


def test_shards(tmp_path):
    cfg = tiny.config()
    values = tiny.random_weights(cfg)
    tiny.write_hf(tmp_path / "m", cfg, values, shards=3)
    image = load_image(tmp_path / "m")
    for name, value in values.items():
        np.testing.assert_array_equal(image.weights.float32(name), value)


def test_tied_embeddings_ignore_a_stored_head(tmp_path):
    cfg = tiny.config(tied_embeddings=True)
    both = tiny.random_weights(tiny.config())
    tiny.write_hf(tmp_path / "m", cfg, both)
    image = load_image(tmp_path / "m")
    assert image.config.tied_embeddings and "head" not in image.weights.names()


ROPES = [
    ({}, ("none", 10000.0, 1.0, 128)),
    ({"rope_scaling": None, "rope_theta": 5e5}, ("none", 5e5, 1.0, 128)),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, ("linear", 10000.0, 2.0, 128)),
    (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}, "rope_theta": "absent"},
        ("none", 3.0, 1.0, 128),
    ),
    (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        ("llama3", 10000.0, 8.0, 64),
    ),
]


@pytest.mark.parametrize("changes, want", ROPES)
def test_rope_forms(tmp_path, changes, want):
    tiny.write_hf(tmp_path / "m", **changes)
    rope = load_image(tmp_path / "m").config.rope
    assert (rope.scaling, rope.theta, rope.factor, rope.original_context_tokens) == want


def test_yarn_extends_the_context(tmp_path):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    tiny.write_hf(tmp_path / "m", rope_scaling=yarn)
    assert load_image(tmp_path / "m").config.max_context_tokens == 512


REFUSED = [
    ("llama", {"model_type": "gpt2"}, "'gpt2' is not supported; supported: llama, mistral"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantized by gptq"),
    ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
    ("llama", {"mlp_bias": True}, "mlp_bias"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial rotary"),
    ("mistral", {"sliding_window": 64}, "sliding window attention (64 tokens)"),
    ("mistral", {"sliding_window": "absent", "max_position_embeddings": 8192}, "(4096 tokens)"),
    (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        "sliding window",
    ),
    (
        "qwen3",
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64},
        "sliding window",
    ),
]


@pytest.mark.parametrize("arch, changes, words", REFUSED)
def test_refused_variants(tmp_path, arch, changes, words):
    tiny.write_hf(tmp_path / "m", tiny.config(arch), **changes)
    with pytest.raises(OSError) as caught:
        load_image(tmp_path / "m")
    assert caught.value.errno == errno.ENOEXEC
    assert words in caught.value.strerror and "config.json" in caught.value.strerror
    assert "\n" not in caught.value.strerror


@pytest.mark.parametrize(
    "arch, changes",
    [
        ("mistral", {"sliding_window": 128}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}),
        ("qwen3", {"layer_types": ["full_attention"] * 2, "sliding_window": 64}),
    ],
)
def test_windows_that_no_layer_uses_are_fine(tmp_path, arch, changes):
    tiny.write_hf(tmp_path / "m", tiny.config(arch), **changes)
    assert load_image(tmp_path / "m").config.architecture == arch


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_attention_heads"])
@pytest.mark.parametrize("value", ["absent", "many", -3, 0, 1.5, None, [1]])
def test_wrong_configurations(tmp_path, key, value):
    tiny.write_hf(tmp_path / "m", **{key: value})
    with pytest.raises(OSError) as caught:
        load_image(tmp_path / "m")
    assert caught.value.errno == errno.EINVAL


def test_generation_config(tmp_path):
    tiny.write_hf(tmp_path / "m", eos_token_id=2)
    path = tmp_path / "m" / "generation_config.json"
    path.write_text(
        json.dumps({"eos_token_id": [0, 2], "temperature": 0.6, "top_k": 20, "do_sample": True})
    )
    image = load_image(tmp_path / "m")
    assert image.config.eos_tokens == (0, 2)
    assert image.default_sampling == {"temperature": 0.6, "top_k": 20}
    path.write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    assert load_image(tmp_path / "m").default_sampling == {"temperature": 0.0}


def test_a_directory_that_transformers_writes(tmp_path):
    """Its config.json is that of transformers 5 (rope_parameters), its weights are bf16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    scaling = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, rope_parameters=scaling,
        )
    ).to(torch.bfloat16)  # fmt: skip
    model.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text(tiny.tokenizer_json())
    image = load_image(tmp_path / "m")
    assert (image.config.rope.scaling, image.config.rope.theta) == ("llama3", 5e5)
    want = model.model.layers[0].self_attn.q_proj.weight.detach().float().numpy()
    np.testing.assert_array_equal(image.weights.float32("layers.0.q"), want)
