"""The frame around llama.cpp's logits; the program itself is built where llama.cpp is."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tokenix.bench.compare import logits
from tokenix.bench.compare.llama import TOOLS
from tokenix.bench.compare.peer import Cache, Unavailable

VOCABULARY = 11
MODEL = Path("any.gguf")
PROGRAM = f"""#!{sys.executable}
import sys
import numpy as np
model, tokens, rows, length, threads, out = sys.argv[1:]
given = np.fromfile(tokens, np.int32)
assert len(given) == int(rows) * int(length), "all of the tokens"
with open(out, "ab") as file:
    np.repeat(given.astype(np.float32), {VOCABULARY}).tofile(file)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """llama.cpp is built, as far as anybody can see."""
    (tmp_path / "build" / "bin").mkdir(parents=True)
    for tool in TOOLS:
        (tmp_path / "build" / "bin" / tool).touch()
    program = tmp_path / "logits"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(logits, "_vocabulary", lambda gguf: VOCABULARY)
    return Cache(tmp_path)


def test_rows_are_those_of_the_tokens(cache: Cache, tmp_path: Path) -> None:
    tokens = np.arange(12).reshape(3, 4)
    logits.write_logits(cache, MODEL, tokens, tmp_path / "out.npy", threads=1)
    made = np.load(tmp_path / "out.npy", mmap_mode="r")
    assert made.shape == (3, 4, VOCABULARY) and made.dtype == np.float32
    assert (made[..., 5] == tokens).all()


def test_what_fails_leaves_no_file(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "logits").write_text("#!/bin/sh\necho logits: cannot load the model\nexit 1\n")
    with pytest.raises(Unavailable, match="cannot load the model"):
        logits.write_logits(cache, MODEL, np.zeros((1, 2), int), tmp_path / "out.npy", threads=1)
    assert not (tmp_path / "out.npy").exists()


def test_no_tokens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["logits", "missing.npy", "out.npy"])
    assert logits.main() == 1
    assert "missing.npy" in capsys.readouterr().err
