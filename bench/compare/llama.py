"""llama.cpp's server, built from the sources that the package llama-cpp-python brings.

The build is for this processor (GGML_NATIVE), without TLS and web pages. Q4_0 and BF16 are made of
the Q4_1 file by llama-quantize: Q4_0 is a model of its own then, good for speed only.
"""

import os
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tokenix.bench.compare.peer import Cache, Command, Place, Shape, Unavailable, free_name

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
TOOLS = ("llama-server", "llama-quantize", "llama-perplexity", "llama-bench")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
)  # fmt: skip
WEIGHTS = ("Q4_0", "Q4_1", "BF16")


@dataclass(frozen=True, slots=True)
class Llama:
    """One format of weights."""

    cache: Cache
    gguf: Path
    """The shipped model, in Q4_1."""
    weights: str
    jobs: int = 1
    """Of the compiler."""

    @property
    def name(self) -> str:
        return f"llama-{self.weights.lower()}"

    @property
    def model(self) -> Path:
        return self.cache.folder / f"{self.weights}.gguf"

    def tool(self, name: str) -> Path:
        return self.cache.folder / "build" / "bin" / name

    def install(self) -> None:
        build(self.cache, self.jobs)
        if self.model.exists():
            return
        part = free_name(self.model)
        if self.weights == "Q4_1":
            shutil.copy(self.gguf, part)
        else:
            words = [str(self.tool("llama-quantize")), "--allow-requantize", str(self.gguf),
                     str(part), self.weights, "2"]  # fmt: skip
            self.cache.step(f"quantize-{self.weights}", words)
        part.rename(self.model)

    def describe(self) -> str:
        return f"llama.cpp of {PACKAGE} {VERSION}, {self.weights}, f16 KV"

    def serve(self, shape: Shape, place: Place) -> Command:
        # With ample memory a slot for each request, else one pool that all share (-kvu).
        slots = shape.requests
        tokens = max(shape.kv_tokens, slots * shape.context) if shape.ample else shape.kv_tokens
        pool = [] if shape.ample else ["-kvu"]
        return Command((
            str(self.tool("llama-server")), "-m", str(self.model), "--host", "127.0.0.1",
            "--port", str(place.port), "-t", str(place.threads), "-cram", "0", "-np", str(slots),
            "-c", str(tokens), *pool,
        ))  # fmt: skip


def build(cache: Cache, jobs: int = 1) -> None:
    """Unavailable without a compiler, cmake and ninja, or if it fails. Goes on where it was."""
    if all((cache.folder / "build" / "bin" / tool).exists() for tool in TOOLS):
        return
    for program in ("cmake", "ninja", "c++"):
        if shutil.which(program) is None:
            raise Unavailable(f"llama.cpp is built with {program}, which is not installed")
    source = cache.folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if not source.is_dir():
        _unpack(cache)
    build_folder = str(cache.folder / "build")
    cache.step("cmake", ["cmake", "-S", str(source), "-B", build_folder, "-G", "Ninja", *OPTIONS])
    cache.step("ninja", ["ninja", "-C", build_folder, f"-j{jobs}", *TOOLS])


def _unpack(cache: Cache) -> None:
    archive = cache.folder / f"llama_cpp_python-{VERSION}.tar.gz"
    if not archive.exists():
        words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE,
                 f"{PACKAGE}=={VERSION}"]  # fmt: skip
        cache.step("download", words, env=dict(os.environ))
    with tarfile.open(archive) as files:
        files.extractall(cache.folder, filter="data")
