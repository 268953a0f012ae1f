"""The repository as data: its root, its top-level folders, its files and its own configuration."""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = (
    "mm", "swap", "sched", "models", "drivers", "kernel", "syscalls", "gateway", "daemon", "cli",
    "bench", "tui",
)  # fmt: skip
"""The folders that make up the import package `tokenix`, as shipped in the wheel."""

FOLDERS = (*PACKAGES, "examples", "tests")
"""All top-level folders with code in them. Each has a README.md and none an `__init__.py`."""


@cache
def python_files(folders: Iterable[str] = FOLDERS) -> tuple[Path, ...]:
    """The Python files of some top-level folders, and with all of them that of the root, sorted."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    if folders == FOLDERS:
        files.append(ROOT / "__init__.py")
    return tuple(sorted(files))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def where(path: Path, node: ast.AST | None = None) -> str:
    """`mm/frames.py:12`, for messages."""
    shown = path.relative_to(ROOT).as_posix()
    return f"{shown}:{getattr(node, 'lineno', 0)}" if node is not None else shown


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def contract(name: str) -> dict[str, Any]:
    """The import-linter contract whose name starts so."""
    found = [
        c for c in pyproject()["tool"]["importlinter"]["contracts"] if c["name"].startswith(name)
    ]
    assert len(found) == 1, f"{len(found)} import contracts are named {name!r}"
    return dict(found[0])


def module_files(module: str) -> Iterator[Path]:
    """The files of `tokenix.mm` (a folder) or `tokenix.kernel.core` (a file)."""
    path = ROOT.joinpath(*module.split(".")[1:])
    if path.is_dir():
        yield from sorted(path.rglob("*.py"))
    elif path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")


def pure_files() -> list[Path]:
    """The files that decide: no device, no IO, no clock, no chance."""
    modules = contract("Decisions are pure")["source_modules"]
    return [path for module in modules for path in module_files(module)]
