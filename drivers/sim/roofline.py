"""How long a named model takes on named GPUs: a roofline with an efficiency curve.

    linear     max(weights touched / bandwidth, FLOPs / compute)     matrix products of the layers
    attention  max(KV read / bandwidth, FLOPs / compute)             the two do not overlap
    step       linear + attention + all-reduces + launch overhead

Matrix products reach compute * tokens / (tokens + half_tokens). Experts that a step does not use
are not read: of E experts with k per token, 1 - (1 - k/E)^tokens are touched.

Sources of the form: Williams et al., "Roofline" (CACM 2009); attention and KV terms as in
"LLM Inference Unveiled" (arXiv:2402.16363); ring all-reduce 2 (n-1)/n bytes (Thakur et al. 2005).
"""

from dataclasses import dataclass, field

from tokenix.drivers.sim.presets import Gpu, Llm

GB = 1e9
USABLE_MEMORY = 0.9
"""Of device memory, what an engine takes (vLLM's default). GB against GiB leaves room besides for
activations and graphs."""


@dataclass(slots=True)
class Roofline:
    """Keeps `costs.Costs`. All times in seconds."""

    gpu: Gpu
    model: Llm
    tp: int = 1
    """Tensor-parallel GPUs that work as one device."""
    page_tokens: int = 16
    link_gb_per_s: float | None = None
    """Each direction, of all GPUs together; None: the preset's, times `tp`."""
    contention: float | None = None
    """None: the preset's `copy_contention`."""
    _bandwidth: float = field(init=False)
    _flops: float = field(init=False)
    _dense_bytes: float = field(init=False)
    _expert_bytes: float = field(init=False)
    _active_flop: float = field(init=False)
    _head_flop: float = field(init=False)
    _pair_flop: float = field(init=False)
    _untouched: float = field(init=False)
    _reduce_fixed_s: float = field(init=False)
    _reduce_token_s: float = field(init=False)
    _page_s: float = field(init=False)

    def __post_init__(self) -> None:
        gpu, model, tp = self.gpu, self.model, self.tp
        if tp < 1 or model.kv_heads % tp:
            raise ValueError(f"tp must divide the {model.kv_heads} KV heads of {model.name}")
        self._bandwidth = gpu.bandwidth_tb_per_s * 1e12 * gpu.bandwidth_efficiency * tp
        self._flops = gpu.tflops * 1e12 * gpu.compute_efficiency * tp
        self._dense_bytes = (model.body_params + model.head_params) * model.weight_bytes
        self._expert_bytes = model.expert_params * model.weight_bytes
        share = model.experts_per_token / model.experts if model.experts else 0.0
        self._untouched = 1.0 - share
        self._active_flop = 2.0 * (model.body_params + model.expert_params * share)
        self._head_flop = 2.0 * model.head_params
        self._pair_flop = 4.0 * model.layers * model.heads * model.head_dim
        reduces = 2 * model.layers if tp > 1 else 0
        ring = 2.0 * (tp - 1) / tp * model.hidden * model.weight_bytes
        self._reduce_fixed_s = reduces * gpu.allreduce_latency_s
        self._reduce_token_s = reduces * ring / (gpu.allreduce_gb_per_s * GB)
        link = gpu.link_gb_per_s * tp if self.link_gb_per_s is None else self.link_gb_per_s
        if self.copy_contention < 0:
            raise ValueError(f"copy_contention must not be negative ({self.copy_contention:g})")
        if link <= 0:
            raise ValueError(f"the link must be faster than {link} GB/s")
        self._page_s = self.page_bytes / (link * GB)

    # ---- costs.Costs ----

    def forward_s(self, prefill_tokens: int, decode_rows: int, kv_tokens: int, pairs: int) -> float:
        """See `costs.Costs`. The output projection runs once per decode and once for prefill."""
        tokens = prefill_tokens + decode_rows
        rows = decode_rows + (prefill_tokens > 0)
        weights = self._dense_bytes
        if self._expert_bytes:
            weights += self._expert_bytes * (1.0 - self._untouched**tokens)
        flop = (tokens + self.gpu.half_tokens) * self._active_flop + rows * self._head_flop
        linear_s = max(weights / self._bandwidth, flop / self._flops)
        kv_bytes = kv_tokens * self.model.kv_token_bytes
        attention_s = max(kv_bytes / self._bandwidth, pairs * self._pair_flop / self._flops)
        reduce_s = self._reduce_fixed_s + tokens * self._reduce_token_s
        overhead_s = self.gpu.step_overhead_s + rows * self.gpu.row_overhead_s
        return linear_s + attention_s + reduce_s + overhead_s

    def copy_out_s(self, pages: int) -> float:
        return self.gpu.link_latency_s + pages * self._page_s

    def copy_in_s(self, pages: int) -> float:
        return self.gpu.link_latency_s + pages * self._page_s

    def store_s(self, pages: int) -> float:
        return self.gpu.nvme_latency_s + pages * self.page_bytes / (
            self.gpu.nvme_write_gb_per_s * GB
        )

    def fetch_s(self, pages: int) -> float:
        return self.gpu.nvme_latency_s + pages * self.page_bytes / (
            self.gpu.nvme_read_gb_per_s * GB
        )

    def copy_frame_s(self) -> float:
        """Within device memory: read and written once."""
        return 2.0 * self.page_bytes / self._bandwidth

    # ---- sizes and rates ----

    @property
    def page_bytes(self) -> float:
        """KV of one page over all layers and GPUs."""
        return self.page_tokens * self.model.kv_token_bytes

    def memory_pages(self) -> int:
        """KV pages that fit beside the weights."""
        usable = USABLE_MEMORY * self.gpu.memory_gb * GB * self.tp
        pages = int((usable - self.model.total_params * self.model.weight_bytes) / self.page_bytes)
        if pages < 1:
            raise ValueError(
                f"{self.model.name} does not fit into {self.tp} x {self.gpu.name} "
                f"({self.gpu.memory_gb:g} GB each); use more of them (tp) or another device"
            )
        return pages

    def prefill_tokens_per_s(self, chunk: int = 2048) -> float:
        """Of full chunks with short contexts."""
        return chunk / self.forward_s(chunk, 0, chunk, chunk * (chunk + 1) // 2)

    @property
    def copy_contention(self) -> float:
        """Share by which a forward is slower while copies run in one direction."""
        return self.gpu.copy_contention if self.contention is None else self.contention
