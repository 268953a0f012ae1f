"""Which kernel is used, and what is kept of what was compiled."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tokenix.drivers.cuda.kernels import registry, shipping
from tokenix.drivers.cuda.kernels.abi import COMBINE, OPS
from tokenix.drivers.cuda.kernels.cubins import Cubins, file_name, write_cubin
from tokenix.drivers.cuda.kernels.registry import Kernel, Recipe, Shape, build_kernels, find_recipes
from tokenix.drivers.kvkind import KvKind
from tokenix.kernel.boot import BootOptions

LLAMA = Shape("bf16", "bf16", 32, 8, 128)
HOPPER = (9, 0)


def offer(technique: str, compile: Callable[[Any], bytes]) -> Callable[[Shape], Recipe]:
    return lambda shape: Recipe(
        COMBINE, technique, "", compile, 32, lambda rows, splits=1: (1, 1, 1)
    )


class Compiler:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return b"code"


def refuse(arch: Any) -> bytes:
    raise RuntimeError("no such instruction")


@pytest.fixture
def cubins(tmp_path: Path) -> Cubins:
    return Cubins(tmp_path / "cubins", tmp_path / "shipped")


def choose(
    monkeypatch: pytest.MonkeyPatch, cubins: Cubins, measure: Any, *offers: Any
) -> dict[str, Kernel]:
    makes = {"combine": lambda shape: [offer(shape) for offer in offers]}
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", makes)
    return build_kernels(LLAMA, HOPPER, cubins, measure)


def test_the_quickest_is_taken(monkeypatch: pytest.MonkeyPatch, cubins: Cubins) -> None:
    slow, quick = offer("slow", lambda arch: b"s"), offer("quick", lambda arch: b"q")
    seconds = {b"s": 2.0, b"q": 1.0}
    chosen = choose(monkeypatch, cubins, lambda kernel: seconds[kernel.image], slow, quick)
    assert chosen["combine"].technique == "quick"
    chosen = choose(monkeypatch, cubins, lambda kernel: 1.0, slow, quick)
    assert chosen["combine"].technique == "slow", "of equals the preferred one"
    seconds = {b"s": 1.05, b"q": 1.0}
    chosen = choose(monkeypatch, cubins, lambda kernel: seconds[kernel.image], slow, quick)
    assert chosen["combine"].technique == "slow", "a small difference decides nothing"


def test_without_a_measure_the_preferred_one_is_taken_and_nothing_else_compiled(
    monkeypatch: pytest.MonkeyPatch, cubins: Cubins
) -> None:
    first, other = Compiler(), Compiler()
    offers = offer("first", lambda arch: first()), offer("other", lambda arch: other())
    chosen = choose(monkeypatch, cubins, None, *offers)
    assert chosen["combine"].technique == "first" and (first.calls, other.calls) == (1, 0)


def test_what_is_refused_is_passed_over(monkeypatch: pytest.MonkeyPatch, cubins: Cubins) -> None:
    other = offer("other", lambda arch: b"o")
    chosen = choose(monkeypatch, cubins, lambda kernel: 1.0, offer("new", refuse), other)
    assert chosen["combine"].technique == "other"
    assert choose(monkeypatch, cubins, None, offer("new", refuse), other)["combine"].image == b"o"
    with pytest.raises(RuntimeError, match=r"no combine kernel .*no such instruction"):
        choose(monkeypatch, cubins, None, offer("new", refuse))


def test_a_compiler_that_is_not_there_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, cubins: Cubins
) -> None:
    def lack(arch: Any) -> bytes:
        raise ImportError("libnvvm is not there\nand more of it")

    other = offer("other", lambda arch: b"o")
    chosen = choose(monkeypatch, cubins, None, offer("numba", lack), other)
    assert chosen["combine"].technique == "other"
    with pytest.raises(RuntimeError, match=r"numba: ImportError: libnvvm is not there$"):
        choose(monkeypatch, cubins, None, offer("numba", lack))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "words"),
    [(32, 8, 72, "head dim of 72"), (34, 2, 64, "34 query heads"), (7, 2, 64, "7 query heads")],
)
def test_shapes_without_kernels_are_told(heads: int, kv_heads: int, dim: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Shape("bf16", "bf16", heads, kv_heads, dim)


def test_grids() -> None:
    recipes = {op: found[0] for op, found in find_recipes(LLAMA).items()}
    assert recipes["append"].grid(5) == (60, 1, 1)
    assert recipes["decode"].grid(5, 3) == (5, 8, 3)
    assert recipes["combine"].grid(5, 3) == (40, 1, 1)
    assert set(recipes) == set(OPS)


@pytest.mark.parametrize(
    ("kv", "group", "dim", "techniques"),
    [
        ("bf16", 4, 128, ["numba", "mma", "cpp"]),
        ("f16", 8, 64, ["mma", "numba", "cpp"]),
        ("f32", 8, 64, ["numba", "cpp"]),
        ("bf16", 1, 256, ["numba", "cpp"]),
        ("f32", 4, 256, ["numba", "cpp"]),
        ("f32", 5, 256, ["cpp"]),
        ("int4", 4, 128, ["cpp"]),
    ],
)
def test_order_of_decodes(kv: Any, group: int, dim: int, techniques: list[str]) -> None:
    found = find_recipes(Shape(kv, "bf16", 2 * group, 2, dim))["decode"]
    assert [recipe.technique for recipe in found] == techniques


def test_variants_differ_in_name() -> None:
    shapes = [LLAMA, Shape("f16", "bf16", 32, 8, 128), Shape("bf16", "bf16", 16, 8, 128)]
    assert len({find_recipes(shape)["decode"][0].variant for shape in shapes}) == 3


def test_machine_code_is_compiled_once(cubins: Cubins) -> None:
    compiler = Compiler()
    for _ in range(2):
        assert cubins.find("combine", "", HOPPER, compiler) == b"code"
    assert compiler.calls == 1
    cubins.find("combine", "other", HOPPER, compiler)
    cubins.find("combine", "", (8, 0), compiler)
    assert compiler.calls == 3


@pytest.mark.parametrize("damage", [b"", b"x" * 36, b"x" * 10])
def test_damaged_files_are_made_again(cubins: Cubins, damage: bytes) -> None:
    compiler = Compiler()
    cubins.find("combine", "", HOPPER, compiler)
    (path,) = cubins.folder.iterdir()
    path.write_bytes(damage)
    assert cubins.find("combine", "", HOPPER, compiler) == b"code" and compiler.calls == 2
    assert cubins.find("combine", "", HOPPER, compiler) == b"code" and compiler.calls == 2


def test_a_folder_that_cannot_be_made_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    compiler = Compiler()
    assert Cubins(tmp_path / "file", tmp_path).find("combine", "", HOPPER, compiler) == b"code"


def test_the_package_comes_first_then_what_was_kept_then_the_compiler(cubins: Cubins) -> None:
    compiler = Compiler()
    assert cubins.find("combine", "", HOPPER, compiler) == b"code"
    write_cubin(cubins.shipped / file_name("combine", "", HOPPER), b"shipped")
    assert cubins.find("combine", "", HOPPER, compiler) == b"shipped"
    assert cubins.find("combine", "other", HOPPER, compiler) == b"code"
    (cubins.shipped / file_name("combine", "", HOPPER)).write_bytes(b"x" * 40)
    assert cubins.find("combine", "", HOPPER, compiler) == b"code", "damaged: that which was kept"
    assert compiler.calls == 2


def test_what_is_shipped_asks_for_no_compiler(
    monkeypatch: pytest.MonkeyPatch, cubins: Cubins
) -> None:
    """A machine with a GPU need not have those it was made with."""
    write_cubin(cubins.shipped / file_name("combine", "", (8, 0)), b"shipped")
    monkeypatch.setattr("tokenix.drivers.cuda.kernels.cubins.compiler_versions", lambda: "none")
    compiler = Compiler()
    assert cubins.find("combine", "", (8, 9), compiler) == b"shipped", "Ada runs it"
    assert cubins.find("combine", "", HOPPER, compiler) == b"code", "Hopper does not"


def test_machine_code_of_other_sources_is_not_found(
    monkeypatch: pytest.MonkeyPatch, cubins: Cubins
) -> None:
    compiler = Compiler()
    write_cubin(cubins.shipped / file_name("combine", "", HOPPER), b"shipped")
    cubins.find("combine", "kept", HOPPER, compiler)
    monkeypatch.setattr("tokenix.drivers.cuda.kernels.cubins.source_digest", lambda: b"edited")
    assert cubins.find("combine", "", HOPPER, compiler) == b"code"
    assert cubins.find("combine", "kept", HOPPER, compiler) == b"code" and compiler.calls == 3


def test_what_is_shipped_is_compiled_once_and_nothing_else_is(tmp_path: Path) -> None:
    compiler = Compiler()
    recipe = offer("numba", lambda arch: compiler())(LLAMA)
    names = [file_name(recipe.name, recipe.variant, arch) for arch in shipping.ARCHS]
    items = [(name, recipe, arch) for name, arch in zip(names, shipping.ARCHS, strict=True)]
    (tmp_path / "combine-numba-of-other-sources.cubin").write_bytes(b"")
    assert shipping.ship(tmp_path, items) == (2, 2)
    assert shipping.ship(tmp_path, items) == (2, 0) and compiler.calls == 2
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert Cubins(tmp_path / "kept", tmp_path).find(recipe.name, "", HOPPER, compiler) == b"code"
    assert compiler.calls == 2


@pytest.mark.parametrize("kv", ["bf16", cast(KvKind, BootOptions().kv_dtype)])
def test_all_kernels_of_a_shipped_model_are_shipped(kv: KvKind) -> None:
    """For the pages that a boot makes where nobody says, too."""
    listed = {name for name, _, _ in shipping.list_recipes()}
    for recipes in find_recipes(replace(LLAMA, kv=kv)).values():
        assert {file_name(recipe.name, recipe.variant, HOPPER) for recipe in recipes} <= listed
