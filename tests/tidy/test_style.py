"""Rules of style that ruff has no word for. CONTRIBUTING.md has them in prose."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenix.tests.tidy.tree import FOLDERS, PACKAGES, ROOT, parse, python_files, where

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 70

LONG_FILES: dict[str, str] = {}
"""File -> why it is better long."""

LONG_FUNCTIONS: dict[str, str] = {}
"""`file:function` -> why it is better long."""

EMPTY_WORDS = {"util", "utils", "helper", "helpers", "common", "misc"}
"""Names of a place to put things rather than of a thing."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|tmp|home|root|Users|mnt)/")
"""A path that is true on one machine only. Tests use `tmp_path`."""

FILES = [pytest.param(path, id=where(path)) for path in python_files()]
SHIPPED = [pytest.param(path, id=where(path)) for path in python_files(PACKAGES)]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(node: Function) -> int:
    """Lines from `def` to the end, less the docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        doc = node.body[0]
        lines -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
    return lines


@pytest.mark.parametrize("path", FILES)
def test_file_is_one_noun_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE_LINES or where(path) in LONG_FILES, "what second noun hides in it?"


@pytest.mark.parametrize("path", FILES)
def test_functions_fit_on_a_screen(path: Path) -> None:
    long = [
        f"{where(path, node)} {node.name}: {code_lines(node)} lines"
        for node in functions(path)
        if code_lines(node) > MAX_FUNCTION_LINES
        and f"{where(path)}:{node.name}" not in LONG_FUNCTIONS
    ]
    assert not long, f"the limit is {MAX_FUNCTION_LINES} lines"


@pytest.mark.parametrize("path", SHIPPED)
def test_modules_open_with_a_docstring(path: Path) -> None:
    tree = parse(path)
    assert not tree.body or ast.get_docstring(tree), f"{where(path)} does not say what it is"


@pytest.mark.parametrize("path", FILES)
def test_names_say_what_a_thing_is(path: Path) -> None:
    empty = [part for part in path.relative_to(ROOT).with_suffix("").parts if part in EMPTY_WORDS]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef) and re.search(r"Manager|Helper|Utils?$", node.name):
            empty.append(node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = node.name.strip("_").split("_")
            empty += [node.name for word in words[-1:] if word in EMPTY_WORDS]
    assert not empty, f"{where(path)}: name the thing instead"


@pytest.mark.parametrize("path", FILES)
def test_nothing_is_left_to_be_written(path: Path) -> None:
    unwritten = [
        where(path, node)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and ast.unparse(node.exc).startswith("NotImplemented")
    ]
    assert not unwritten, "an abstract method is a Protocol's; the rest is built or absent"


@pytest.mark.parametrize("path", FILES)
def test_no_path_of_one_machine_in_code(path: Path) -> None:
    assert not MACHINE_PATH.findall(path.read_text(encoding="utf-8"))


def test_no_path_of_one_machine_in_build_files() -> None:
    for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run"):
        assert not MACHINE_PATH.findall((ROOT / name).read_text(encoding="utf-8")), name


def test_exceptions_are_still_there() -> None:
    for known in (*LONG_FILES, *(key.split(":")[0] for key in LONG_FUNCTIONS)):
        assert (ROOT / known).is_file(), f"{known} is gone; take it off the list"


def test_the_rules_see_the_code() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in python_files()} >= {*FOLDERS, "__init__.py"}
