"""The help of `tokenix sim` names what it must not import."""

import pytest

from tokenix.bench.sections import SECTIONS
from tokenix.cli import sim
from tokenix.cli.main import main
from tokenix.syscalls.simulation import policies


def test_help_names_all_policies_and_all_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(sim.POLICIES.split(", ")) == set(policies())
    assert sim.SECTIONS.split(", ") == list(SECTIONS)
    assert main(["sim", "--help"]) == 0
    assert "oracle-srpt" in capsys.readouterr().out
