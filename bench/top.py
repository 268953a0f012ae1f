"""What `tokenix top` costs: itself, and the kernel that it looks at.

    this process: a kernel in rehearsal, its server        another process: the program, on a pty

Its cost, and that of a look to the kernel's thread, are time on the processor, so that other work
on the machine counts for little. Forward passes with and without somebody who looks are slices of
one run in turns: the program is stopped (SIGSTOP) for every other one.
"""

import contextlib
import fcntl
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.server import serve

SIZES = (200, 5000)
"""Processes."""
RUNNING = 256
"""Most of them that run; the others wait."""
LINES, COLUMNS = 50, 160
LOOKS_PER_S = 2
STEP_S = 0.02
SETTLE_S = 5.0
"""From the first that is drawn: ten looks, in which imports and first paintings end."""
START_S = 60.0
PATIENT = {f"target_{qos}_s": 1e6 for qos in ("interactive", "stream", "batch", "idle")}
TUNABLES = {**PATIENT, "max_running": float(RUNNING), "queue_limit": 1e6, "step_tokens": 16_384.0}
PROMPT = list(range(32))
OUTPUT_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class Line:
    """A machine with so many processes."""

    processes: int
    cpu_share: float
    """Of one core, for two looks a second, once the program has settled; starting is not in it."""
    cpu_share_most: float
    """In the dearest of the slices of that time."""
    look_ms: float
    """Of the kernel's thread for each look, on the processor."""
    pass_alone_ms: float
    """From one forward pass to the next; medians of the slices."""
    pass_watched_ms: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Report:
    lines: tuple[Line, ...]

    def as_json(self) -> dict[str, object]:
        return {"lines": [asdict(line) for line in self.lines]}


def measure(
    sizes: tuple[int, ...] = SIZES,
    rounds: int = 8,
    slice_s: float = 2.0,
    watch: Callable[[str], None] | None = None,
) -> Report:
    """Each size takes about 2 * `rounds` * `slice_s` seconds. OSError as `serve`."""
    lines = []
    for size in sizes:
        if watch is not None:
            watch(f"{size} processes")
        lines.append(measure_size(size, rounds, slice_s))
    return Report(tuple(lines))


def measure_size(size: int, rounds: int, slice_s: float) -> Line:
    alone, watched = [], []
    with _served(size) as (k, path), _top(path) as program:
        settled = [_slice(k, slice_s, program.pid) for _ in range(rounds)]
        for _ in range(rounds):
            program.send_signal(signal.SIGSTOP)
            alone.append(_slice(k, slice_s, program.pid))
            program.send_signal(signal.SIGCONT)
            watched.append(_slice(k, slice_s, program.pid))
        assert program.poll() is None, "the program has ended"
    free, busy = (statistics.median(each.pass_s for each in kind) for kind in (alone, watched))
    kernel = statistics.median(each.kernel_share for each in alone)
    look_s = (statistics.fmean(each.kernel_share for each in settled) - kernel) / LOOKS_PER_S
    shares = [each.program_share for each in settled]
    share, most = statistics.fmean(shares), max(shares)
    return Line(size, share, most, 1e3 * look_s, 1e3 * free, 1e3 * busy, busy / free)


@contextmanager
def _served(size: int) -> Iterator[tuple[Syscalls, Path]]:
    """A machine with so many processes, which do not end."""
    pages = RUNNING * (OUTPUT_TOKENS // 16 + 8)
    with (
        tempfile.TemporaryDirectory() as folder,
        rehearse(pages, 1024, STEP_S, tunables=TUNABLES, pipe_tokens=1 << 40) as k,
    ):
        path = Path(folder) / "k.sock"
        for _ in range(size):
            k.spawn(PROMPT, max_tokens=OUTPUT_TOKENS, tokens_per_s=1000.0)
        with serve(k.port, path):
            yield k, path


@contextmanager
def _top(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`tokenix top` on a terminal that is read, when it has drawn something and has settled."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    drawn = threading.Event()
    words = [
        sys.executable,
        "-m",
        "tokenix.cli.main",
        "top",
        "--socket",
        str(path),
        "--refresh",
        str(1 / LOOKS_PER_S),
    ]
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    program = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    reader = threading.Thread(target=_drain, args=(ours, drawn), daemon=True)
    reader.start()
    try:
        if not drawn.wait(START_S):
            raise TimeoutError(f"tokenix top has drawn nothing in {START_S:g} s")
        time.sleep(SETTLE_S)
        yield program
    finally:
        program.kill()
        program.wait()
        reader.join()
        os.close(ours)


def _drain(terminal: int, drawn: threading.Event) -> None:
    """Read what is drawn, as a terminal does."""
    with contextlib.suppress(OSError):  # EIO: the program has ended
        while os.read(terminal, 1 << 16):
            drawn.set()


@dataclass(frozen=True, slots=True)
class _Slice:
    pass_s: float
    kernel_share: float
    """Of one core, of the kernel's thread."""
    program_share: float
    """And of the program."""


def _slice(k: Syscalls, seconds: float, program: int) -> _Slice:
    """A stretch of time in which nothing is done here."""
    steps, began_s = k.vmstat()["steps"], time.monotonic()
    kernel_s, program_s = _kernel_cpu_s(), _process_cpu_s(program)
    time.sleep(seconds)
    passed_s = time.monotonic() - began_s
    kernel_s, program_s = _kernel_cpu_s() - kernel_s, _process_cpu_s(program) - program_s
    steps = k.vmstat()["steps"] - steps
    return _Slice(passed_s / steps, kernel_s / passed_s, program_s / passed_s)


def _kernel_cpu_s() -> float:
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "tokenix-kernel"]
    spent = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text(encoding="ascii")
    return int(spent.split()[0]) / 1e9


def _process_cpu_s(pid: int) -> float:
    """All threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9
