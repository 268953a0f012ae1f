"""Each fault of mutations.py is found by the test that it names."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tokenix.tests.cuda.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path("drivers/cuda")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)
def test_there_is_what_is_to_be_changed(mutation):
    source = (ROOT / DRIVER / mutation.file).read_text(encoding="utf-8")
    assert mutation.old in source
    path, name = mutation.test.split("::")
    assert f"def {name}(" in (Path(__file__).parent / path).read_text(encoding="utf-8")


def overlay(folder):
    """A package `tokenix` in which only the driver's files are copies."""
    package, inside = folder / "tokenix", ROOT
    package.mkdir()
    for part in (*DRIVER.parts, None):
        for entry in inside.iterdir():
            if part is None and entry.suffix == ".py":
                shutil.copy(entry, package)
            elif entry.name != part and not entry.name.startswith((".", "__pycache__")):
                (package / entry.name).symlink_to(entry)
        if part is not None:
            package, inside = package / part, inside / part
            package.mkdir()
    return package


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)
def test_fault_is_found(mutation, tmp_path):
    file = overlay(tmp_path) / mutation.file
    source = file.read_text(encoding="utf-8")
    file.write_text(source.replace(mutation.old, mutation.new, 1), encoding="utf-8")
    path, name = mutation.test.split("::")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *("-o", f"pythonpath={tmp_path}", "--import-mode=importlib", "-k", name),
        str(Path("tests/cuda") / path),
    ]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=500
    )
    # What is read of memory that was given back may also end the process.
    assert done.returncode in (1, -signal.SIGSEGV), done.stdout[-2000:] + done.stderr[-2000:]
