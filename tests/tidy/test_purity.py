"""Code that decides depends on its arguments only, so that one seed gives one trace.

import-linter checks whole import chains by the same lists (pyproject.toml); this adds what a
module can reach without an import, and the order of sets.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenix.tests.tidy.tree import ROOT, contract, module_files, parse, pure_files, where

PURE = contract("Decisions are pure")
FILES = [pytest.param(path, id=where(path)) for path in pure_files()]

EFFECTS = {"boot", "loop"}
"""The kernel's modules that may touch the world. All others are in the contract."""

UNSTABLE_CALLS = {"hash", "id", "open", "input", "print", "exec", "eval", "__import__"}

IDENTITY = {
    "kernel/audit.py": "counts each page once; no order comes of it",
    "mm/audit.py": "counts maps of one page; no order comes of it",
}
"""File -> why it may call `id`."""

ORDER_FREE = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}
"""Calls whose result does not depend on the order of what they are given."""

ORDERED = {"dict", "enumerate", "iter", "list", "next", "tuple", "zip"}

SET_TYPES = {"set", "frozenset", "Set", "AbstractSet", "MutableSet"}

Loop = ast.For | ast.AsyncFor | ast.comprehension


def imported(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every import with its module's name, but for those under `if TYPE_CHECKING`."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


def set_names(tree: ast.Module) -> set[str]:
    """Names of variables, arguments and fields that this module annotates or fills as sets."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and is_set_type(node.annotation):
            names.add(last_name(node.target))
        elif isinstance(node, ast.arg) and node.annotation and is_set_type(node.annotation):
            names.add(node.arg)
        elif isinstance(node, ast.Assign) and is_set(node.value, frozenset()):
            names.update(last_name(target) for target in node.targets)
    return names - {""}


def is_set_type(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return last_name(outer) in SET_TYPES


def last_name(node: ast.expr) -> str:
    """`x` for `x` and for `self.x`."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def is_set(node: ast.expr, names: frozenset[str]) -> bool:
    """Whether an expression is a set by its form, or by a name known to be one."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub(), right=right):
            return is_set(left, names) or is_set(right, names)
        case _:
            return last_name(node) in names


def set_orders(tree: ast.Module) -> Iterator[ast.expr]:
    """Every place where the order of a set gets out."""
    names = frozenset(set_names(tree))
    free: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.SetComp):
            free.update(id(loop) for loop in node.generators)
        if isinstance(node, ast.Call) and last_name(node.func) in ORDER_FREE and not node.keywords:
            free.update(
                id(loop)
                for arg in node.args
                if isinstance(arg, ast.GeneratorExp | ast.ListComp)
                for loop in arg.generators
            )
    for node in ast.walk(tree):
        if isinstance(node, Loop) and id(node) not in free and is_set(node.iter, names):
            yield node.iter
        if isinstance(node, ast.Call) and last_name(node.func) in ORDERED:
            yield from (arg for arg in node.args if is_set(arg, names))
        if isinstance(node, ast.Starred) and is_set(node.value, names):
            yield node.value


@pytest.mark.parametrize("path", FILES)
def test_no_forbidden_import(path: Path) -> None:
    forbidden = set(PURE["forbidden_modules"])
    found = [
        f"{where(path, node)} imports {module}"
        for node, module in imported(parse(path))
        if module.split(".")[0] in forbidden
    ]
    assert not found


@pytest.mark.parametrize("path", FILES)
def test_no_call_that_differs_between_runs(path: Path) -> None:
    found = [
        f"{where(path, node)} calls {node.func.id}"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in UNSTABLE_CALLS
        and not (node.func.id == "id" and where(path) in IDENTITY)
    ]
    assert not found


@pytest.mark.parametrize("path", FILES)
def test_no_order_from_a_set(path: Path) -> None:
    found = [f"{where(path, node)} {ast.unparse(node)}" for node in set_orders(parse(path))]
    assert not found, "sort it, or keep a dict"


@pytest.mark.parametrize("module", PURE["source_modules"])
def test_pure_module_exists(module: str) -> None:
    assert list(module_files(module)), f"{module} is in the contract and not in the tree"


def test_every_kernel_module_is_pure_or_listed_as_having_effects() -> None:
    listed = {module.removeprefix("tokenix.kernel.") for module in PURE["source_modules"]}
    assert {path.stem for path in (ROOT / "kernel").glob("*.py")} <= listed | EFFECTS


@pytest.mark.parametrize(
    ("source", "leaks"),
    [
        ("for x in {1, 2}: pass", 1),
        ("for x in sorted({1, 2}): pass", 0),
        ("y = [x for x in set(z)]", 1),
        ("y = sorted(x for x in set(z))", 0),
        ("y = min((x for x in set(z)), key=f)", 1),
        ("y = {x for x in set(z)}", 0),
        ("s: set[int] = make()\nfor x in s: pass", 1),
        ("class A:\n  s: frozenset[int]\n  def f(self): return list(self.s)", 1),
        ("def f(s: set[int]): return [*s]", 1),
        ("def f(s: set[int]): return 1 in s and len(s)", 0),
        ("for x in set(a) - set(b): pass", 1),
        ("s = set()\nfor x in sorted(s): pass", 0),
    ],
)
def test_the_set_rule_itself(source: str, leaks: int) -> None:
    assert len(list(set_orders(ast.parse(source)))) == leaks
