"""A Hugging Face config.json to a ModelConfig."""

import math
from collections.abc import Mapping
from typing import Any

from tokenix.models.config import ModelConfig, RopeConfig
from tokenix.models.fp8 import is_fp8
from tokenix.models.gguf_config import check_sizes
from tokenix.models.image_error import EINVAL, ENOEXEC, image_error

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

_SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_MISTRAL_WINDOW = 4096
"""What Mistral's configuration class fills in where the file says nothing."""

Json = Mapping[str, Any]


def hf_model_config(where: str, name: str, config: Json, generation: Json) -> ModelConfig:
    """The config of `config.json` and `generation_config.json` ({} if there is none).

    Errors: OSError; ENOEXEC for what is not supported, EINVAL for missing or wrong values.
    """
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise image_error(
            ENOEXEC,
            f"{where}: model_type {kind!r} is not supported; supported: {', '.join(MODEL_TYPES)}",
        )
    _refuse_variants(where, config)
    hidden = _integer(where, config, "hidden_size")
    heads = _integer(where, config, "num_attention_heads")
    if heads < 1:
        raise image_error(EINVAL, f"{where}: num_attention_heads is {heads}")
    default_dim = 128 if kind == "qwen3" else hidden // heads
    head_dim = _integer(where, config, "head_dim", default_dim)
    rope = _rope(where, config, head_dim)
    context = _integer(where, config, "max_position_embeddings")
    if rope.scaling == "yarn":
        context = max(context, int(rope.original_context_tokens * rope.factor))
    vocab = _integer(where, config, "vocab_size")
    result = ModelConfig(
        name=name,
        architecture=str(kind),
        layers=_integer(where, config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_integer(where, config, "num_key_value_heads", heads if kind == "llama" else None),
        head_dim=head_dim,
        ffn=_integer(where, config, "intermediate_size"),
        vocab_tokens=vocab,
        max_context_tokens=context,
        rms_eps=_number(where, config, "rms_norm_eps", 1e-6),
        rope=rope,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=kind == "qwen3",
        eos_tokens=tuple(t for t in _eos_tokens(where, config, generation) if 0 <= t < vocab),
        bos_token=next((t for t in _tokens(where, config.get("bos_token_id")) if t < vocab), None),
    )
    check_sizes(where, result)
    return result


def hf_default_sampling(where: str, generation: Json) -> dict[str, float | int]:
    """The publisher's sampling settings by SamplingParams field; {} if none are given."""
    if generation.get("do_sample") is False:
        return {"temperature": 0.0}
    out: dict[str, float | int] = {}
    for key in _SAMPLING:
        if generation.get(key) is not None:
            value = _number(where, generation, key)
            out[key] = int(value) if key == "top_k" else value
    return out


def _refuse_variants(where: str, config: Json) -> None:
    method = config.get("quantization_config")
    if method is not None and not (isinstance(method, Mapping) and is_fp8(method)):
        name = method.get("quant_method", "unknown") if isinstance(method, Mapping) else "unknown"
        raise image_error(
            ENOEXEC,
            f"{where}: weights quantized by {name} are not supported; use one in fp8 (e4m3), "
            "the original f16/bf16 checkpoint or a GGUF file",
        )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise image_error(ENOEXEC, f"{where}: activation {activation!r} is not supported: silu is")
    if config.get("mlp_bias"):
        raise image_error(ENOEXEC, f"{where}: mlp_bias is not supported")
    window = _window(config)
    if window is not None and window < _integer(where, config, "max_position_embeddings"):
        raise image_error(
            ENOEXEC,
            f"{where}: sliding window attention ({window} tokens) is not supported; if the model "
            "works without, set sliding_window to null in its config.json",
        )


def _window(config: Json) -> int | None:
    """The sliding window that some layer uses, None if every layer attends to everything."""
    kind = config["model_type"]
    if kind == "llama":
        return None
    window = config.get("sliding_window", _MISTRAL_WINDOW)
    if not isinstance(window, int):
        return None
    if kind == "mistral":
        return window
    layers = config.get("layer_types")
    if isinstance(layers, list):
        return window if "sliding_attention" in layers else None
    first = config.get("max_window_layers", 28)
    used = bool(config.get("use_sliding_window")) and first < config.get("num_hidden_layers", 0)
    return window if used else None


def _rope(where: str, config: Json, head_dim: int) -> RopeConfig:
    """RopeConfig from rope_parameters, or from rope_scaling and rope_theta of older files."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise image_error(EINVAL, f"{where}: rope parameters are not an object")
    rope: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise image_error(
            ENOEXEC,
            f"{where}: rope scaling {kind!r} is not supported; supported: {', '.join(_SCALINGS)}",
        )
    theta = rope.get("rope_theta", config.get("rope_theta"))
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise image_error(ENOEXEC, f"{where}: rope parameters by layer type are not supported")
    context = _integer(where, config, "max_position_embeddings")
    original = config.get("original_max_position_embeddings") or context
    original = _integer(where, rope, "original_max_position_embeddings", original)
    factor = 1.0
    if kind == "yarn":
        factor = _number(where, rope, "factor", context / max(original, 1))
    elif kind != "default":
        factor = _number(where, rope, "factor")
    return RopeConfig(
        theta=_number(where, {"rope_theta": theta}, "rope_theta", 10000.0),
        dim=int(head_dim * _number(where, {"partial": partial}, "partial")),
        scaling=_SCALINGS[kind],
        factor=factor,
        original_context_tokens=original,
        low_freq_factor=_number(where, rope, "low_freq_factor", 1.0),
        high_freq_factor=_number(where, rope, "high_freq_factor", 4.0),
        beta_fast=_number(where, rope, "beta_fast", 32.0) or 32.0,
        beta_slow=_number(where, rope, "beta_slow", 1.0) or 1.0,
        attention_factor=_attention_factor(where, rope, factor) if kind == "yarn" else None,
        truncate=bool(rope.get("truncate", True)),
    )


def _attention_factor(where: str, rope: Json, factor: float) -> float | None:
    """Given, or from DeepSeek's mscale pair; None leaves it to the factor."""
    if "attention_factor" in rope:
        return _number(where, rope, "attention_factor")
    scale = _number(where, rope, "mscale", 0.0)
    all_dim = _number(where, rope, "mscale_all_dim", 0.0)
    if not scale or not all_dim or factor <= 1:
        return None
    return (0.1 * scale * math.log(factor) + 1) / (0.1 * all_dim * math.log(factor) + 1)


def _eos_tokens(where: str, config: Json, generation: Json) -> list[int]:
    both = _tokens(where, generation.get("eos_token_id"))
    return list(dict.fromkeys([*both, *_tokens(where, config.get("eos_token_id"))]))


def _tokens(where: str, value: Any) -> list[int]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in listed):
        raise image_error(EINVAL, f"{where}: token id {value!r} is not a number")
    return listed


def _integer(where: str, config: Json, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(where, key, "an integer", value)
    return value


def _number(where: str, config: Json, key: str, default: float | None = None) -> float:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(where, key, "a number", value)
    return float(value)


def _wrong(where: str, key: str, kind: str, value: object) -> OSError:
    if value is None:
        return image_error(EINVAL, f"{where}: the configuration lacks {key}")
    return image_error(EINVAL, f"{where}: {key} is {value!r}, not {kind}")
