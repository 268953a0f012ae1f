"""Compiled code: where it is kept, and that a copy from the cache computes the same bits."""

import errno
import os
import subprocess
import sys
from pickle import UnpicklingError

import numba
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


class BadCache:
    """A damaged cache on a full disk."""

    def __init__(self):
        self.flushed = 0

    def load_overload(self, signature, target):
        raise UnpicklingError("pickle data was truncated")

    def save_overload(self, signature, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self):
        self.flushed += 1
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_and_a_damaged_cache_are_done_without():
    cache = BadCache()
    compiled = numba.njit(lambda x: x + 1)
    compiled._cache = jit.Forgiving(cache)
    assert compiled(1) == 2 and cache.flushed == 1
    assert isinstance(jit.kernel(test_the_cache_is_named_by_the_source)._cache, jit.Forgiving)


def test_compiling_is_told():
    told = []
    with jit.tell_compiling(lambda stage, part: told.append((stage, part))):
        compiled = jit.kernel(lambda x: x - 1)
        compiled._cache = jit.Forgiving(BadCache(), "minus")
        assert (compiled(1), compiled(2)) == (0, 1)
        assert told == [("compiling kernels, once for this machine", told[0][1])]
        assert 0 < told[0][1] <= 1
        compiled(1.5)  # for other types, again
        assert len(told) == 2
    compiled(1j)
    assert len(told) == 2


def test_the_cache_is_named_by_the_source():
    assert jit._source_digest() in jit._cache_folder()


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


@pytest.mark.parametrize(
    ("processor", "says"), [("generic", "unset NUMBA_CPU_NAME"), ("haswell", "")]
)
def test_a_processor_without_16_bit_floats_is_refused(processor, says):
    """Not by the end of the process."""
    env = {**os.environ, "NUMBA_CPU_NAME": processor, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = "from tokenix.drivers.cpu.jit import check_processor; check_processor()"
    words = [sys.executable, "-c", program]
    run = subprocess.run(words, env=env, check=False, capture_output=True, text=True)
    assert (run.returncode != 0) == bool(says), run.stderr
    assert says in run.stderr
