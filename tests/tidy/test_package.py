"""What a user gets: a cheap import, and a wheel with the package and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tokenix
from tokenix.tests.tidy.tree import PACKAGES, ROOT, python_files

MAX_IMPORT_MS = 50.0


def run_python(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees this checkout, and must succeed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    return subprocess.run(
        [sys.executable, *args], env=env, cwd=cwd, check=True, capture_output=True, text=True
    )


def import_ms() -> float:
    """Milliseconds that the interpreter itself counts for `import tokenix` and all below it."""
    report = run_python("-X", "importtime", "-c", "import tokenix").stderr
    line = re.search(r"^import time:\s+\d+ \|\s+(\d+) \| tokenix$", report, re.MULTILINE)
    assert line, report
    return int(line[1]) / 1000


def test_import_is_cheap() -> None:
    # The best of three: another process may take the processor during one of them.
    assert min(import_ms() for _ in range(3)) < MAX_IMPORT_MS


def test_import_brings_no_array_library() -> None:
    code = "import sys, tokenix; print(sorted({'numpy', 'torch', 'numba'} & set(sys.modules)))"
    assert run_python("-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize("name", tokenix.__all__)
def test_public_name_resolves(name: str) -> None:
    assert name in dir(tokenix)
    assert getattr(tokenix, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    name = "nothing_such"
    with pytest.raises(AttributeError, match=name):
        getattr(tokenix, name)


def test_wheel_has_every_module_and_no_tests(tmp_path: Path) -> None:
    """And the machine code that was made for it, which git ignores."""
    tree, cubin = tmp_path / "tree", "drivers/cuda/kernels/shipped/decode-mma-0.cubin"
    junk = shutil.ignore_patterns("__pycache__", ".*cache", ".venv", ".git", ".hypothesis")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=junk)
    (tree / cubin).parent.mkdir(exist_ok=True)
    (tree / cubin).write_bytes(b"machine code")
    run_python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=tree)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"tokenix-{tokenix.__version__}-py3-none-any.whl"
    names = [n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n]
    code = {f"tokenix/{path.relative_to(ROOT).as_posix()}" for path in python_files(PACKAGES)}
    assert {"tokenix/__init__.py", "tokenix/py.typed", f"tokenix/{cubin}", *code} <= set(names)
    tops = {name.split("/")[1] for name in names if name.startswith("tokenix/")}
    assert tops == {"__init__.py", "py.typed", *PACKAGES}
    assert all(name.startswith("tokenix/") for name in names)
