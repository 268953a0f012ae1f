"""How large the check is, and of what: on a GPU, or small on a fake one for the tests."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.dense import DenseKind
from tokenix.drivers.cuda.device import MakeDense, MakeKernels, compiled_kernels, torch_dense
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.kernels.cubins import Cubins, default_folder
from tokenix.drivers.cuda.kernels.pages import Page
from tokenix.drivers.cuda.kernels.registry import Shape, find_recipes
from tokenix.drivers.cuda.launcher import Kernel, Launcher
from tokenix.drivers.cuda.ranks.peers import Backend
from tokenix.drivers.cuda.trial import choose_kernels
from tokenix.drivers.kvkind import KvKind
from tokenix.models.config import ModelConfig, RopeConfig
from tokenix.models.weights import Weights

KernelsOf = Callable[[CudaDriver, Shape], Mapping[str, Kernel]]
Offers = Iterator[tuple[str, Callable[[], Kernel]]]
OffersOf = Callable[[CudaDriver, Shape, str], Offers]


def every_kernel(driver: CudaDriver, shape: Shape, op: str) -> Offers:
    """(technique, how it is made) of all kernels that there are of an op."""
    cubins = Cubins(default_folder())
    for recipe in find_recipes(shape).get(op, ()):
        yield recipe.technique, partial(recipe.build, driver.gpu.capability, cubins)


SHAPES = (
    Shape("bf16", "bf16", 32, 8, 128),
    Shape("int4", "bf16", 9, 3, 64),
    Shape("f16", "f16", 32, 8, 128),
    Shape("bf16", "bf16", 9, 3, 64),
    Shape("f32", "f32", 9, 3, 64),
    Shape("f16", "bf16", 16, 2, 128, bias=True),
    Shape("bf16", "bf16", 16, 8, 128, norm=True),
    Shape("bf16", "bf16", 16, 1, 256),
    Shape("bf16", "bf16", 12, 4, 96),
    Shape("f16", "f16", 8, 2, 80),
    Shape("int8", "bf16", 32, 8, 128),
    Shape("fp8", "f16", 16, 1, 80),
    Shape("int4", "bf16", 64, 8, 128, norm=True),
)
"""Each technique, kind of page, dim and way to tile, somewhere; rates are those of the first."""

DEMO = (sys.executable, "-m", "tokenix.cli.main", "demo", "--driver", "cuda")

WHOLE = (sys.executable, "-m", "tokenix.bench.gpu")

LLAMA_8B = ModelConfig(
    name="random weights in the shape of Llama 3.1 8B",
    architecture="llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab_tokens=128256,
    max_context_tokens=8192,
    rms_eps=1e-5,
    rope=RopeConfig(theta=500000.0, dim=128),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that says something, and a text as its tokens."""

    config: ModelConfig
    weights: Weights
    tokens: Sequence[int]


def shipped_subject() -> Subject:
    """The shipped model, and documentation of the standard library."""
    import argparse
    import decimal
    import subprocess

    from tokenix.models.registry import load_image

    image = load_image("smollm2")
    text = "\n".join(str(module.__doc__) for module in (argparse, subprocess, decimal))
    return Subject(image.config, image.weights, image.tokenizer.encode(text))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Windows of a text: some tokens at once, the others one by one."""

    windows: int = 8
    prefilled: int = 72
    decoded: int = 32

    @property
    def pages(self) -> int:
        """Of a window."""
        return -(-(self.prefilled + self.decoded) // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class Setup:
    """Sizes of all parts of the check."""

    shapes: tuple[Shape, ...]
    attention: tuple[tuple[int, int], ...] = tuple(
        (batch, context) for batch in (1, 8, 32, 128) for context in (1024, 4096, 8192)
    )
    """(batch, context)s."""
    copy_bytes: int = 4 << 30
    link_bytes: int = 1 << 30
    pieces: tuple[int, ...] = (4096, 16384, 28672, 65536, 368640, 1 << 20, 2 << 20, 8 << 20)
    times: int = 20
    seeds: int = 3
    model: ModelConfig = LLAMA_8B
    kind: DenseKind = "bf16"
    kind_kv: KvKind = "bf16"
    batches: tuple[int, ...] = (1, 8, 32, 128, 256)
    context: int = 1024
    product: int = 8192
    """Rows and columns of the matrices by whose product the GPU's arithmetic is measured."""
    swapped_tokens: int = 4096
    subject: Callable[[], Subject] = shipped_subject
    sizes: Sizes = Sizes()
    narrow: tuple[DenseKind, ...] = ("bf16",)
    """What the subject is computed in besides float32."""
    real: bool = True
    """Whether figures have bounds."""
    demo: tuple[str, ...] = DEMO
    whole: tuple[str, ...] = WHOLE
    """Prints the figures of a machine with its kernel, as JSON (`bench/gpu.py`)."""
    offers_of: OffersOf = every_kernel
    kernels_of: KernelsOf = choose_kernels
    kernels_by: MakeKernels = compiled_kernels
    dense_by: MakeDense = torch_dense
    backend: Backend = "nccl"

    def quick(self) -> "Setup":
        """The least that runs every part."""
        return replace(
            self, shapes=self.shapes[:2], attention=((8, 1024),), copy_bytes=1 << 28, times=3,
            seeds=1, link_bytes=1 << 26, batches=(1, 8),
        )  # fmt: skip

    def launcher(self, driver: CudaDriver, shape: Shape) -> Launcher:
        return Launcher(driver, driver.stream(), self.kernels_of(driver, shape))

    def close(self, driver: CudaDriver, launcher: Launcher) -> None:
        launcher.close()
        driver.destroy_stream(launcher.stream)

    def frame_shape(self, shape: Shape) -> FrameShape:
        """Frames of one layer."""
        return FrameShape(1, shape.kv_heads, Page(shape.kv, shape.dim))
