"""Named GPUs and models: data only. Every constant says where it comes from in `source`.

Peak numbers are datasheet values. Efficiencies turn them into what a serving engine reaches; those
of the RTX 4090 and the RTX PRO 6000 are fitted to measured runs (`tokenix sim calibrate`), the
others are estimates in the range that public measurements of vLLM show, and say so.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator and its links. GB and TB are powers of ten."""

    name: str
    memory_gb: float
    bandwidth_tb_per_s: float
    """Peak of device memory."""
    tflops: float
    """Peak of dense bf16 matrix products with f32 accumulation."""
    source: str
    bandwidth_efficiency: float = 0.80
    """Share of the peak that reading weights and KV reaches."""
    compute_efficiency: float = 0.65
    """Share of the peak that large matrix products reach."""
    half_tokens: float = 48.0
    """Tokens in a step at which matrix products reach half of that (tile and wave quantisation)."""
    step_overhead_s: float = 2e-3
    """Launches, sampling and the engine's own time, per step."""
    row_overhead_s: float = 0.0
    """The same, per sequence in the step."""
    link_gb_per_s: float = 25.0
    """Host link, each direction: PCIe 4.0 x16 is 32 GB/s, of which pinned copies reach about 25."""
    link_latency_s: float = 20e-6
    """Per copy command."""
    copy_contention: float = 0.02
    """Share by which a step is slower while copies run in one direction. An assumption, not
    measured: each copied byte is read or written once in device memory, so link / (bandwidth *
    efficiency), and nothing else is shared."""
    nvme_read_gb_per_s: float = 6.0
    nvme_write_gb_per_s: float = 4.0
    """One PCIe 4.0 x4 drive, sequential, at its sustained rate."""
    nvme_latency_s: float = 100e-6
    """Per command: a read from flash."""
    allreduce_gb_per_s: float = 20.0
    """Bus bandwidth of an all-reduce between such GPUs."""
    allreduce_latency_s: float = 30e-6

    def __post_init__(self) -> None:
        for field in self.__slots__:
            value = getattr(self, field)
            low_ok = field.endswith(("overhead_s", "latency_s", "tokens", "contention"))
            if not isinstance(value, str) and (value < 0 or (value == 0 and not low_ok)):
                raise ValueError(f"{field} of {self.name} must be positive, not {value}")
        if self.bandwidth_efficiency > 1 or self.compute_efficiency > 1.25:
            raise ValueError(f"an efficiency of {self.name} is too high")


@dataclass(frozen=True, slots=True)
class Llm:
    """A transformer: what a step computes and reads. Parameters are counts, not bytes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    body_params: float
    """In matrix products of the layers, without experts; every token uses them all."""
    source: str
    expert_params: float = 0.0
    """In all experts of all layers together."""
    experts: int = 0
    """Per layer."""
    experts_per_token: int = 0
    tied_embeddings: bool = False
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    max_context_tokens: int = 131_072

    def __post_init__(self) -> None:
        counts = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "body_params")
        for field in (*counts, "weight_bytes", "kv_bytes", "max_context_tokens"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} of {self.name} must be positive")
        if self.expert_params < 0 or (self.expert_params > 0) != (
            0 < self.experts_per_token <= self.experts
        ):
            raise ValueError(f"{self.name}: expert_params, experts, experts_per_token do not agree")

    @property
    def head_params(self) -> float:
        """Of the output projection: one product per sampled row."""
        return float(self.hidden) * self.vocab

    @property
    def total_params(self) -> float:
        embeddings = 1 if self.tied_embeddings else 2
        return self.body_params + self.expert_params + embeddings * self.head_params

    @property
    def kv_token_bytes(self) -> float:
        """K and V of one token over all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes


_HOPPER = "NVIDIA H100/H200 datasheets (SXM5, dense); efficiencies estimated, not measured"
_AMPERE = "NVIDIA A100 datasheet (SXM4, dense); efficiencies estimated, not measured"

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "rtx4090", 24, 1.008, 165.2,
            "NVIDIA Ada whitepaper: 1008 GB/s, 165.2 TFLOP/s bf16 with f32 accumulation; "
            "efficiencies fitted to vLLM 0.19 measured by casys-kaist/LLMServingSim",
            bandwidth_efficiency=0.85, compute_efficiency=0.96, nvme_read_gb_per_s=5.0,
            copy_contention=0.029,
        ),
        Gpu(
            "rtxpro6000", 96, 1.792, 503.8,
            "NVIDIA RTX PRO 6000 Blackwell datasheet: 1792 GB/s, 503.8 TFLOP/s bf16 dense; "
            "efficiencies fitted to vLLM 0.19 measured by casys-kaist/LLMServingSim",
            bandwidth_efficiency=0.71, compute_efficiency=0.62, link_gb_per_s=50.0,
            copy_contention=0.039,
        ),
        Gpu("a100-40", 40, 1.555, 312, _AMPERE, allreduce_gb_per_s=230, allreduce_latency_s=12e-6),
        Gpu(
            "a100-80", 80, 2.039, 312, _AMPERE, copy_contention=0.015,
            allreduce_gb_per_s=230, allreduce_latency_s=12e-6,
        ),
        Gpu(
            "h100", 80, 3.35, 989.4, _HOPPER, compute_efficiency=0.55, link_gb_per_s=50.0,
            copy_contention=0.019,
            allreduce_gb_per_s=360, allreduce_latency_s=10e-6,
        ),
        Gpu(
            "h200", 141, 4.8, 989.4, _HOPPER, compute_efficiency=0.55, link_gb_per_s=50.0,
            copy_contention=0.013,
            allreduce_gb_per_s=360, allreduce_latency_s=10e-6,
        ),
        Gpu(
            "b200", 180, 7.7, 2250,
            "NVIDIA HGX B200 datasheet (dense); efficiencies estimated, not measured",
            compute_efficiency=0.5, link_gb_per_s=50.0, copy_contention=0.008,
            allreduce_gb_per_s=720, allreduce_latency_s=10e-6,
        ),
    )
}  # fmt: skip

_CONFIG = "config.json of the published weights"

MODELS: dict[str, Llm] = {
    model.name: model
    for model in (
        # body = layers * (hidden * (q + 2 kv + o) + 3 * hidden * intermediate)
        Llm("llama-3.1-8b", 32, 4096, 32, 8, 128, 128_256, 6.979e9, _CONFIG),
        Llm("qwen2.5-7b", 28, 3584, 28, 4, 128, 152_064, 6.525e9, _CONFIG),
        Llm("qwen2.5-32b", 64, 5120, 40, 8, 128, 152_064, 31.206e9, _CONFIG),
        Llm(
            "qwen3-30b-a3b", 48, 2048, 32, 4, 128, 151_936, 0.919e9,
            _CONFIG + "; experts: 48 layers * 128 * 3 * 2048 * 768",
            expert_params=28.991e9, experts=128, experts_per_token=8, max_context_tokens=262_144,
        ),
        Llm("llama-3.3-70b", 80, 8192, 64, 8, 128, 128_256, 68.451e9, _CONFIG),
    )
}  # fmt: skip
