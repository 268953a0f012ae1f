"""A soak that did nothing says so, and fails."""

import pytest

from tokenix.tests.sim.world import KINDS
from tokenix.tests.soak import MUST, did_enough, main


def test_no_time_for_any_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "0", "--only", "worlds"]) == 1
    said = capsys.readouterr().out
    assert "nothing is shown: more --seconds" in said and "no difference" not in said
    assert all((name or "any") in said for name in KINDS)


@pytest.mark.parametrize("missing", MUST)
def test_a_tier_that_nothing_passed(missing: str) -> None:
    said: list[str] = []
    done = dict.fromkeys(MUST, 1)
    assert did_enough("model", done, MUST, said.append) and not said
    assert not did_enough("model", done | {missing: 0}, MUST, said.append)
    assert said == [f"model: there was no time for {missing}; nothing is shown: more --seconds"]
