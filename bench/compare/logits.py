"""llama.cpp's logits for given tokens, on the same file: what quality is compared with.

    tokenix bench quality --tokens TOKENS.json
    python -m tokenix.bench.compare.logits TOKENS.json LOGITS.npy [--weights Q4_1 | --model FILE]
    tokenix bench quality --peer llama.cpp=LOGITS.npy

TOKENS: rows of integers, of one length, each a text of its own. FILE: any other GGUF file. LOGITS:
float32, [rows, length, vocabulary]; at each token those for the next one. A small program
(`logits.cpp`) is linked to the libraries of the build that `llama.py` makes.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokenix.bench.compare.llama import VERSION, WEIGHTS, Llama, build
from tokenix.bench.compare.peer import Cache, Unavailable, free_name

SOURCE = Path(__file__).with_name("logits.cpp")
LIBRARIES = (
    "src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a",
)  # fmt: skip


def write_logits(
    cache: Cache, model: Path, tokens: NDArray[np.integer], path: Path, threads: int
) -> None:
    """Logits of `tokens` [rows, length] to a .npy file [rows, length, vocabulary], float32.
    Unavailable if llama.cpp cannot be had, or does not load the model; OSError as `load_image`."""
    build(cache)
    program = _build(cache)
    vocabulary = _vocabulary(model)
    rows, length = tokens.shape
    part = free_name(path)
    with part.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, length, vocabulary)}
        np.lib.format.write_array_header_1_0(file, header)
    with tempfile.NamedTemporaryFile() as given:
        given.write(np.ascontiguousarray(tokens, np.int32).tobytes())
        given.flush()
        words = [str(program), str(model), given.name, str(rows), str(length), str(threads),
                 str(part.resolve())]  # fmt: skip
        cache.step("logits", words)
    part.rename(path)


def _build(cache: Cache) -> Path:
    program = cache.folder / "logits"
    if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
        return program
    source = cache.folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    build = cache.folder / "build"
    words = [
        "c++", "-O2", "-std=c++17", "-I", str(source / "include"),
        "-I", str(source / "ggml" / "include"), str(SOURCE), "-o", str(program),
        *(str(build / library) for library in LIBRARIES), "-fopenmp", "-lpthread", "-ldl",
    ]  # fmt: skip
    cache.step("build-logits", words)
    return program


def _vocabulary(gguf: Path) -> int:
    from tokenix.models.registry import load_image

    return load_image(gguf).config.vocab_tokens


def main() -> int:
    from platformdirs import user_cache_path

    from tokenix.models.registry import resolve

    parser = argparse.ArgumentParser(description="llama.cpp's logits for given tokens.")
    parser.add_argument("tokens", type=Path)
    parser.add_argument("logits", type=Path)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--weights", choices=WEIGHTS, default="Q4_1", help="of the shipped model")
    which.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    cache = Cache(user_cache_path("tokenix") / "peers" / "llama")
    try:
        tokens = np.array(json.loads(options.tokens.read_bytes()), np.int32)
        if tokens.ndim != 2:
            raise ValueError(f"{options.tokens}: rows of tokens, please, all of one length")
        llama = Llama(cache, resolve("smollm2"), options.weights)
        if options.model is None:
            llama.install()
        write_logits(cache, options.model or llama.model, tokens, options.logits, options.threads)
    except (OSError, ValueError, Unavailable) as why:
        print(f"logits: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
