"""Every kernel is compiled to machine code, and that is what it should be: no spills, loads of 16
bytes, registers within what its blocks leave each other. The whole matrix: `make cuda-matrix`."""

from pathlib import Path

import pytest

from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.kernels import build, decode
from tokenix.drivers.cuda.kernels.abi import COMBINE, DECODE
from tokenix.drivers.cuda.kernels.decode import Tiling
from tokenix.drivers.cuda.kernels.pages import DIMS
from tokenix.drivers.cuda.kernels.registry import Recipe, Shape, find_recipes
from tokenix.drivers.cuda.kernels.words import as_plain
from tokenix.tests.cuda_kernels.sass import Anatomy, dissect

HOPPER, AMPERE = (9, 0), (8, 0)
REGISTERS = 65536
"""Of a multiprocessor."""


def shape(kv: str, x: str, group: int, dim: int, **rest: bool) -> Shape:
    return Shape(kv, x, 2 * group, 2, dim, **rest)


SOME = [
    pytest.param("decode", shape("bf16", "bf16", 4, 128), HOPPER, id="decode-llama-8b"),
    pytest.param("decode", shape("f32", "f32", 3, 64), HOPPER, id="decode-smollm2-f32"),
    pytest.param("decode", shape("f16", "bf16", 5, 256), AMPERE, id="decode-group-5-dim-256"),
    pytest.param("decode", shape("int4", "bf16", 5, 128), HOPPER, id="decode-int4"),
    pytest.param("append", shape("int4", "bf16", 4, 128), HOPPER, id="append-int4"),
    pytest.param("combine", shape("bf16", "bf16", 4, 128), HOPPER, id="combine"),
    pytest.param("append", shape("bf16", "bf16", 4, 128, norm=True), HOPPER, id="append-qwen3"),
    pytest.param("prefill", shape("bf16", "bf16", 4, 128), HOPPER, id="prefill-llama-8b"),
    pytest.param("prefill", shape("fp8", "bf16", 4, 128), HOPPER, id="prefill-fp8"),
    pytest.param("gate", shape("bf16", "bf16", 1, 64), HOPPER, id="gate"),
    pytest.param("sample", shape("bf16", "bf16", 1, 64), HOPPER, id="sample"),
]

GROUPS = (1, 2, 3, 4, 5)
"""More are several blocks of these."""
WHOLE = [
    pytest.param(op, shape(kind, as_plain(kind) or "bf16", group, dim, bias=bias, norm=bias), arch)
    for arch in (HOPPER, AMPERE)
    for op, groups in (("decode", GROUPS), ("combine", (1,)), ("append", (1,)), ("prefill", (1,)))
    for kind in ("bf16", "f16", "f32", "int8", "fp8", "int4")
    if kind != "f32" or op in ("decode", "append")
    for dim in DIMS
    for group in (groups if kind == "bf16" and arch == HOPPER else groups[-1:])
    for bias in ((False, True) if op == "append" else (False,))
]


def check(recipe: Recipe, arch: tuple[int, int], folder: Path) -> Anatomy:
    """What holds for all kernels."""
    found = dissect(recipe.compile(arch), recipe.op.name, folder)
    assert (found.stack_bytes, found.local_bytes) == (0, 0), "registers are spilled"
    block = Block(recipe.op, {arg.name: 0 for arg in recipe.op.args})
    assert found.parameters == [at for _, at in block._fields.values()]
    assert found.parameter_bytes == len(block._bytes), "a launch is refused"
    assert found.count("LDL") == found.count("STL") == 0
    if recipe.op.name != "sample":
        doubles = [name for name in found.instructions if name.startswith(("DADD", "DMUL", "DFMA"))]
        assert not doubles, "float32 is computed as float64"
    assert found.registers * recipe.threads <= REGISTERS
    return found


LOADS = {
    "f32": ("128", 2),
    "f16": ("128", 1),
    "bf16": ("128", 1),
    "int8": ("64", 1),
    "fp8": ("64", 1),
    "int4": ("E", 1),
}
"""How eight numbers are loaded: bits of a load, loads."""


def check_decode(recipe: Recipe, shape: Shape, found: Anatomy) -> None:
    if recipe.technique == "mma":
        keys, values = 2 * -(-shape.dim // 32), 4 * -(-shape.dim // 64)
        loads = 2 * keys + values  # keys of the first page, and of the next one beside values
        assert found.count("LDG", "128") >= loads and found.count("HMMA") >= shape.dim // 4
        assert found.registers * decode.THREADS * 3 <= REGISTERS
        assert recipe.shared_bytes * 3 <= 160 << 10
        return
    tiling = Tiling("bf16", shape.group, shape.dim)
    width, loads = LOADS[shape.kv]
    if recipe.technique == "numba" and shape.kv == "f32" and shape.dim < 256:
        loads = 1
    assert found.count("LDG", width) >= tiling.unroll * 2 * loads, "K and V are not loaded whole"
    blocks = 4 if tiling.heads <= 4 else 2
    assert found.registers * decode.THREADS * blocks <= REGISTERS
    assert max(found.shared_bytes, recipe.shared_bytes) * blocks <= 160 << 10


def check_op(op: str, shape: Shape, arch: tuple[int, int], folder: Path) -> None:
    for recipe in find_recipes(shape)[op]:
        found = check(recipe, arch, folder)
        if op == "decode":
            check_decode(recipe, shape, found)
        if op == "prefill":
            matrix = found.count("HMMA") / (shape.dim // 8 * 4 + shape.dim // 16 * 8)
            assert matrix >= 1, "scores and sums are not computed by tensor cores"
            assert found.count("LDG", LOADS[shape.kv][0]) and found.count("LDSM")
            assert recipe.shared_bytes <= 160 << 10


@pytest.mark.parametrize(("op", "shape", "arch"), SOME)
def test_machine_code(op: str, shape: Shape, arch: tuple[int, int], tmp_path: Path) -> None:
    check_op(op, shape, arch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "shape", "arch"), WHOLE, ids=str)
def test_machine_code_of_the_whole_matrix(
    op: str, shape: Shape, arch: tuple[int, int], tmp_path: Path
) -> None:
    check_op(op, shape, arch, tmp_path)


def test_ptx_is_of_a_version_that_a_driver_for_cuda_13_0_takes() -> None:
    ptx = build.make_ptx(COMBINE, decode.make_combine("f32", 64), HOPPER, (decode.THREADS, 1))
    version = next(line for line in ptx.splitlines() if line.startswith(".version"))
    assert float(version.split()[1]) <= 9.0
    assert ".visible .entry combine(" in ptx and ".target sm_90" in ptx


def test_arguments_lie_as_the_op_says() -> None:
    ptx = build.make_ptx(DECODE, decode.make_decode(Tiling("f32", 1, 64)), HOPPER, (128, 4))
    sizes = {"i64": "u64", "i32": "u32", "u32": "u32", "f32": "f32"}
    declared = [line.split()[1] for line in ptx.splitlines() if line.strip().startswith(".param")]
    wanted = ["u64" if arg.kind.endswith("*") else sizes[arg.kind] for arg in DECODE.args]
    assert [kind.strip(".") for kind in declared] == wanted


def test_a_refusal_is_the_compilers_words() -> None:
    with pytest.raises(RuntimeError, match=r"not compiled.*nonsense"):
        build.link_ptx(".version 9.0\n.target sm_90\n.address_size 64\nnonsense\n", HOPPER)
    with pytest.raises(RuntimeError, match=r"not compiled.*undefined"):
        build.compile_cpp('extern "C" __global__ void f(int* p) { *p = N; }', HOPPER, ["M=1"])
