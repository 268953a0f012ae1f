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
DRIVER = ROOT / "drivers/cuda"
TESTS = ROOT / "tests/cuda"


def resolve(folder, path):
    """Of a file in `folder` or, by dots, beside it: where it is from the root."""
    return Path(os.path.normpath(folder / path)).relative_to(ROOT)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)
def test_there_is_what_is_to_be_changed(mutation):
    source = (ROOT / resolve(DRIVER, mutation.file)).read_text(encoding="utf-8")
    assert mutation.old in source
    path, name = mutation.test.split("::")
    assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8")


def overlay(folder, file):
    """A package `tokenix` in which only the files beside `file` are copies."""
    package, inside = folder / "tokenix", ROOT
    package.mkdir()
    for part in (*file.parent.parts, None):
        for entry in inside.iterdir():
            if part is None and entry.suffix == ".py":
                shutil.copy(entry, package)
            elif entry.name != part and not entry.name.startswith((".", "__pycache__")):
                (package / entry.name).symlink_to(entry)
        if part is not None:
            package, inside = package / part, inside / part
            package.mkdir()
    return folder / "tokenix" / file


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)
def test_fault_is_found(mutation, tmp_path):
    file = overlay(tmp_path, resolve(DRIVER, mutation.file))
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
