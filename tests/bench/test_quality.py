"""`bench quality` in small, on the real model; a peer is a file of logits."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from tokenix.bench import quality
from tokenix.cli.main import main


def test_native_is_near_and_exact_is_nearer(tmp_path: Path) -> None:
    """A peer whose logits are all equal is as bad as can be, and is told so."""
    blind = tmp_path / "blind.npy"
    np.save(blind, np.zeros((1, 512, 49152), np.float16))
    report = quality.measure(windows=1, peers={"blind": blind})
    lines = {line.name: line for line in report.lines}
    assert list(lines) == ["f32", "native", "bf16", "exact", "blind"] and report.positions == 511
    assert lines["f32"].mean_kl == 0 and lines["f32"].top1_agreement == 1
    assert lines["exact"].mean_kl < 1e-4 < lines["bf16"].mean_kl < lines["native"].mean_kl < 1e-2
    assert lines["bf16"].mean_kl < 1e-3 and lines["bf16"].top1_agreement > 0.97
    assert lines["exact"].top1_agreement > 0.99 and lines["native"].top1_agreement > 0.93
    assert abs(lines["native"].perplexity_change) < 0.02
    assert lines["blind"].perplexity == pytest.approx(49152) and lines["blind"].mean_kl > 1
    with pytest.raises(ValueError, match="for each of 2 x 512 tokens"):
        quality.measure(windows=2, peers={"blind": blind})


def test_what_a_peer_has_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.json"
    assert main(["bench", "quality", "--windows", "2", "--tokens", str(path)]) == 0
    windows = json.loads(path.read_text())
    assert [len(window) for window in windows] == [512, 512]
    assert main(["bench", "quality", "--peer", "x", "--tokens", str(path)]) == 2
    assert "NAME=FILE" in capsys.readouterr().err
    assert main(["bench", "quality", "--windows", "100000", "--tokens", str(path)]) == 2
