"""The processes of ranks as the kernel's sees them: whatever they do, whoever waits is answered."""

import errno
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("numba")

from tokenix.drivers.cuda.ranks import team as teams
from tokenix.drivers.cuda.ranks.team import RanksLost, Team
from tokenix.drivers.ops import CopyFrame, Forward, Poison, Row
from tokenix.tests.cuda_ranks.puppet import PuppetSpec

PATIENCE_S = 100.0
PASS = Forward(0, (Row(1, 0, (1, 2, 3), None),))


def team(*manners, patience_s=PATIENCE_S):
    specs = [PuppetSpec(index, manner) for index, manner in enumerate(manners, 1)]
    return Team(specs, [], patience_s, program="tokenix.tests.cuda_ranks.puppet")


def await_ends(some):
    """Whoever waits is told before all have ended."""
    deadline_s = time.monotonic() + PATIENCE_S
    left = set(some.pids)
    while left:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.005)
        left = {pid for pid in left if Path(f"/proc/{pid}").exists()}


def test_all_are_asked_and_all_answer():
    with closing(team("ready", "ready")) as some:
        some.meet()
        some.tell(Poison((1,)))
        asked = [some.ask(PASS), some.ask(CopyFrame(0, 1, 2)), some.ask(PASS)]
        for each in asked:
            each.wait()
    await_ends(some)
    with pytest.raises(RanksLost, match="the device is closed"):
        some.ask(PASS)
    some.close()


def test_who_cannot_start_says_why():
    with closing(team("ready", "broken")) as some:
        with pytest.raises(RanksLost, match=r"GPU 2 \(pid \d+\) cannot start: no room") as lost:
            some.meet()
        assert lost.value.errno == errno.ENOMEM
        await_ends(some)


def test_who_ends_takes_all_with_it():
    aborted = []
    with closing(team("ready", "ends")) as some:
        some.guard(lambda: aborted.append(True))
        some.meet()
        with pytest.raises(RanksLost, match=r"GPU 2 \(pid \d+\) has ended \(exit 3\).*restart it"):
            some.ask(PASS).wait()
        with pytest.raises(RanksLost, match="exit 3"):
            some.ask(CopyFrame(0, 1, 2))
        await_ends(some)
        assert aborted == [True]


def test_a_pass_that_fails_is_the_end_and_a_copy_is_not():
    with closing(team("ready", "wrong")) as some:
        some.meet()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="on GPU 2: it cannot"):
                some.ask(CopyFrame(0, 1, 2)).wait()
        with pytest.raises(RanksLost, match=r"a pass has failed on GPU 2 \(it cannot\)"):
            some.ask(PASS).wait()


def test_a_pass_that_fails_here_is_the_end():
    """Unless another rank has failed before."""
    with closing(team("ready")) as some:
        some.meet()
        lost = some.lose(ValueError("no room"))
        assert "a pass has failed on GPU 0 (ValueError: no room)" in str(lost)
        assert some.lose(ValueError("again")) is lost
    with closing(team("ends")) as some:
        some.meet()
        some.ask(PASS)
        assert "exit 3" in str(some.lose(RuntimeError("a peer is gone")))


def test_silence_is_the_end(monkeypatch):
    monkeypatch.setattr(teams, "START_S", 0.0)
    with closing(team("idle")) as some:
        with pytest.raises(RanksLost, match="has not answered for 0 s") as lost:
            some.meet()
        assert lost.value.errno == errno.ETIMEDOUT


def test_who_does_not_read_holds_up_nobody():
    """Its socket is full, so that even asking waits until it is lost."""
    with closing(team("deaf", patience_s=1.0)) as some:
        some.meet()
        with pytest.raises(RanksLost, match="has not answered for 1 s"):
            while True:
                some.ask(Forward(0, (Row(1, 0, (1,) * 5000, None),)))
