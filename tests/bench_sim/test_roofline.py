"""The roofline: presets are sane, more work takes longer, the parts are where they should be."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tokenix.drivers.sim.catalog import builtin, load_presets
from tokenix.drivers.sim.presets import GPUS, MODELS
from tokenix.drivers.sim.roofline import Roofline

LLAMA = MODELS["llama-3.1-8b"]
MOE = MODELS["qwen3-30b-a3b"]

SIZES_B = {
    "llama-3.1-8b": 8.03, "qwen2.5-7b": 7.62, "qwen2.5-32b": 32.8, "qwen3-30b-a3b": 30.5,
    "llama-3.3-70b": 70.6,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_model(name: str) -> None:
    assert MODELS[name].total_params / 1e9 == pytest.approx(SIZES_B[name], rel=0.01)


def test_the_moe_activates_a_tenth() -> None:
    share = MOE.experts_per_token / MOE.experts
    active = MOE.body_params + MOE.head_params * 2 + MOE.expert_params * share
    assert active / 1e9 == pytest.approx(3.35, rel=0.02)


@pytest.mark.parametrize("name", GPUS)
def test_every_device_has_a_source_and_serves_a_token(name: str) -> None:
    gpu = GPUS[name]
    roofline = Roofline(gpu, LLAMA)
    assert gpu.source
    assert 2e-3 < roofline.forward_s(0, 1, 100, 100) < 30e-3
    assert 4e3 < roofline.prefill_tokens_per_s() < 2e5
    assert roofline.page_bytes == 2 << 20
    assert roofline.memory_pages() > 2000


def test_kv_pools_are_those_of_measured_engines() -> None:
    assert Roofline(GPUS["rtx4090"], LLAMA).memory_pages() == pytest.approx(2588, rel=0.05)


@pytest.mark.parametrize("model", [LLAMA, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("tp", [1, 2])
def test_more_of_anything_never_takes_less(model: object, tp: int) -> None:
    roofline = Roofline(GPUS["h100"], model, tp)  # type: ignore[arg-type]
    for before, after in pairwise([0, 1, 2, 16, 100, 256, 1000, 2048, 8192]):
        assert roofline.forward_s(before, 1, 9, 9) <= roofline.forward_s(after, 1, 9, 9)
        assert roofline.forward_s(0, before, 9, 9) <= roofline.forward_s(0, after, 9, 9)
        assert roofline.forward_s(0, 8, before, 9) <= roofline.forward_s(0, 8, after, 9)
        assert roofline.forward_s(0, 8, 9, before) <= roofline.forward_s(0, 8, 9, after)
        assert roofline.copy_in_s(before) < roofline.copy_in_s(after)


def test_small_steps_are_bound_by_memory_and_large_ones_by_compute() -> None:
    slow_memory = replace(GPUS["h100"], bandwidth_efficiency=0.4)
    slow_compute = replace(GPUS["h100"], compute_efficiency=0.275)
    base, memory, compute = (Roofline(g, LLAMA) for g in (GPUS["h100"], slow_memory, slow_compute))
    assert memory.forward_s(0, 8, 4000, 4000) > 1.5 * base.forward_s(0, 8, 4000, 4000)
    assert compute.forward_s(0, 8, 4000, 4000) == base.forward_s(0, 8, 4000, 4000)
    assert compute.forward_s(2048, 0, 2048, 2_100_000) > 1.8 * base.forward_s(
        2048, 0, 2048, 2_100_000
    )


def test_experts_are_read_when_they_are_used() -> None:
    roofline = Roofline(replace(GPUS["h100"], half_tokens=0.0), MOE)
    one, many = roofline.forward_s(0, 1, 1, 1), roofline.forward_s(0, 64, 64, 64)
    dense_s = 2 * (MOE.body_params + MOE.head_params + MOE.expert_params) / (0.8 * 3.35e12)
    assert one < 0.6 * many
    assert many < dense_s + 3e-3


def test_two_gpus_are_faster_than_one_but_not_twice() -> None:
    one, two = Roofline(GPUS["h100"], LLAMA), Roofline(GPUS["h100"], LLAMA, tp=2)
    for work in ((2048, 0, 2048, 2_000_000), (0, 128, 200_000, 200_000)):
        assert one.forward_s(*work) / 2 < two.forward_s(*work) < one.forward_s(*work)
    with pytest.raises(ValueError, match="tp must divide the 8 KV heads"):
        Roofline(GPUS["h100"], LLAMA, tp=3)


def test_copies_run_at_the_speed_of_the_link() -> None:
    roofline = Roofline(GPUS["h100"], LLAMA, link_gb_per_s=25.0)
    assert roofline.copy_out_s(1000) == pytest.approx(1000 * (2 << 20) / 25e9, rel=0.01)
    assert roofline.copy_in_s(0) == GPUS["h100"].link_latency_s


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match="does not fit into 1 x h100"):
        Roofline(GPUS["h100"], MODELS["llama-3.3-70b"]).memory_pages()
    assert Roofline(GPUS["h100"], MODELS["llama-3.3-70b"], tp=4).memory_pages() > 10_000


@pytest.mark.parametrize(
    ("text", "name"),
    [("H100", "h100"), ("RTX 4090", "rtx4090"), ("4090", "rtx4090"), ("A100-40", "a100-40"),
     ("RTX PRO 6000", "rtxpro6000"), ("NVIDIA A100-80GB", "a100-80")],
)  # fmt: skip
def test_names_are_found_as_people_write_them(text: str, name: str) -> None:
    assert builtin().gpu(text).name == name


def test_unknown_and_ambiguous_names_are_refused() -> None:
    with pytest.raises(ValueError, match="a100-40 or a100-80"):
        builtin().gpu("a100")
    with pytest.raises(ValueError, match=r"no 'gtx'; there are rtx4090"):
        builtin().gpu("gtx")


def test_users_add_presets(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[device.lab]\nbase = "h100"\nbandwidth_efficiency = 0.7\n'
        "[model.tiny]\nlayers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nhead_dim = 16\n"
        "vocab = 1000\nbody_params = 1e5\n"
    )
    catalog = load_presets(path)
    assert catalog.gpu("lab").bandwidth_efficiency == 0.7
    assert catalog.gpu("lab").tflops == GPUS["h100"].tflops
    assert catalog.model("tiny").kv_token_bytes == 2 * 2 * 2 * 16 * 2
    assert catalog.gpu("a100-40") == GPUS["a100-40"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[device.x]\ntflops = 3\n", "missing"),
        ('[device.x]\nbase = "h100"\nwings = 3\n', "no field 'wings'"),
        ('[device.x]\nbase = "h100"\ntflops = "many"\n', "tflops cannot be 'many'"),
        ('[device.x]\nbase = "h100"\ntflops = -1\n', "must be positive"),
        ('[device.x]\nbase = "z80"\n', "no 'z80'"),
        ("[gpu.x]\ntflops = 3\n", r"no table \[gpu"),
        ("tflops = = 3\n", "mine.toml"),
        ("device = 3\n", "device must be tables"),
        ('[device.x]\nbase = "h100"\nlink_gb_per_s = nan\n', "must be finite"),
        ('[device.x]\nbase = "h100"\nstep_overhead_s = inf\n', "must be finite"),
        ('[model.x]\nbase = "llama-3.1-8b"\nkv_bytes = 0\n', "kv_bytes of x must be positive"),
        ('[model.x]\nbase = "llama-3.1-8b"\nweight_bytes = -2\n', "weight_bytes of x"),
        ('[model.x]\nbase = "llama-3.1-8b"\nexpert_params = -1.0\n', "do not agree"),
    ],
)
def test_bad_presets_are_one_clear_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=why) as problem:
        load_presets(path)
    assert "\n" not in str(problem.value)
