"""GGUF metadata to a ModelConfig."""

import numpy as np

from tokenix.models.config import ModelConfig, RopeConfig
from tokenix.models.gguf_header import GgufHeader
from tokenix.models.image_error import EINVAL, ENOEXEC, image_error
from tokenix.models.rope import SCALINGS

ARCHITECTURES = ("llama", "qwen2", "qwen3")
PERMUTED = ("llama",)
"""Architectures whose q and k rows are stored for adjacent-pair RoPE."""

_END_OF_GENERATION = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>")
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_CONTROL = 3


def model_config(header: GgufHeader) -> ModelConfig:
    """The config, or OSError: ENOEXEC for what is not supported, EINVAL for contradictions."""
    arch = header.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise image_error(
            ENOEXEC,
            f"{header.path}: architecture {arch!r} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)} (Mistral files say llama)",
        )
    _refuse_variants(header, arch)
    heads = header.integer(f"{arch}.attention.head_count")
    hidden = header.integer(f"{arch}.embedding_length")
    if heads < 1 or hidden < 1:
        raise image_error(EINVAL, f"{header.path}: {heads} heads, hidden size {hidden}")
    embed = header.tensors.get("token_embd.weight")
    head_dim = header.integer(f"{arch}.attention.key_length", hidden // heads)
    config = ModelConfig(
        name=header.text("general.name", header.path.stem),
        architecture=arch,
        layers=header.integer(f"{arch}.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=header.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=header.integer(f"{arch}.feed_forward_length"),
        vocab_tokens=embed.shape[0] if embed else header.integer(f"{arch}.vocab_size"),
        max_context_tokens=header.integer(f"{arch}.context_length"),
        rms_eps=header.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=_rope(header, arch, head_dim),
        tied_embeddings="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        eos_tokens=_eos_tokens(header),
        bos_token=optional_token(header, "bos"),
    )
    check_sizes(str(header.path), config)
    return config


def check_sizes(where: str, config: ModelConfig) -> None:
    """Raise OSError EINVAL (or ENOEXEC, partial rotation) for sizes that cannot be."""
    sizes = (config.layers, config.kv_heads, config.head_dim, config.ffn, config.vocab_tokens)
    if min(sizes) < 1 or config.max_context_tokens < 1 or not config.rms_eps > 0:
        raise image_error(EINVAL, f"{where}: a size in the model's configuration is not positive")
    if config.heads % config.kv_heads:
        raise image_error(
            EINVAL, f"{where}: {config.heads} heads do not divide into {config.kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise image_error(EINVAL, f"{where}: head dimension {config.head_dim} is odd")
    if config.rope.dim != config.head_dim:
        raise image_error(
            ENOEXEC,
            f"{where}: rotates {config.rope.dim} of {config.head_dim} dimensions of a head; "
            "partial rotary embedding is not supported",
        )


def _refuse_variants(header: GgufHeader, arch: str) -> None:
    if header.integer("split.count", 1) > 1:
        raise image_error(
            ENOEXEC,
            f"{header.path}: is one part of a split GGUF; join the parts with "
            "`gguf-split --merge` first",
        )
    if header.integer(f"{arch}.expert_count", 0) > 0:
        raise image_error(ENOEXEC, f"{header.path}: mixture of experts is not supported")
    window = header.integer(f"{arch}.attention.sliding_window", 0)
    if 0 < window < header.integer(f"{arch}.context_length"):
        raise image_error(
            ENOEXEC,
            f"{header.path}: sliding window attention ({window} tokens) is not supported",
        )
    keys = (f"{arch}.attention.key_length", f"{arch}.attention.value_length")
    if keys[0] in header.fields and keys[1] in header.fields:
        key, value = (header.integer(k) for k in keys)
        if key != value:
            raise image_error(
                ENOEXEC, f"{header.path}: key length {key} and value length {value} differ"
            )


def _rope(header: GgufHeader, arch: str, head_dim: int) -> RopeConfig:
    prefix = f"{arch}.rope.scaling"
    scaling = header.text(f"{prefix}.type", "none")
    factor = header.number(f"{prefix}.factor", 1.0)
    if f"{prefix}.type" not in header.fields and f"{arch}.rope.scale_linear" in header.fields:
        scaling, factor = "linear", header.number(f"{arch}.rope.scale_linear")
    if scaling not in SCALINGS:
        raise image_error(
            ENOEXEC,
            f"{header.path}: rope scaling {scaling!r} is not supported; supported: "
            f"{', '.join(SCALINGS)}",
        )
    context = header.integer(f"{arch}.context_length")
    return RopeConfig(
        theta=header.number(f"{arch}.rope.freq_base", 10000.0),
        dim=header.integer(f"{arch}.rope.dimension_count", head_dim),
        scaling=scaling,
        factor=factor,
        original_context_tokens=header.integer(f"{prefix}.original_context_length", context),
        beta_fast=header.number(f"{prefix}.yarn_beta_fast", 32.0),
        beta_slow=header.number(f"{prefix}.yarn_beta_slow", 1.0),
        attention_factor=_attention_factor(header, prefix, scaling, factor),
        freq_factors=_freq_factors(header),
    )


def _attention_factor(header: GgufHeader, prefix: str, scaling: str, factor: float) -> float | None:
    """GGUF's factor multiplies the derived one instead of replacing it."""
    if scaling != "yarn" or f"{prefix}.attn_factor" not in header.fields:
        return None
    derived = 0.1 * float(np.log(factor)) + 1.0 if factor > 1 else 1.0
    return header.number(f"{prefix}.attn_factor") * derived


def _freq_factors(header: GgufHeader) -> tuple[float, ...]:
    """rope_freqs.weight: the llama3 scaling, computed by the converter."""
    info = header.tensors.get("rope_freqs.weight")
    if info is None:
        return ()
    if info.type.name != "F32" or len(info.shape) != 1:
        raise image_error(EINVAL, f"{header.path}: rope_freqs.weight is not a vector of F32")
    values = np.frombuffer(header.data, "<f4", info.shape[0], info.start)
    if not bool(np.all(np.isfinite(values) & (values > 0))):
        raise image_error(EINVAL, f"{header.path}: rope_freqs.weight has values that are not > 0")
    return tuple(float(v) for v in values)


def optional_token(header: GgufHeader, role: str) -> int | None:
    """tokenizer.ggml.{role}_token_id, None if there is none or it is outside the vocabulary."""
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in header.fields:
        return None
    token = header.integer(key)
    known = header.fields.get("tokenizer.ggml.tokens")
    return token if isinstance(known, list) and 0 <= token < len(known) else None


def _eos_tokens(header: GgufHeader) -> tuple[int, ...]:
    """Tokens after which nothing more is generated: by role, then control tokens by name."""
    found = [optional_token(header, role) for role in ("eos", "eot", "eom")]
    tokens = header.fields.get("tokenizer.ggml.tokens")
    types = header.fields.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        for name in _END_OF_GENERATION:
            place = tokens.index(name) if name in tokens else -1
            if 0 <= place < len(types) and types[place] == _CONTROL:
                found.append(place)
    return tuple(dict.fromkeys(token for token in found if token is not None))


def default_sampling(header: GgufHeader) -> dict[str, float | int]:
    """The publisher's sampling settings, by SamplingParams field; {} if none are given."""
    out: dict[str, float | int] = {}
    for key, name in _SAMPLING.items():
        if f"general.sampling.{key}" in header.fields:
            value = header.number(f"general.sampling.{key}")
            out[name] = int(value) if name == "top_k" else value
    return out
