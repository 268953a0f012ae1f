"""Which kernels there are for a model, and which of them are used.

An op may have several implementations, in order of preference, and for some shapes none:

    numba   Python, compiled by Numba       cpp   CUDA C++, any page       mma   on tensor cores

With a way to measure them on the device, the quickest of those that compile is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenix.drivers.cuda.kernels import abi, append, decode, gate, prefill, sample
from tokenix.drivers.cuda.kernels.abi import Op
from tokenix.drivers.cuda.kernels.append import Vector
from tokenix.drivers.cuda.kernels.build import Arch, compile_cpp, compile_python
from tokenix.drivers.cuda.kernels.cubins import Cubins
from tokenix.drivers.cuda.kernels.decode import MOST_HEADS, Tiling, count_tiles
from tokenix.drivers.cuda.kernels.pages import DIMS, MOST_GROUP
from tokenix.drivers.cuda.kernels.sources import defines, read_source
from tokenix.drivers.cuda.kernels.words import Kind, as_plain
from tokenix.drivers.kvkind import KvKind

Grid = tuple[int, int, int]

WORTH = 1.1
"""A kernel is preferred to one that is not quicker by this factor, so that small differences
between two boots do not choose between kernels that round differently."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What kernels need to know of a model. ValueError if there are none for it."""

    kv: KvKind
    x: Kind
    heads: int
    kv_heads: int
    dim: int
    bias: bool = False
    norm: bool = False

    def __post_init__(self) -> None:
        if self.dim not in DIMS:
            known = ", ".join(map(str, DIMS))
            raise ValueError(f"a head dim of {self.dim} is not supported on GPUs; {known} are")
        if self.heads % self.kv_heads or not 1 <= self.group <= MOST_GROUP:
            raise ValueError(
                f"{self.heads} query heads for {self.kv_heads} kv heads are not supported on GPUs; "
                f"1 to {MOST_GROUP} for each are"
            )

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Kernel:
    """Machine code of an op, and how it is launched."""

    op: Op
    technique: str
    image: bytes
    threads: int
    grid: Callable[..., Grid]
    """(rows, splits=1) -> blocks. Rows: what the op has one of for each, in the README."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block."""

    @property
    def symbol(self) -> str:
        return self.op.name


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a kernel is made for one shape. `variant` names all that its code depends on."""

    op: Op
    technique: str
    variant: str
    compile: Callable[[Arch], bytes]
    threads: int
    grid: Callable[..., Grid]
    shared_bytes: int = 0

    @property
    def name(self) -> str:
        """Of all its variants."""
        return f"{self.op.name}-{self.technique}"

    def build(self, arch: Arch, cubins: Cubins) -> Kernel:
        """From what is kept, or compiled. RuntimeError if the compiler refuses, or is not there."""
        try:
            image = cubins.find(self.name, self.variant, arch, lambda: self.compile(arch))
        except RuntimeError:
            raise
        except Exception as error:  # Numba and bindings of libraries that lack raise what they like
            why = str(error).strip().split("\n")[0]
            raise RuntimeError(f"{self.technique}: {type(error).__name__}: {why}") from error
        return Kernel(self.op, self.technique, image, self.threads, self.grid, self.shared_bytes)


def _python(
    op: Op, variant: Any, function: Callable[..., None], grid: Callable[..., Grid], threads: int,
    blocks: int = 1,
) -> Recipe:  # fmt: skip
    def build(arch: Arch) -> bytes:
        return compile_python(op, function, arch, (threads, blocks))

    return Recipe(op, "numba", repr(variant), build, threads, grid)


def _cpp(
    op: Op, technique: str, source: str, macros: list[str], grid: Callable[..., Grid], threads: int,
    shared_bytes: int,
) -> Recipe:  # fmt: skip
    def build(arch: Arch) -> bytes:
        return compile_cpp(read_source(source), arch, macros)

    return Recipe(op, technique, " ".join(macros), build, threads, grid, shared_bytes)


def _macros(shape: Shape, **others: int) -> list[str]:
    return defines(shape.kv, shape.x, shape.group, shape.dim, **others)


def _vectors(shape: Shape) -> Callable[..., Grid]:
    """A warp for each q, k and v of a row."""
    every = shape.heads + 2 * shape.kv_heads

    def grid(rows: int, splits: int = 1) -> Grid:
        return -(-rows * every // append.WARPS), 1, 1

    return grid


def _append(shape: Shape) -> Iterator[Recipe]:
    grid, kv = _vectors(shape), as_plain(shape.kv)
    if kv is not None:
        vector = Vector(shape.x, kv, shape.dim, shape.bias, shape.norm)
        function = append.make_append(vector)
        yield _python(abi.APPEND, vector, function, grid, append.THREADS)
    macros = _macros(shape, BIAS=shape.bias, NORM=shape.norm)
    shared_bytes = 4 * append.WARPS * shape.dim
    yield _cpp(abi.APPEND, "cpp", "append", macros, grid, append.THREADS, shared_bytes)


def _decode(shape: Shape) -> Iterator[Recipe]:
    """Tensor cores first where query heads do not fit into one block otherwise."""
    kv = as_plain(shape.kv)
    tiles = count_tiles(shape.group)
    tensor = [_decode_mma(shape)] if shape.kv in ("f16", "bf16") and shape.dim <= 128 else []
    if tiles > 1:
        yield from tensor
    tiling = Tiling(kv or "bf16", shape.group, shape.dim)
    # Numba spills registers of the largest blocks of all on Ampere.
    if kv is not None and (kv, shape.dim, tiling.heads) != ("f32", 256, MOST_HEADS):
        function, blocks = decode.make_decode(tiling), 4 if tiling.heads <= 4 else 2
        grid = _splits(shape, tiles)
        yield _python(abi.DECODE, tiling, function, grid, decode.THREADS, blocks)
    if tiles == 1:
        yield from tensor
    lanes = max(8, 1 << (shape.dim // 8 - 1).bit_length())
    softmaxes = decode.WARPS * (32 // lanes) * -(-shape.group // tiles)
    shared_bytes, grid = 4 * softmaxes * (shape.dim + 2), _splits(shape, tiles)
    macros, threads = _macros(shape), decode.THREADS
    yield _cpp(abi.DECODE, "cpp", "decode", macros, grid, threads, shared_bytes)


def _decode_mma(shape: Shape) -> Recipe:
    queries = -(-shape.dim // 32) * 2 * 512
    shared_bytes = queries + 4 * decode.WARPS * shape.group * (shape.dim + 2)
    macros, grid = _macros(shape), _splits(shape, 1)
    return _cpp(abi.DECODE, "mma", "decode_mma", macros, grid, decode.THREADS, shared_bytes)


def _splits(shape: Shape, tiles: int) -> Callable[..., Grid]:
    def grid(rows: int, splits: int = 1) -> Grid:
        return rows, shape.kv_heads * tiles, splits

    return grid


def _combine(shape: Shape) -> Iterator[Recipe]:
    def grid(rows: int, splits: int = 1) -> Grid:
        return -(-rows * shape.heads // decode.WARPS), 1, 1

    function = decode.make_combine(shape.x, shape.dim)
    yield _python(abi.COMBINE, (shape.x, shape.dim), function, grid, decode.THREADS)


def _prefill(shape: Shape) -> Iterator[Recipe]:
    if shape.kv == "f32":
        return

    def grid(rows: int, splits: int = 1) -> Grid:
        return rows, shape.heads, 1

    macros, shared_bytes = _macros(shape), prefill.shared_bytes(shape.dim)
    yield _cpp(abi.PREFILL, "mma", "prefill", macros, grid, prefill.THREADS, shared_bytes)


def _gate(shape: Shape) -> Iterator[Recipe]:
    def grid(rows: int, splits: int = 1) -> Grid:
        return rows, 1, 1

    yield _python(abi.GATE, shape.x, gate.make_gate(shape.x), grid, gate.THREADS)


def _sample(shape: Shape) -> Iterator[Recipe]:
    def grid(rows: int, splits: int = 1) -> Grid:
        return rows, 1, 1

    yield _python(abi.SAMPLE, "", sample.make_sample(), grid, sample.THREADS)


IMPLEMENTATIONS: Mapping[str, Callable[[Shape], Iterable[Recipe]]] = {
    "append": _append,
    "decode": _decode,
    "combine": _combine,
    "prefill": _prefill,
    "gate": _gate,
    "sample": _sample,
}
"""For each op what can make it for a shape, the preferred one first."""


def find_recipes(shape: Shape) -> dict[str, list[Recipe]]:
    """All that can be made for a shape, by op."""
    offers = {op: list(make(shape)) for op, make in IMPLEMENTATIONS.items()}
    return {op: recipes for op, recipes in offers.items() if recipes}


def build_kernels(
    shape: Shape,
    arch: Arch,
    cubins: Cubins,
    measure: Callable[[Kernel], float] | None = None,
) -> dict[str, Kernel]:
    """A kernel for each op that there is one for. With `measure`, which gives seconds of a
    typical launch, it is the first that is about as quick as any; without, the first that compiles.
    RuntimeError if an op's implementations are all refused by their compilers."""
    chosen: dict[str, Kernel] = {}
    for op, recipes in find_recipes(shape).items():
        built: list[Kernel] = []
        refused: list[str] = []
        for recipe in recipes:
            try:
                built.append(recipe.build(arch, cubins))
            except RuntimeError as error:
                refused.append(str(error))
            if built and measure is None:
                break
        if not built:
            raise RuntimeError(f"no {op} kernel for compute capability {arch}: {refused[0]}")
        costs = [measure(kernel) for kernel in built] if measure and len(built) > 1 else [0.0]
        enough = min(costs) * WORTH
        chosen[op] = next(k for k, cost in zip(built, costs, strict=True) if cost <= enough)
    return chosen
