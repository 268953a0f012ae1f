"""`tokenix bench step`: crowds stay where they are, and the command prints what it measured."""

import json
from pathlib import Path

import pytest

from tokenix.bench import step
from tokenix.cli.main import main
from tokenix.syscalls.crowd import Crowd


def test_a_crowd_stands_as_it_was_ordered() -> None:
    crowd = Crowd(running=8, waiting=20, paused=12)
    assert crowd.count() == (8, 20, 12)
    assert all(crowd.step() > 0 for _ in range(20))
    assert crowd.count() == (8, 20, 12)
    assert crowd.step(arrivals=3) > 0
    assert crowd.count() == (8, 23, 12)


def test_the_command_prints_two_figures_and_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = step.measure((4, 16), (4, 4, 4), 3)
    monkeypatch.setattr(step, "measure", lambda **_: small)
    image = tmp_path / "step.png"
    assert main(["bench", "step", "--json", "--plot", str(image)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["steady_ms", "arrivals_ms", "table"]
    assert told["steady_ms"] > 0 and told["arrivals_ms"] > 0
    assert [(line["processes"], line["running"]) for line in told["table"]] == [
        (4, 4), (16, 16), (4, 4), (16, 16)
    ]  # fmt: skip
    assert image.stat().st_size > 1000
    assert main(["bench", "step"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["12", "4", "4", "4"]
