"""What the program that watches costs is measured on a real terminal and a real socket."""

import pytest

from tokenix.bench import top
from tokenix.tests.daemon.daemons import command, environment


def test_a_small_machine_is_measured(monkeypatch):
    monkeypatch.setattr(top, "SETTLE_S", 0.1)
    (line,) = top.measure(sizes=(8,), rounds=1, slice_s=0.5).lines
    assert line.processes == 8
    assert 0 < line.cpu_share <= line.cpu_share_most < 2
    assert line.pass_alone_ms >= 1e3 * top.STEP_S
    assert line.pass_watched_ms >= 1e3 * top.STEP_S
    assert line.ratio == pytest.approx(line.pass_watched_ms / line.pass_alone_ms)


def test_the_command_has_help(tmp_path):
    done = command("bench", "top", "--help", env=environment(tmp_path))
    assert done.returncode == 0
    assert "--rounds" in done.stdout
