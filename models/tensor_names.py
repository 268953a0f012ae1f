"""Which tensors a model has: normalized names, their shapes, and their names in each format."""

from collections.abc import Iterable, Mapping

from tokenix.models.config import ModelConfig
from tokenix.models.image_error import EINVAL, ENOENT, ENOEXEC, image_error

# normalized name in a layer: (GGUF name after blk.{i}., Hugging Face name after model.layers.{i}.)
LAYER = {
    "attn_norm": ("attn_norm.weight", "input_layernorm.weight"),
    "q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "k": ("attn_k.weight", "self_attn.k_proj.weight"),
    "v": ("attn_v.weight", "self_attn.v_proj.weight"),
    "q_bias": ("attn_q.bias", "self_attn.q_proj.bias"),
    "k_bias": ("attn_k.bias", "self_attn.k_proj.bias"),
    "v_bias": ("attn_v.bias", "self_attn.v_proj.bias"),
    "q_norm": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "k_norm": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "o": ("attn_output.weight", "self_attn.o_proj.weight"),
    "ffn_norm": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "up": ("ffn_up.weight", "mlp.up_proj.weight"),
    "down": ("ffn_down.weight", "mlp.down_proj.weight"),
}
OUTSIDE = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm": ("output_norm.weight", "model.norm.weight"),
    "head": ("output.weight", "lm_head.weight"),
}
BIASES = ("q_bias", "k_bias", "v_bias")
QK_NORMS = ("q_norm", "k_norm")


def split_layer(name: str) -> tuple[str, str]:
    """ "layers.3.q" -> ("3", "q"); a name outside the layers -> ("", name)."""
    if name.startswith("layers."):
        _, layer, part = name.split(".", 2)
        return layer, part
    return "", name


def gguf_name(name: str) -> str:
    """The GGUF name of a normalized one. KeyError if there is none."""
    layer, part = split_layer(name)
    return f"blk.{layer}.{LAYER[part][0]}" if layer else OUTSIDE[part][0]


def hf_name(name: str) -> str:
    """The Hugging Face name of a normalized one. KeyError if there is none."""
    layer, part = split_layer(name)
    return f"model.layers.{layer}.{LAYER[part][1]}" if layer else OUTSIDE[part][1]


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Normalized name -> shape of every tensor of the model, in the order layers run."""
    hidden, ffn, dim = config.hidden, config.ffn, config.head_dim
    q, kv = config.heads * dim, config.kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "q_bias": (q,),
        "k_bias": (kv,),
        "v_bias": (kv,),
        "q_norm": (dim,),
        "k_norm": (dim,),
        "o": (hidden, q),
        "ffn_norm": (hidden,),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    absent = (() if config.qkv_bias else BIASES) + (() if config.qk_norm else QK_NORMS)
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_tokens, hidden)}
    for i in range(config.layers):
        shapes.update({f"layers.{i}.{n}": s for n, s in layer.items() if n not in absent})
    shapes["norm"] = (hidden,)
    if not config.tied_embeddings:
        shapes["head"] = (config.vocab_tokens, hidden)
    return shapes


def check_tensors(
    where: str,
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    unknown: Iterable[str],
) -> None:
    """Raise OSError if `found` is not what the config says.

    `expected` and `found` map the file's own names to shapes; `unknown` are tensors that nothing
    here would use: running without them would give wrong output. ENOENT: tensors are missing.
    EINVAL: a shape differs. ENOEXEC: there are unknown tensors.
    """
    missing = [name for name in expected if name not in found]
    if missing:
        raise image_error(ENOENT, f"{where}: missing {_some(missing)}; the file is incomplete")
    for name, shape in expected.items():
        if found[name] != shape:
            raise image_error(
                EINVAL,
                f"{where}: tensor {name} has shape {list(found[name])}, not {list(shape)} as the "
                "model's configuration says",
            )
    extra = list(unknown)
    if extra:
        raise image_error(
            ENOEXEC, f"{where}: {_some(extra)} of a kind that this architecture does not use here"
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{len(names)} tensor{'s' if len(names) != 1 else ''} ({shown})"
