"""The shape of a decoder-only transformer, the same for every file format."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. Layout is always half-split (dim i pairs with i + dim/2);
    loaders permute weights that are stored for adjacent pairs. `models.rope.inv_freq` turns it
    into frequencies."""

    theta: float
    dim: int
    """Rotated dimensions of each head (all of head_dim for the supported families)."""
    scaling: str = "none"
    """none, linear, llama3 or yarn."""
    factor: float = 1.0
    original_context_tokens: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """yarn: multiplies cos and sin; None derives it from the factor."""
    truncate: bool = True
    """yarn: whether the correction range is rounded outwards to whole dimensions."""
    freq_factors: tuple[float, ...] = ()
    """Divisors of the unscaled frequencies, one per pair (GGUF rope_freqs.weight); () is all 1."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of a Llama-like model (Llama, Mistral, Qwen2, Qwen3)."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_tokens: int
    max_context_tokens: int
    rms_eps: float
    rope: RopeConfig
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    eos_tokens: tuple[int, ...] = field(default=())
    bos_token: int | None = None
