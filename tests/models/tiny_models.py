"""Small random models, written as GGUF files and as Hugging Face directories."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenix.models.config import ModelConfig, RopeConfig
from tokenix.models.tensor_names import expected_shapes, gguf_name, hf_name, split_layer
from tokenix.models.tokenizer import byte_alphabet

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["he", "ll", "llo", "hello", "Ġw", "Ġwo", "12"]
MERGES = ["h e", "l l", "ll o", "he llo", "Ġ w", "Ġw o", "1 2"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config(arch="llama", **changes):
    base = ModelConfig(
        name="tiny",
        architecture=arch,
        layers=2,
        hidden=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        ffn=512,
        vocab_tokens=320,
        max_context_tokens=128,
        rms_eps=1e-5,
        rope=RopeConfig(theta=10000.0, dim=64, original_context_tokens=128),
        tied_embeddings=False,
        qkv_bias=arch == "qwen2",
        qk_norm=arch == "qwen3",
        eos_tokens=(2, 0),
        bos_token=1,
    )
    return replace(base, **changes)


def random_weights(cfg, seed=0):
    """Normalized name -> float32 array whose values bf16, f16 and f32 hold alike."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-128, 128, shape).astype(np.float32) / 64
        for name, shape in expected_shapes(cfg).items()
    }


def permute(rows, heads):
    """What llama.cpp's converter does to q and k (LlamaModel.permute)."""
    return (
        rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        .swapaxes(1, 2)
        .reshape(rows.shape)
    )


def permuted(cfg, name, array):
    part = split_layer(name)[1]
    if cfg.architecture == "llama" and part in ("q", "q_bias", "k", "k_bias"):
        return permute(array, cfg.heads if part.startswith("q") else cfg.kv_heads)
    return array


def byte_level_vocab():
    letters = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    return [*SPECIALS, *letters, *WORDS]


def add_byte_level_tokenizer(writer, pre="smollm"):
    tokens = byte_level_vocab()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)


SP_PIECES = ["▁", "t", "h", "e", "r", "i", "n", "▁t", "he", "in", "▁the", "er", "re", "▁i", "é"]


def sentencepiece_vocab():
    """(text, type, score): the layout of Llama 2's vocabulary."""
    out = [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0)]
    out += [(f"<0x{byte:02X}>", 6, 0.0) for byte in range(256)]
    longest_first = sorted(SP_PIECES, key=len, reverse=True)
    return out + [(piece, 1, -float(i)) for i, piece in enumerate(longest_first)]


def add_sentencepiece_tokenizer(writer):
    vocab = sentencepiece_vocab()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _, _ in vocab])
    writer.add_token_types([kind for _, kind, _ in vocab])
    writer.add_token_scores([score for _, _, score in vocab])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_gguf(
    path, cfg=None, weights=None, kind="F32", tokenizer=add_byte_level_tokenizer, extra=None
):
    """`kind` is the type of the matrices (vectors are F32); `extra(writer)` adds fields or
    tensors. K-quants, which gguf cannot make, get random blocks."""
    import gguf

    cfg = cfg or config()
    weights = random_weights(cfg) if weights is None else weights
    arch = cfg.architecture
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(cfg.name)
    writer.add_block_count(cfg.layers)
    writer.add_context_length(cfg.max_context_tokens)
    writer.add_embedding_length(cfg.hidden)
    writer.add_feed_forward_length(cfg.ffn)
    writer.add_head_count(cfg.heads)
    writer.add_head_count_kv(cfg.kv_heads)
    writer.add_key_length(cfg.head_dim)
    writer.add_value_length(cfg.head_dim)
    writer.add_layer_norm_rms_eps(cfg.rms_eps)
    writer.add_rope_freq_base(cfg.rope.theta)
    tokenizer(writer)
    blocks = {}
    rng = np.random.default_rng(1)
    for name, array in weights.items():
        stored = permuted(cfg, name, array)
        if stored.ndim == 1:
            writer.add_tensor(gguf_name(name), stored)
            continue
        blocks[name] = quantized(stored, kind, rng)
        writer.add_tensor(gguf_name(name), blocks[name], raw_dtype=gguf.GGMLQuantizationType[kind])
    if extra is not None:
        extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return blocks


def quantized(array, kind, rng):
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        return array
    try:
        return gguf.quants.quantize(array, number)
    except NotImplementedError:  # gguf reads this kind but cannot write it: made of bytes
        block, size = gguf.GGML_QUANT_SIZES[number]
        # Bytes below 0x3C keep the 16 bit scales finite.
        return rng.integers(0, 0x3C, (array.shape[0], array.shape[1] // block * size), np.uint8)


def tokenizer_json():
    """The same tokenizer as `add_byte_level_tokenizer`, as the library writes it."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    vocab = {token: i for i, token in enumerate(byte_level_vocab())}
    library = Tokenizer(BPE(vocab, [tuple(merge.split(" ")) for merge in MERGES]))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    return library.to_str()


def write_hf(folder, cfg=None, weights=None, dtype="F32", shards=1, **changes):
    """A model directory; `changes` are entries of config.json (None removes one)."""
    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    cfg = cfg or config()
    weights = random_weights(cfg) if weights is None else weights
    entries = {
        "model_type": cfg.architecture,
        "hidden_size": cfg.hidden,
        "num_hidden_layers": cfg.layers,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_dim,
        "intermediate_size": cfg.ffn,
        "vocab_size": cfg.vocab_tokens,
        "max_position_embeddings": cfg.max_context_tokens,
        "rms_norm_eps": cfg.rms_eps,
        "rope_theta": cfg.rope.theta,
        "tie_word_embeddings": cfg.tied_embeddings,
        "eos_token_id": list(cfg.eos_tokens),
        "bos_token_id": cfg.bos_token,
        "hidden_act": "silu",
        **({"sliding_window": None} if cfg.architecture == "mistral" else {}),
        **changes,
    }
    entries = {key: value for key, value in entries.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(entries))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": "<|im_start|>",
                "eos_token": {"content": "<|im_end|>"},
                "chat_template": TEMPLATE,
            }
        )
    )
    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    tensors = {hf_name(n): torch.from_numpy(a.copy()).to(kind) for n, a in weights.items()}
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file({n: tensors[n] for n in names[i::shards]}, folder / shard)
        weight_map.update(dict.fromkeys(names[i::shards], shard))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
