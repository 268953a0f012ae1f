"""The real model while its swap file is damaged, shortened, has no room or goes: outputs are those
of the undisturbed run, nothing hangs, and at idle nothing is left."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokenix.drivers.swapfile import DiskIo, SwapFile
from tokenix.kernel import audit
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.cpu.test_swapfile import mounted
from tokenix.tests.syscalls import test_swapfile as plain
from tokenix.tests.syscalls.test_swapfile import Drawn, go_on, size_of, sunk
from tokenix.tests.tidy.tree import ROOT

small, alone = plain.small, plain.alone
LIMIT_S = 250.0
"""What takes longer hangs. A child of its own may have to compile all kernels first, on a machine
that is busy."""
pytestmark = pytest.mark.timeout(LIMIT_S, func_only=True)


@pytest.fixture(autouse=True)
def _do_not_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """For pages that are stored: often they are already, or cannot be."""
    monkeypatch.setattr(plain, "SINKS_S", 0.5)


def file_of(k: Syscalls) -> SwapFile:
    """The swap file behind the machine."""
    file: SwapFile = k.machine.pump._device._disk._file  # type: ignore[attr-defined]
    return file


JUNK = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(fd).st_size
for at in range(0, size, 1 << 16):
    os.pwrite(fd, b"junk" * (1 << 14), at)
os.ftruncate(fd, size)
os.fsync(fd)
"""
EMPTY = "import os, sys; os.ftruncate(os.open(sys.argv[1], os.O_RDWR), 0)"


def by_another(code: str, k: Syscalls) -> None:
    """Another process does it to the file, which has no name."""
    path = f"/proc/{os.getpid()}/fd/{file_of(k)._file.fileno()}"
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=LIMIT_S)


DAMAGE: dict[str, Callable[[Syscalls], None]] = {
    "overwritten": lambda k: by_another(JUNK, k),
    "emptied": lambda k: by_another(EMPTY, k),
}


def settle(k: Syscalls) -> dict[str, float]:
    """Nothing runs any more: all tiers are empty or cached, and the books are right."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        stats = k.vmstat()
        busy = sum(stats[name] for name in ("frames.held", "frames.in_transfer", "host.writing"))
        busy += stats["disk.writing"] + stats["host.doomed"] + stats["disk.doomed"]
        if not busy and stats["frames.free"] + stats["frames.cached"] == stats["frames.total"]:
            break
        assert time.monotonic() < until_s, stats
        time.sleep(0.01)
    assert not k.ps()
    audit.check(k.machine.kernel)
    return stats


@pytest.mark.parametrize("damage", DAMAGE)
def test_d7_d14_what_another_does_to_the_file(
    small: Syscalls, alone: list[Drawn], tmp_path: Path, damage: str
) -> None:
    """While pages are in it and all are served. When which copy is done is chance, so it is tried
    until a page that was damaged was read."""
    small.swapon(str(tmp_path), size_of(small))
    failed = small.vmstat()["copies_failed"]
    for _ in range(plain.TRIES):
        pids, said = sunk(small)
        DAMAGE[damage](small)
        assert go_on(small, pids, said) == alone
        settle(small)
        if small.vmstat()["copies_failed"] > failed:
            break
    else:
        pytest.fail("no damaged page was ever read")
    assert small.swapoff() == 0
    settle(small)


def test_d14_the_directory_vanishes(small: Syscalls, alone: list[Drawn], tmp_path: Path) -> None:
    """Nothing is lost: the file has no name that anybody could remove."""
    (tmp_path / "gone").mkdir()
    small.swapon(str(tmp_path / "gone"), size_of(small))
    pids, said = sunk(small)
    failed = small.vmstat()["copies_failed"]
    shutil.rmtree(tmp_path / "gone")
    assert go_on(small, pids, said) == alone
    assert small.vmstat()["copies_failed"] == failed
    small.swapoff()
    settle(small)


STALL_S = 5.0


class Troubled(DiskIo):
    """Reads end in an error, short, with another bit, or, the first of them, after 5 s."""

    def __init__(self, trouble: str) -> None:
        self.trouble = trouble
        self.met = False

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        first, self.met = not self.met, True
        if self.trouble == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.trouble == "stall" and first:
            threading.Event().wait(STALL_S)
        read = super().preadv(fd, buffers, offset)
        if self.trouble == "flip":
            buffers[0][100] ^= 4
        return 512 if self.trouble == "short" else read


@pytest.mark.parametrize("trouble", ["error", "short", "flip", "stall"])
def test_d7_d8_what_the_disk_does(
    small: Syscalls, alone: list[Drawn], tmp_path: Path, trouble: str
) -> None:
    """Tried until it has met a read."""
    small.swapon(str(tmp_path), size_of(small))
    io = file_of(small)._io = Troubled(trouble)
    for _ in range(plain.TRIES):
        assert go_on(small, *sunk(small)) == alone
        settle(small)
        if io.met:
            break
    else:
        pytest.fail("nothing was ever read")
    assert small.swapoff() == 0
    settle(small)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """What this process writes behind `size` bytes of any file is refused (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_d16_writes_are_refused_while_all_are_served(
    small: Syscalls, alone: list[Drawn], tmp_path: Path
) -> None:
    """From the first block on, for real: what cannot be stored is not lost."""
    small.swapon(str(tmp_path), size_of(small))
    failed = small.vmstat()["copies_failed"]
    with no_file_beyond(4096):
        pids, said = sunk(small)
        assert go_on(small, pids, said) == alone
        settle(small)
    assert small.vmstat()["copies_failed"] > failed, "nothing was ever stored"
    assert small.swapoff() == 0
    settle(small)


@pytest.mark.parametrize("damage", [None, *DAMAGE])
def test_swapoff_while_all_are_served(
    small: Syscalls, alone: list[Drawn], tmp_path: Path, damage: str | None
) -> None:
    """Asked for while streams run and others are in the file, which is whole or is not."""
    small.swapon(str(tmp_path), size_of(small))
    pids, said = sunk(small)
    if damage is not None:
        DAMAGE[damage](small)
    left: list[int] = []
    leaving = threading.Thread(target=lambda: left.append(small.swapoff()))
    leaving.start()
    assert go_on(small, pids, said) == alone
    leaving.join(LIMIT_S)
    assert left == [0]
    assert settle(small)["disk.total"] == 0


PROGRAM = """
import os, sys
import tokenix
from tokenix.kernel import audit
from tokenix.tests.syscalls import test_swapfile as plain
here = sys.argv[1]
k = tokenix.boot("smollm2", device_pages=plain.PAGES, host_pages=plain.SLOTS, params=plain.SINKING,
                 tunables=plain.PATIENT)
k.sysctl("swap.restore", "swap-in")
alone = [plain.drawn(k, k.spawn(prompt, **options)) for prompt, options in plain.CASES]
k.swapon(here, plain.size_of(k))
file = k.machine.pump._device._disk._file
os.truncate(f"/proc/self/fd/{file._file.fileno()}", 4 * file.block_bytes)
try:
    with open(os.path.join(here, "others"), "wb", buffering=0) as others:
        while True:
            others.write(bytes(1 << 16))
except OSError as full:
    print(full.strerror)
for _ in range(plain.TRIES):
    assert plain.go_on(k, *plain.sunk(k)) == alone
    if k.vmstat()["copies_failed"]:
        break
print(k.vmstat()["copies_failed"] > 0)
reasons = [dict(e.detail)["reason"] for e in k.trace(limit=1 << 20) if e.kind == "copy-failed"]
print(any("No space left" in reason for reason in reasons))
print(k.swapoff(), len(k.ps()))
audit.check(k.machine.kernel)
k.close()
"""


def test_d16_a_file_system_that_is_full(tmp_path: Path, small: Syscalls) -> None:
    """A real one: the file has lost most of its space to others, so that stores find none."""
    private = mounted(tmp_path, f"size={size_of(small) + (4 << 20)}")
    done = subprocess.run(
        [*private, sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".lib")},
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert told == [os.strerror(errno.ENOSPC), "True", "True", "0 0"], done.stderr
