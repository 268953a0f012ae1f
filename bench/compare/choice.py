"""The servers that can be compared, by name."""

from pathlib import Path

from tokenix.bench.compare.itself import Itself
from tokenix.bench.compare.llama import WEIGHTS, Llama
from tokenix.bench.compare.openvino import OpenVino
from tokenix.bench.compare.peer import Cache, Peer
from tokenix.bench.compare.vllm import Vllm
from tokenix.models.registry import resolve

MODEL = "smollm2"
"""What all of them serve."""


def make_peer(name: str, cache: Path, jobs: int) -> Peer:
    """`cache` has a folder for each. OSError if the model's file is not installed."""
    gguf = resolve(MODEL)
    if name == "openvino":
        return OpenVino(Cache(cache / "openvino"), gguf)
    if name == "vllm":
        return Vllm(Cache(cache / "vllm"), gguf)
    for weights in WEIGHTS:
        llama = Llama(Cache(cache / "llama"), gguf, weights, jobs)
        if llama.name == name:
            return llama
    assert name in ("tokenix", "tokenix-noswap"), "the command knows the names"
    return Itself(MODEL, swaps=name == "tokenix")
