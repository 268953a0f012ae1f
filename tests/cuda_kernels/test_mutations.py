"""Each fault of mutations.py is found by the test that it names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tokenix.tests.cuda_kernels.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path("drivers/cuda/kernels")
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / KERNELS).glob("*.*")}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)
def test_there_is_what_is_to_be_changed(mutation: Mutation) -> None:
    assert mutation.old in SOURCES[mutation.file]
    name = mutation.test.split("::")[1].split("[")[0]
    test = Path(__file__).with_name(mutation.test.split("::")[0])
    assert f"def {name}(" in test.read_text(encoding="utf-8")


def overlay(folder: Path) -> Path:
    """A package `tokenix` in which only the kernels are copies."""
    package, inside = folder / "tokenix", ROOT
    for name in ("", *KERNELS.parts):
        package, inside = package / name, inside / name
        package.mkdir()
        for entry in inside.iterdir():
            if entry.name not in KERNELS.parts and not entry.name.startswith("."):
                (package / entry.name).symlink_to(entry)
    for entry in package.iterdir():
        entry.unlink()
    for path in (ROOT / KERNELS).glob("*.*"):
        shutil.copy(path, package)
    return package


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)
def test_fault_is_found(mutation: Mutation, tmp_path: Path) -> None:
    kernels = overlay(tmp_path)
    file = kernels / mutation.file
    source = file.read_text(encoding="utf-8")
    file.write_text(source.replace(mutation.old, mutation.new, 1), encoding="utf-8")
    path, name = mutation.test.split("::")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *("-o", f"pythonpath={tmp_path}", "--import-mode=importlib", "-rf"),
        *("-k", " and ".join(re.split(r"[\[\]]", name)).removesuffix(" and ")),
        f"tests/cuda_kernels/{path}",
    ]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "AssertionError" in done.stdout or "SimulatedFault" in done.stdout, done.stdout[-2000:]
