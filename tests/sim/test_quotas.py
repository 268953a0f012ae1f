"""Quotas of tenants: what one may have, and what it keeps, whatever the others do."""

import errno
import math
from typing import Any

import pytest

from tokenix.kernel.calls import (
    KernelError,
    Kill,
    Principal,
    ShmOpen,
    ShmUnlink,
    Signal,
    Spawn,
    Swapoff,
    Swapon,
    Sysctl,
)
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos
from tokenix.tests.sim.machine import ROOT, SimMachine

RED, BLUE = Principal("red"), Principal("blue")


def machine(frames: int = 16, host: int = 32, **params: object) -> SimMachine:
    return SimMachine(frames, host, "progress", Params(poison=True, **params))  # type: ignore[arg-type]


def prompt(tag: int, tokens: int) -> tuple[int, ...]:
    return tuple((tag * 37 + i * 11) % 251 for i in range(tokens))


def spawn(
    box: SimMachine, who: Principal, tokens: tuple[int, ...], max_tokens: int, **options: Any
) -> Pid:
    request = Spawn(tokens, max_tokens=max_tokens, **options)
    pid = Pid(box.call(request, who))
    box.asked[pid] = request
    box.follow(pid)
    return pid


def quota(box: SimMachine, name: str, pages: int) -> None:
    box.call(Sysctl(f"quota.{name}", pages), ROOT)


def most_frames(box: SimMachine, tenant: str, until_s: float) -> int:
    """The most pages that running processes of the tenant had at once."""
    most = 0
    while box.now_s < until_s and box.advance(until_s):
        running = [p for p in box.kernel.processes.values() if p.tenant == tenant]
        most = max(most, sum(p.space.mapped for p in running if p.space.active))
    return most


def test_a_tenant_never_has_more_frames_than_its_ceiling() -> None:
    box = machine()
    quota(box, "red.frames.ceiling", 8)
    mine = [spawn(box, RED, prompt(i, 8), 8, qos=Qos.BATCH) for i in range(4)]
    other = spawn(box, BLUE, prompt(9, 8), 8)
    assert most_frames(box, "red", 60.0) <= 8
    box.run()
    for pid in (*mine, other):
        box.check_output(pid)


def test_more_than_the_ceiling_is_refused_at_once() -> None:
    box = machine()
    quota(box, "red.frames.ceiling", 4)
    with pytest.raises(KernelError) as refused:
        spawn(box, RED, prompt(1, 12), 8)
    assert refused.value.errno == errno.EDQUOT and "may have 4" in refused.value.message
    box.check_output(_ran(box, spawn(box, RED, prompt(1, 8), 8)))


def test_named_segments_count_towards_the_ceiling() -> None:
    box = machine()
    quota(box, "red.frames.ceiling", 5)
    box.start(ShmOpen("manual", prompt(1, 12)), RED)
    box.run()
    with pytest.raises(KernelError) as refused:
        box.call(ShmOpen("more", prompt(2, 12)), RED)
    assert refused.value.errno == errno.EDQUOT and "3 pinned" in refused.value.message
    with pytest.raises(KernelError) as refused:
        spawn(box, RED, prompt(3, 8), 4)
    assert refused.value.errno == errno.EDQUOT and "may have 2" in refused.value.message
    box.call(ShmUnlink("manual"), RED)
    box.check_output(_ran(box, spawn(box, RED, prompt(3, 8), 4)))


def test_a_lowered_ceiling_ends_nobody() -> None:
    box = machine()
    pids = [spawn(box, RED, prompt(i, 12), 12, qos=Qos.BATCH) for i in range(2)]
    box.run(until_s=0.05)
    quota(box, "red.frames.ceiling", 2)
    box.run()
    for pid in pids:
        box.check_output(pid)


def test_those_who_wait_for_input_make_way_below_the_ceiling() -> None:
    box = machine()
    quota(box, "red.frames.ceiling", 6)
    spawn(box, RED, prompt(1, 8), 4, keep_open=True)
    box.run(until_s=5.0)
    second = spawn(box, RED, prompt(2, 12), 8)
    box.run(until_s=20.0)
    box.check_output(second)


@pytest.mark.parametrize("floor", [0, 3])
def test_b15_a_noisy_tenant_does_not_evict_a_quiet_ones_prefix(floor: int) -> None:
    """B15: below its floor the quiet tenant's pages go last."""
    box = machine(frames=10, host=0, prefix_policy="lru")
    quota(box, "blue.frames.floor", floor)
    _ran(box, spawn(box, BLUE, prompt(1, 12), 2))
    for i in range(6):
        _ran(box, spawn(box, RED, prompt(10 + i, 20), 2))
    again = _ran(box, spawn(box, BLUE, prompt(1, 12), 2))
    found = box.process(again).usage.cached_tokens
    assert (found > 0) == (floor > 0)


def test_ceilings_of_the_lower_tiers_hold_and_cost_only_computing() -> None:
    box = machine(frames=12, host=12, sink_held_s=0.0, sink_low_share=0.5, sink_high_share=0.5)
    box.start(Swapon("/", 40 * box.kernel.info.frame_bytes))
    quota(box, "red.host.ceiling", 5)
    box.run(until_s=0.1)
    quota(box, "red.disk.ceiling", 3)
    pids = []
    for i in range(3):
        pids.append(spawn(box, RED, prompt(i, 14), 10, qos=Qos.BATCH))
        box.run(until_s=box.now_s + 0.1)
        box.call(Kill(pids[-1], Signal.STOP))
        box.run(until_s=box.now_s + 1.0)
        quotas = box.kernel.memory.quotas
        assert quotas.used("red", "host") <= 5 and quotas.used("red", "disk") <= 3
    for pid in pids:
        box.call(Kill(pid, Signal.CONT))
    box.run()
    for pid in pids:
        box.check_output(pid)


def test_a_tenant_sees_its_own_quota_and_sets_none() -> None:
    box = machine()
    quota(box, "red.frames.floor", 2)
    quota(box, "redder.frames.floor", 1)
    mine = box.call(Sysctl(), RED)
    assert [n for n in mine if n.startswith("quota.")] == [
        "quota.red.frames.floor", "quota.red.frames.ceiling"
    ]  # fmt: skip
    assert box.call(Sysctl("quota.red.frames.floor"), RED) == 2
    for name, value, who, number in (
        ("quota.red.frames.floor", 9, RED, errno.EPERM),
        ("quota.redder.frames.floor", None, RED, errno.ENOENT),
        ("quota.red.frames.floor", 99, ROOT, errno.EINVAL),
        ("quota.red.frames.floor", 1.5, ROOT, errno.EINVAL),
        ("quota.red.frames.floor", "x", ROOT, errno.EINVAL),
        ("quota.red.frames.floor", True, ROOT, errno.EINVAL),
        ("quota.red.frames.ceiling", math.nan, ROOT, errno.EINVAL),
        ("quota.red.frames.ceiling", math.inf, ROOT, errno.EINVAL),
        ("quota.red.frames.ceiling", 1e300, ROOT, errno.EINVAL),
        ("quota.red.disk.floor", 10**30, ROOT, errno.EINVAL),
        ("quota.red.tape.floor", 1, ROOT, errno.ENOENT),
        ("quota.red", 1, ROOT, errno.ENOENT),
    ):
        with pytest.raises(KernelError) as refused:
            box.call(Sysctl(name, value), who)
        assert refused.value.errno == number, name
        assert "invalid literal" not in refused.value.message and "NaN" not in refused.value.message


def test_floors_of_a_tier_that_is_off_are_kept_for_when_it_comes() -> None:
    """And a file that is smaller than they are is refused."""
    box = machine()
    page = box.kernel.info.frame_bytes
    quota(box, "red.disk.floor", 9)
    quota(box, "blue.disk.floor", 3)

    def swapon(pages: int) -> KernelError | None:
        call_id = box.start(Swapon("/", pages * page), ROOT)
        box.run(until_s=box.now_s + 1.0)
        return box.replies[call_id].error

    refused = swapon(11)
    assert refused is not None and refused.errno == errno.EINVAL
    assert f"11 pages, fewer than the 12 of all floors: ask for {12 * page} b" in refused.message
    assert swapon(12) is None
    with pytest.raises(KernelError, match="the floors of disk would be 13 pages, it has 12"):
        quota(box, "blue.disk.floor", 4)
    call_id = box.start(Swapoff(), ROOT)
    box.run(until_s=box.now_s + 1.0)
    assert box.replies[call_id].error is None
    quota(box, "blue.disk.floor", 4)
    assert swapon(12) is not None
    quota(box, "blue.disk.floor", 0)
    assert swapon(10) is None


def _ran(box: SimMachine, pid: Pid) -> Pid:
    box.run()
    return pid
