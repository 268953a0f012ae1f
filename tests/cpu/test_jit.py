"""Compiled code: where it is kept, and that a copy from the cache computes the same bits."""

import os
import subprocess
import sys

import pytest

from tokenix.drivers.cpu import jit

PROGRAM = """
import hashlib
from tokenix.tests.cpu.conftest import FAMILIES, Model
logits = Model(FAMILIES["llama"]).all_logits(0, list(range(90)), 37)
print(hashlib.sha256(logits.tobytes()).hexdigest())
"""


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert str(tmp_path / "cache" / "tokenix") in jit._cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert jit._cache_folder() is None


def test_the_cache_is_named_by_the_source():
    assert jit._source_digest() in jit._cache_folder()


def test_threads_are_bounded():
    before = jit.get_threads()
    assert jit.set_threads(0) == 1
    assert jit.set_threads(10_000) >= 1
    jit.set_threads(before)


@pytest.mark.slow
def test_code_from_the_cache_computes_the_same_bits(tmp_path):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    results = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert list(tmp_path.rglob("*.nbc"))
    assert results[0] == results[1]
