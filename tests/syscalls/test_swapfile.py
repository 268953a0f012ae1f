"""The real model in three tiers: pages go through a real swap file, and outputs are the same."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenix
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import SpawnOptions
from tokenix.tests.cpu.test_swapfile import mounted
from tokenix.tests.syscalls.conftest import PATIENT
from tokenix.tests.tidy.tree import ROOT

GREEDY: SpawnOptions = {"max_tokens": 24, "ignore_eos": True}
SEEDED: SpawnOptions = {**GREEDY, "temperature": 0.9, "top_p": 0.95, "seed": 7, "logprobs": 2}
PROMPTS = (
    "Name three rivers of Europe.", "Why does bread rise?", "Write a line about the sea.",
    "What is a page fault?", "Who wrote Hamlet?", "How far is the moon?",
)  # fmt: skip
CASES = [(prompt, (GREEDY, SEEDED)[n // 2 % 2]) for n, prompt in enumerate(PROMPTS)]
PAGES, SLOTS, BLOCKS = 14, 4, 64
SINKING = Params(sink_held_s=0.0, sink_low_share=0.4, sink_high_share=0.5, poison=True)
PATIENCE_S = 60.0
SINKS_S = 3.0
TRIES = 8
Drawn = list[tuple[int, float]]


@pytest.fixture(scope="module")
def small() -> Iterator[Syscalls]:
    """Six streams need more than all its frames and slots together."""
    with tokenix.boot(
        "smollm2", device_pages=PAGES, host_pages=SLOTS, params=SINKING, tunables=PATIENT
    ) as machine:
        machine.sysctl("swap.restore", "swap-in")  # computing is quick, with so little to compute
        yield machine


def size_of(k: Syscalls) -> int:
    return BLOCKS * k.machine.kernel.info.frame_bytes


def drawn(k: Syscalls, pid: Pid) -> Drawn:
    """All that is still to be read, and the end of the process."""
    found: Drawn = []
    while True:
        result = k.read(pid, timeout_s=PATIENCE_S)
        found += [(output.token, output.logprob) for output in result.outputs]
        if result.eof:
            assert result.reason is not None and result.reason.value == "length", result.error
            k.wait(pid)
            return found


def wait_until(k: Syscalls, name: str, least: float) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while k.vmstat()[name] < least:
        assert time.monotonic() < until_s, f"{name} is {k.vmstat()[name]}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def alone(small: Syscalls) -> list[Drawn]:
    """The reference: one after the other, never paused, without a swap file."""
    return [drawn(small, small.spawn(prompt, **options)) for prompt, options in CASES]


def sunk(k: Syscalls) -> tuple[list[Pid], list[Drawn]]:
    """All are under way; half of them are stopped, one after the other, until pages of them are in
    the file: the slots of the first are taken by the last. What they have said so far."""
    pids = [k.spawn(prompt, **options) for prompt, options in CASES]
    said: list[Drawn] = []
    for number, pid in enumerate(pids):
        first = k.read(pid, max_tokens=2, timeout_s=PATIENCE_S).outputs
        said.append([(output.token, output.logprob) for output in first])
        if number % 2:
            stored, until_s = k.vmstat()["disk.written"], time.monotonic() + SINKS_S
            k.kill(pid, tokenix.SIGSTOP)
            while k.vmstat()["disk.written"] < stored + 2 and time.monotonic() < until_s:
                time.sleep(0.01)  # some of it may have been there before
    return pids, said


def go_on(k: Syscalls, pids: list[Pid], said: list[Drawn]) -> list[Drawn]:
    for pid in pids[1::2]:
        k.kill(pid, tokenix.SIGCONT)
    return [before + drawn(k, pid) for before, pid in zip(said, pids, strict=True)]


def test_outputs_are_the_same_in_three_tiers(
    small: Syscalls, alone: list[Drawn], tmp_path: Path
) -> None:
    """D5: greedy and seeded, half of them stopped until they are in the file."""
    assert small.swapon(str(tmp_path), size_of(small)) == size_of(small)
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    pids, said = sunk(small)
    assert go_on(small, pids, said) == alone
    stats = small.vmstat()
    assert stats["disk.written"] > 0
    for tier in ("host", "disk"):
        written = stats[f"{tier}.returned"] + stats[f"{tier}.dropped"] + stats[f"{tier}.valid"]
        assert stats[f"{tier}.written"] == written
    assert small.swapoff() == 0


@pytest.mark.parametrize("case", [0, 2])
def test_what_comes_back_from_the_file_goes_on_as_if_nothing_had_been(
    small: Syscalls, alone: list[Drawn], tmp_path: Path, case: int
) -> None:
    """D5: its slots go to another that is stopped, its frames to one that runs. When which copy is
    done is chance, so it is tried until pages of it were in the file only."""
    small.swapon(str(tmp_path), size_of(small))
    for _ in range(TRIES):
        fetched = small.vmstat()["swap.pages_fetch"]
        assert _sink_and_return(small, case) == alone[case]
        if small.vmstat()["swap.pages_fetch"] > fetched:
            break
    else:
        pytest.fail("nothing was ever fetched")
    small.swapoff()


def _sink_and_return(k: Syscalls, case: int) -> Drawn:
    prompt, options = CASES[case]
    pid = k.spawn(prompt, **options)
    first = k.read(pid, max_tokens=2, timeout_s=PATIENCE_S).outputs
    _stop(k, pid)
    wait_until(k, "disk.valid", k.stat(pid).pages)
    other = k.spawn(PROMPTS[4], **GREEDY)
    k.read(other, max_tokens=1, timeout_s=PATIENCE_S)
    _stop(k, other)
    big = k.spawn([500 + i for i in range(16 * (PAGES - 1) - 4)], max_tokens=4, ignore_eos=True)
    drawn(k, big)
    k.kill(pid, tokenix.SIGCONT)
    said = [(output.token, output.logprob) for output in first] + drawn(k, pid)
    k.kill(other, tokenix.SIGKILL)
    k.wait(other)
    return said


def _stop(k: Syscalls, pid: Pid) -> None:
    k.kill(pid, tokenix.SIGSTOP)
    until_s = time.monotonic() + PATIENCE_S
    while k.stat(pid).state != "swapped":
        assert time.monotonic() < until_s, k.stat(pid)
        time.sleep(0.005)


def test_swapoff_and_swapon_under_load(small: Syscalls, alone: list[Drawn], tmp_path: Path) -> None:
    """D14, D15: the file goes while pages are in it that have no room above, and another comes."""
    small.swapon(str(tmp_path), size_of(small))
    pids, said = sunk(small)
    assert small.swapoff() == 0
    assert small.vmstat()["disk.total"] == 0
    small.swapon(str(tmp_path), size_of(small))
    assert go_on(small, pids, said) == alone
    small.swapoff()


def test_what_is_refused(small: Syscalls, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="there is no such directory") as refused:
        small.swapon(str(tmp_path / "missing"), size_of(small))
    assert refused.value.errno == errno.ENOENT
    for odd in ("x\0y", str(tmp_path / "x\0y")):
        with pytest.raises(OSError, match="name another directory") as refused:
            small.swapon(odd, size_of(small))
        assert refused.value.errno == errno.EINVAL
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match="that is no directory; name one"):
        small.swapon(str(tmp_path / "file"), size_of(small))
    with pytest.raises(OSError, match="whole number") as refused:
        small.swapon(str(tmp_path), 1e9)  # type: ignore[arg-type]
    assert refused.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="ask for at most"):
        small.swapon(str(tmp_path), 1 << 60)
    with pytest.raises(PermissionError):
        small.as_tenant("red").swapon(str(tmp_path), size_of(small))
    with pytest.raises(OSError, match="it is off"):
        small.swapoff()
    assert small.sysctl("swap.file") == "off"


PROGRAM = """
import os, signal, sys
import tokenix
from tokenix.kernel.params import Params
here = sys.argv[1]
k = tokenix.boot("smollm2", device_pages=14, host_pages=8, params=Params(sink_held_s=0.0))
page = k.machine.kernel.info.frame_bytes
try:
    k.swapon(here, 64 * page)
except OSError as why:
    print(why.strerror)
k.swapon(here, 16 * page)
try:
    with open(os.path.join(here, "others"), "wb", buffering=0) as others:
        while True:
            others.write(bytes(1 << 16))
except OSError as full:
    print(full.strerror)

def say(stop):
    pid = k.spawn("Name three rivers of Europe.", max_tokens=16, ignore_eos=True)
    said = [output.token for output in k.read(pid, max_tokens=2).outputs]
    if stop:
        k.kill(pid, tokenix.SIGSTOP)
        while not k.vmstat()["disk.valid"]:
            pass
        k.kill(pid, tokenix.SIGCONT)
    while True:
        result = k.read(pid)
        said += [output.token for output in result.outputs]
        if result.eof:
            return said

print(say(False) == say(True), k.vmstat()["disk.valid"] > 0, k.vmstat()["copies_failed"])
os.unlink(os.path.join(here, "others"))
used = os.statvfs(here)
print((used.f_blocks - used.f_bfree) * used.f_frsize // page, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

AFTER = '"$@"; df --output=used "$0" | tail -1; ls -A "$0"'


def test_d16_a_full_disk_and_a_kill(small: Syscalls, tmp_path: Path) -> None:
    """On a real file system that others fill to the last byte, a file that was opened serves on.
    After a kill -9 nothing of it is left, and its space is back."""
    size = 24 * small.machine.kernel.info.frame_bytes
    private = mounted(tmp_path, f"size={size}")
    done = subprocess.run(
        [*private, "sh", "-c", AFTER, str(tmp_path), sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".lib")},
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert len(told) == 5, done.stderr
    refused, full, served, before, after = told
    assert "ask for at most" in refused
    assert full == os.strerror(errno.ENOSPC)
    assert served == "True True 0"
    assert (int(before), int(after)) == (16, 0)
