"""Calls that look at many things: asked for some at a time, and whole for whoever calls; blocking,
awaited and over a socket alike. On a machine without a model."""

import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import tokenix
from tokenix import aio
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.types import Pid
from tokenix.syscalls.wire.server import serve

PROMPT = [7 * token % 250 for token in range(320)]
"""Twenty pages."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Syscalls]:
    """Answers for three processes or four pages at a time."""
    limits = {"listed_processes": 3, "listed_pages": 4}
    with rehearse(pages=300, host_pages=100, step_s=0.002, **limits) as k:
        yield k


@pytest.fixture(scope="module")
def pids(machine: Syscalls) -> list[Pid]:
    """Ten processes that have written a token and are stopped, so that nothing moves any more."""
    pids = []
    for _ in range(10):
        pid = machine.spawn(PROMPT, max_tokens=1000, reader="batch")
        machine.read(pid, 1)
        machine.kill(pid, tokenix.SIGSTOP)
        pids.append(pid)
    end_s = time.monotonic() + 60
    while any(machine.vmstat()[f"processes.{state}"] for state in ("running", "swapping-out")):
        assert time.monotonic() < end_s, "they have not come to rest"
        time.sleep(0.01)
    return pids


def test_whoever_wants_all_gets_all(machine: Syscalls, pids: list[Pid]) -> None:
    assert [each.pid for each in machine.ps()] == pids
    assert [each.pid for each in machine.ps(pids[::-2])] == sorted(pids[::-2])
    assert machine.ps([999_999]) == ()
    first = machine.ps_after()
    assert [each.pid for each in first.processes] == pids[:3] and first.after == pids[2]
    rest = machine.ps_after(pids[-2])
    assert [each.pid for each in rest.processes] == pids[-1:] and rest.after is None
    for pid in pids:
        shown, stat = machine.maps(pid), machine.stat(pid)
        assert len(shown.codes) == shown.total == stat.pages >= 20
    for tier, total in (("frames", 300), ("host", 100), ("disk", 0)):
        assert len(machine.framemap(tier).codes) == machine.framemap(tier).total == total
    (root, *_) = machine.prefixes()
    assert (root.depth, root.hits) == (0, 9), "nine of ten have found the first one's prompt"
    assert len(machine.tail(pids[0], 5)) >= 1
    assert machine.plan().policy == "progress" and not machine.plan().decodes


def test_awaited_and_over_a_socket_it_is_the_same(
    machine: Syscalls, pids: list[Pid], tmp_path: Path
) -> None:
    async def story(path: str) -> None:
        inside = aio.Syscalls(machine.port)
        async with await aio.connect(path) as outside:
            for k in (inside, outside):
                assert [each.pid for each in await k.ps()] == pids
                assert (await k.ps_after(pids[5])).after == pids[8]
                assert await k.maps(pids[0]) == machine.maps(pids[0])
                assert await k.framemap() == machine.framemap()
                names = [node.name for node in await k.prefixes()]
                assert names == [node.name for node in machine.prefixes()]
                assert (await k.plan()).decisions == machine.plan().decisions
                assert await k.tail(pids[1]) == machine.tail(pids[1])

    with serve(machine.port, tmp_path / "k.sock") as server:  # type: ignore[arg-type]
        anyio.run(story, server.path)
        with tokenix.connect(server.path) as k:
            assert [each.pid for each in k.ps()] == pids
            assert k.maps(pids[0]) == machine.maps(pids[0])
            assert k.framemap("host") == machine.framemap("host")


def test_a_tenant_sees_its_own(machine: Syscalls, pids: list[Pid]) -> None:
    stranger = machine.as_tenant("nobody")
    assert stranger.ps() == () and stranger.prefixes() == ()
    assert stranger.plan().decisions == ()
    for call in (stranger.maps, stranger.tail, stranger.stat):
        with pytest.raises(ProcessLookupError):
            call(pids[0])
    codes = set(stranger.framemap().codes)
    assert codes <= {0, 3, 16}, "free, moving for nobody, or another's"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda k: k.ps(["x"]), "pids"), (lambda k: k.ps([1] * 5000), "4096 pids at most"),
        (lambda k: k.framemap("moon"), "no tier 'moon'; there are frames, host, disk"),
        (lambda k: k.prefixes(0), "limit must be at least 1"),
        (lambda k: k.tail(1, 0), "limit must be at least 1"),
        (lambda k: k.maps(999_999), "no process 999999"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said(machine: Syscalls, pids: list[Pid], call, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OSError, match=words):
        call(machine)
