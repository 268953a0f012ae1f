import numpy as np
import pytest

from tokenix.models.config import RopeConfig
from tokenix.models.hf_config import hf_model_config
from tokenix.models.rope import inv_freq

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES = [
    {"rope_type": "linear", "factor": 4.0},
    LLAMA3,
    {**LLAMA3, "factor": 32.0},
    YARN,
    {**YARN, "attention_factor": 0.75},
    {**YARN, "beta_fast": 16, "beta_slow": 2},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    {**YARN, "truncate": False},
    {**YARN, "factor": 1.0},
]


@pytest.mark.parametrize("scaling", CASES)
@pytest.mark.parametrize("theta", [10000.0, 1e6])
def test_as_in_transformers(scaling, theta):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    entries = {
        "model_type": "llama",
        "hidden_size": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": 8,
        "max_position_embeddings": 131072,
    }
    theirs = LlamaConfig(
        **{k: v for k, v in entries.items() if k != "model_type"},
        rope_parameters={**scaling, "rope_theta": theta},
    )
    want, want_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, "cpu")
    config = hf_model_config(
        "x", "x", {**entries, "rope_theta": theta, "rope_scaling": scaling}, {}
    )
    got, factor = inv_freq(config.rope)
    np.testing.assert_allclose(got, want.numpy(), rtol=2e-6)
    assert factor == pytest.approx(want_factor)


def test_plain_and_frequency_factors():
    plain, factor = inv_freq(RopeConfig(theta=100.0, dim=4))
    np.testing.assert_allclose(plain, [1.0, 0.1])
    assert factor == 1.0 and plain.dtype == np.float64
    divided, _ = inv_freq(RopeConfig(theta=100.0, dim=4, freq_factors=(2.0, 4.0)))
    np.testing.assert_allclose(divided, [0.5, 0.025])


def test_llama3_scaling_is_what_converters_bake_into_frequency_factors():
    rope = RopeConfig(5e5, 128, "llama3", 8.0, 8192)
    scaled, _ = inv_freq(rope)
    plain, _ = inv_freq(RopeConfig(5e5, 128))
    baked, _ = inv_freq(RopeConfig(5e5, 128, freq_factors=tuple(plain / scaled)))
    np.testing.assert_allclose(baked, scaled)


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(1e4, 64, "dynamic", 2.0),
        RopeConfig(1e4, 63),
        RopeConfig(1e4, 64, "linear", 0.0),
        RopeConfig(1e4, 64, "yarn", 2.0),
        RopeConfig(1e4, 64, freq_factors=(1.0,)),
    ],
)
def test_impossible_ropes(rope):
    with pytest.raises(OSError):
        inv_freq(rope)
