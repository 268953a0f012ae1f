"""Logits against transformers in float32: the shipped model on ordinary text, and tiny models."""

import importlib
import inspect

import numpy as np
import pytest

from tokenix.drivers.cpu.chunks import Chunk
from tokenix.models.registry import load_image
from tokenix.tests.cpu.conftest import FAMILIES, Model, RandomWeights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

POSITIONS = 2048
CHUNK = 100
MODULES = """
    asyncio.events argparse ast bisect calendar cmd collections contextlib copy csv dataclasses
    datetime decimal difflib dis doctest email.message fractions functools heapq json logging
    pathlib random statistics string textwrap threading typing unittest.mock zipfile
"""

HF_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    **{part: f"self_attn.{part}_proj.weight" for part in "qkvo"},
    **{f"{part}_bias": f"self_attn.{part}_proj.bias" for part in "qkv"},
    **{f"{part}_norm": f"self_attn.{part}_norm.weight" for part in "qk"},
    **{part: f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
}
WHOLE_NAMES = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
}


def hf_name(name):
    if name in WHOLE_NAMES:
        return f"{WHOLE_NAMES[name]}.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{HF_NAMES[part]}"


def transformer(config, weights):
    """transformers' own model with these weights, in float32."""
    settings, model = (getattr(transformers, name) for name in CLASSES[config.architecture])
    fresh = model(
        settings(
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.ffn,
            vocab_size=config.vocab_tokens,
            max_position_embeddings=config.max_context_tokens,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tied_embeddings,
        )
    )
    state = {hf_name(name): torch.from_numpy(weights.float32(name)) for name in weights.names()}
    if config.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    fresh.load_state_dict(state)
    return fresh.eval().float()


def reference(config, weights, tokens):
    """Logits [tokens, vocab] of `transformer`."""
    with torch.no_grad():
        return transformer(config, weights)(torch.tensor([tokens])).logits[0].numpy()


def log_softmax(logits):
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models_agree_with_transformers(family, tokens):
    config = FAMILIES[family]
    weights = RandomWeights(config, seed=3)
    expected = reference(config, weights, tokens)
    found = Model(config, weights, kv="f32", dense="f32").all_logits(0, tokens, 48)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def round_inputs(module, inputs):
    return tuple(x.to(torch.bfloat16).float() for x in inputs)


class RoundedWeights(RandomWeights):
    """Matrices that bfloat16 has."""

    def __init__(self, config, seed):
        super().__init__(config, seed)
        for name, tensor in self.tensors.items():
            if tensor.ndim == 2:
                self.tensors[name] = torch.from_numpy(tensor).to(torch.bfloat16).float().numpy()


@pytest.mark.parametrize("family", ["tied", "qwen2", "qwen3"])
def test_bf16_is_the_model_with_rounded_inputs_of_matrices(family, tokens):
    """Nothing else is rounded: sums, norms, attention and what is added up stay float32."""
    config, texts = FAMILIES[family], np.array(tokens).reshape(-1, 6)
    weights = RoundedWeights(config, seed=3)
    model = transformer(config, weights)
    with torch.no_grad():
        plain = model(torch.from_numpy(texts)).logits.numpy()
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(round_inputs)
        expected = model(torch.from_numpy(texts)).logits.numpy()
    tiny = Model(config, weights, kv="f32", dense="bf16")
    found = np.stack([tiny.all_logits(0, text) for text in texts.tolist()])
    # Sums in another order: in some texts an input is rounded the other way, and all after it.
    error, rounding = (np.abs(each - expected).max(axis=2) for each in (found, plain))
    assert np.median(error) < 0.02 * np.median(rounding)


@pytest.fixture(scope="module")
def shipped():
    return load_image("smollm2")


def ordinary_text():
    return "\n\n".join(
        inspect.getdoc(importlib.import_module(name)) or "" for name in MODULES.split()
    )


def test_the_shipped_model_agrees_with_transformers(shipped):
    """Bounds: top-1 agreement >= 99.5 %, mean KL < 1e-3, perplexity within 0.5 %."""
    tokens = shipped.tokenizer.encode(ordinary_text())[:POSITIONS]
    assert len(tokens) == POSITIONS
    reference_logits = reference(shipped.config, shipped.weights, tokens)
    model = Model(shipped.config, shipped.weights, frames=6 * POSITIONS // 16)
    same_top, divergence, loss_gap = [], [], []
    for start in range(0, POSITIONS, CHUNK):
        rows = slice(start, start + CHUNK)
        chunk = Chunk(0, start, tuple(tokens[rows]), True)
        found, expected = log_softmax(model.run(chunk)), log_softmax(reference_logits[rows])
        same_top += (found.argmax(axis=1) == expected.argmax(axis=1)).tolist()
        divergence += (np.exp(expected) * (expected - found)).sum(axis=1).tolist()
        for row, following in enumerate(tokens[start + 1 : start + CHUNK + 1]):
            loss_gap.append(expected[row, following] - found[row, following])
    assert len(same_top) == POSITIONS
    assert len(loss_gap) == POSITIONS - 1
    assert np.mean(same_top) >= 0.995
    assert np.mean(divergence) < 1e-3
    assert abs(np.exp(np.mean(loss_gap)) - 1) < 0.005
