"""What pausing and coming back cost, on the real driver, against what memory and disk can do.

    preempt   SIGSTOP until the process is out of the way, while others decode; dirty pages go first
    resume    SIGCONT until the next token, with all pages in the host tier, or in the swap file
    planner   the same by each way back, over the length of the context

Two processes of one length take turns in a pool that holds one of them: each comes back to frames
that the other has used. The first run of each is not counted.
"""

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import tokenix
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.types import PageCode, Params, Pid, ProcessStat

PAGE = 16
OUTPUT = 48
"""Tokens that a process may generate that takes turns, a few each: more than it lives to. Pools
have room for them, and hardly more than for the context."""
WAYS_OUTPUT = 128
"""The same for those that come back by each way."""
LONG_OUTPUT = 1024
"""The same for those that are preempted while all decode."""
LENGTHS = (256, 512, 1024, 2048, 4096, 8192 - WAYS_OUTPUT)
"""Tokens of the contexts of the planner's rows: the last fills the shipped model's context."""
TURNS = 7
"""Of each process and each way back, in turn, so that a change of the machine's pace meets all;
everything is computed again only once, which takes as long as all else."""
STREAMS = 4
"""That decode while one of them is preempted."""
POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Way:
    """Seconds until all is back, by one way (None: it was not taken)."""

    tokens: int
    swap_in_s: float
    recompute_s: float
    split_s: float
    auto_s: float
    chosen: str

    @property
    def best_s(self) -> float:
        return min(self.swap_in_s, self.recompute_s, self.split_s)


@dataclass(frozen=True, slots=True)
class Report:
    preempt_ms_p50: float
    preempt_ms_p95: float
    decode_step_ms_p50: float
    clean_share: float
    """Of the pages of preempted processes."""
    resume_ms_per_1k_p50: float
    """From the host tier, per 1,000 tokens."""
    resume_ms_per_1k_p95: float
    resume_rate_of_memcpy: float
    """Bytes per second of coming back from the host tier, as a share of a plain copy's right
    after it: the median over the returns."""
    disk_resume_ms_per_1k_p50: float
    disk_resume_ms_per_1k_p95: float
    resume_rate_of_disk: float
    """The same from the swap file, as a share of reading it without a cache."""
    planner: tuple[Way, ...]

    def as_json(self) -> dict[str, object]:
        """What `tokenix bench swap --json` prints."""
        rows = [{**asdict(way), "auto_of_best": way.auto_s / way.best_s} for way in self.planner]
        return {**asdict(self), "planner": rows}


WAYS = ("recompute", "swap-in", "split", "auto")

Tell = Callable[[str], None]


def measure(
    directory: str,
    longest: int = LENGTHS[-1],
    length: int = 1024,
    turns: int = TURNS,
    watch: Tell | None = None,
    **boot: Any,
) -> Report:
    """Everything. `directory`: where the swap file goes; `longest`: of the planner's rows;
    `length`: tokens of the contexts that are preempted and come back; `boot`: of `tokenix.boot`."""
    tell = watch or (lambda _: None)
    tell("preempting")
    preempt_s, step_s, clean = measure_preempt(length, turns, **boot)
    tell("coming back from the host tier")
    host = measure_resume(length, turns, None, **boot)
    tell("coming back from the swap file")
    disk = measure_resume(length, turns, directory, **boot)
    rows = []
    for tokens in (tokens for tokens in LENGTHS if tokens <= longest):
        tell(f"ways back with {tokens} tokens")
        rows.append(measure_ways(tokens, turns, **boot))
    per_1k = 1e3 / (length / 1e3)
    return Report(
        preempt_ms_p50=1e3 * statistics.median(preempt_s),
        preempt_ms_p95=1e3 * _p95(preempt_s),
        decode_step_ms_p50=1e3 * step_s,
        clean_share=clean,
        resume_ms_per_1k_p50=per_1k * statistics.median(host.seconds),
        resume_ms_per_1k_p95=per_1k * _p95(host.seconds),
        resume_rate_of_memcpy=statistics.median(host.shares),
        disk_resume_ms_per_1k_p50=per_1k * statistics.median(disk.seconds),
        disk_resume_ms_per_1k_p95=per_1k * _p95(disk.seconds),
        resume_rate_of_disk=statistics.median(disk.shares),
        planner=tuple(rows),
    )


# ---- preempting ----


def measure_preempt(length: int, turns: int, **boot: Any) -> tuple[list[float], float, float]:
    """Seconds of each preemption, the median step, and the share of pages that were clean."""
    pages = STREAMS * _pages(length, LONG_OUTPUT)
    seconds: list[float] = []
    clean = total = 0
    with tokenix.boot(device_pages=pages, host_pages=2 * pages, **boot) as k:
        pids = [_start(k, length, i, LONG_OUTPUT) for i in range(STREAMS)]
        step_s = _median_step_s(k, pids[0])
        for turn in range(turns * STREAMS):
            pid = pids[turn % STREAMS]
            since = _last_event(k)
            k.kill(pid, tokenix.SIGSTOP)
            _until_state(k, pid, "swapped")
            pause, out = _events(k, since, pid, "pause"), _events(k, since, pid, "state")
            end_s = next(e.time_s for e in out if ("new", "swapped") in e.detail)
            seconds.append(end_s - pause[0].time_s)
            detail = dict(pause[0].detail)
            total += int(detail["pages"])
            clean += int(detail["pages"]) - int(detail["dirty"])
            k.kill(pid, tokenix.SIGCONT)
            _until_state(k, pid, "ready", "running")
    return seconds, step_s, clean / total


# ---- coming back ----


@dataclass(frozen=True, slots=True)
class Returns:
    seconds: list[float]
    """Of the copies of each return, from the decision to the last page."""
    shares: list[float]
    """The rate of each return as a share of what the machine could do right after it."""


def measure_resume(length: int, turns: int, directory: str | None, **boot: Any) -> Returns:
    """Two processes take turns: all pages of one come from the host tier, or, if `directory` says
    where, from the swap file."""
    with ExitStack() as stack:
        pair = stack.enter_context(_pair(length, OUTPUT, directory, **boot))
        k, seconds, shares = pair.k, [], []
        page_bytes = int(k.vmstat()["frames.page_bytes"])
        bare: DiskReads | MemoryCopies
        bare = DiskReads(directory, page_bytes) if directory else MemoryCopies(page_bytes)
        stack.enter_context(bare)
        for turn in range(2 + 2 * turns):
            pid = pair.pids[turn % 2]
            before = k.stat(pid)
            since = _last_event(k)
            pair.bring_back(pid)
            if turn < 2:
                continue
            begin = _events(k, since, pid, "fetch") or _events(k, since, pid, "resume")
            states = _events(k, since, pid, "state")
            end_s = next(e.time_s for e in states if ("new", "ready") in e.detail)
            seconds.append(end_s - begin[0].time_s)
            loaded = _loaded(before, k.stat(pid), directory is not None)
            shares.append(loaded / seconds[-1] / bare.bytes_per_s(loaded // page_bytes))
    return Returns(seconds, shares)


def _loaded(before: ProcessStat, after: ProcessStat, deep: bool) -> int:
    name = "fetched_bytes" if deep else "swapped_in_bytes"
    return int(getattr(after.rusage, name) - getattr(before.rusage, name))


def measure_ways(length: int, turns: int, **boot: Any) -> Way:
    """The same context brought back by each way, from the host tier: to the next token."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    chosen = ""
    with _pair(length, WAYS_OUTPUT, None, **boot) as pair:
        first, second = pair.pids
        order = [("recompute", first)]
        order += [(way, pid) for _ in range(turns) for way in WAYS[1:] for pid in (second, first)]
        for way, pid in order:
            pair.k.sysctl("swap.restore", way)
            since = _last_event(pair.k)
            seconds[way].append(pair.bring_back(pid))
            if way == "auto":
                chosen = _way_of(pair.k, pid, since)
    recompute_s, swap_in_s, split_s, auto_s = (min(seconds[way]) for way in WAYS)
    return Way(length, swap_in_s, recompute_s, split_s, auto_s, chosen)


def _way_of(k: Syscalls, pid: Pid, since: int) -> str:
    resume = dict(_events(k, since, pid, "resume")[0].detail)
    return str(resume["way"])


class _pair:
    """Two processes of `length` tokens, both stopped, on a device that holds the pages of one. If
    they are to come from a file the host tier holds no more either: what one brings up takes the
    places of the other."""

    def __init__(self, length: int, output: int, directory: str | None, **boot: Any) -> None:
        pages = _pages(length, output)
        host_pages = 3 * pages
        if directory is not None:
            host_pages = pages
            params = Params(sink_held_s=0.0, reclaim_low_share=0.0, reclaim_high_share=0.0)
            boot |= {"swap_dir": directory, "swap_bytes": 4 * pages << 20, "params": params}
        self.k = tokenix.boot(device_pages=pages + 1, host_pages=host_pages, **boot)
        self.pids: list[Pid] = []
        self._deep = directory is not None
        for i in range(2):
            self.pids.append(_start(self.k, length, i, output))
            self.stop(self.pids[-1])

    def __enter__(self) -> "_pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.k.close()

    def bring_back(self, pid: Pid) -> float:
        """Continue `pid` until its next token, and stop it again, before it generates much or
        anything else is measured. Seconds from the decision to that token."""
        while self.k.read(pid, block=False).outputs:
            pass
        since = _last_event(self.k)
        self.k.kill(pid, tokenix.SIGCONT)
        token_s: float = self.k.read(pid, 1).outputs[0].time_s
        self.stop(pid)
        begin = _events(self.k, since, pid, "fetch") or _events(self.k, since, pid, "resume")
        return token_s - float(begin[0].time_s)

    def stop(self, pid: Pid) -> None:
        """Until it is out of the way, with all full pages in the tier they are to come from."""
        self.k.kill(pid, tokenix.SIGSTOP)
        _until_state(self.k, pid, "swapped")
        if self._deep:
            _until(lambda: self._in_file(pid) >= self.k.stat(pid).pages - 1)

    def _in_file(self, pid: Pid) -> int:
        return sum(bool(code & PageCode.FILE) for code in self.k.maps(pid).codes)


# ---- what the machine can do ----


class MemoryCopies:
    """Copies of pages from place to place, of more than caches hold, between memory like that of
    frames and slots: pages that begin at multiples of 4096, in huge pages where there are any.
    Between arrays as NumPy makes them, a plain copy takes up to twice the time."""

    def __init__(self, page_bytes: int, total_bytes: int = 256 << 20) -> None:
        places, padded = total_bytes // page_bytes, -(-page_bytes // 4096) * 4096
        self._source, self._target = (
            _huge_memory(places * padded).reshape(places, padded)[:, :page_bytes] for _ in range(2)
        )
        self._source[:], self._target[:] = 1, 0
        self._at = 0

    def __enter__(self) -> "MemoryCopies":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def bytes_per_s(self, pages: int) -> float:
        """Of copying as many, page by page; not those of the last time, which caches hold."""
        places, page_bytes = self._source.shape
        which = [(self._at + i) % places for i in range(pages)]
        self._at += pages

        def copy() -> None:
            for i in which:
                self._target[i] = self._source[i]

        return float(pages * page_bytes / _timed(copy))


def _huge_memory(size: int) -> Any:
    """uint8 [size]."""
    import numpy as np

    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class DiskReads:
    """Reads of a file page by page, past the page cache where the file system allows that."""

    def __init__(self, directory: str, page_bytes: int, pages: int = 128) -> None:
        self._size, self._pages = -(-page_bytes // 4096) * 4096, pages
        self._buffer = mmap.mmap(-1, self._size)
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            for _ in range(pages):
                file.write(os.urandom(self._size))
            file.flush()
            os.fsync(file.fileno())
            try:
                self._fd = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
            except OSError:
                self._fd = os.open(file.name, os.O_RDONLY)

    def __enter__(self) -> "DiskReads":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def bytes_per_s(self, pages: int) -> float:
        """Of reading as many, one at a time."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

        def read() -> None:
            for i in range(pages):
                os.preadv(self._fd, [self._buffer], i % self._pages * self._size)

        return pages * self._size / _timed(read)


def _timed(act: Callable[[], object]) -> float:
    before = time.perf_counter()
    act()
    return time.perf_counter() - before


# ---- small things ----


def _pages(length: int, output: int) -> int:
    """With room for the output."""
    return -(-(length + output) // PAGE) + 1


def _start(k: Syscalls, length: int, number: int, output: int) -> Pid:
    """A process with a context of its own, that has begun to decode."""
    prompt = [1000 + (number * 7919 + i * 31) % 30000 for i in range(length)]
    pid = k.spawn(prompt, max_tokens=output, qos="stream", tokens_per_s=1000.0, ignore_eos=True)
    k.read(pid, 1)
    return pid


def _median_step_s(k: Syscalls, pid: Pid, tokens: int = 24) -> float:
    times: list[float] = []
    while k.read(pid, block=False).outputs:
        pass
    while len(times) < tokens:
        times += [output.time_s for output in k.read(pid).outputs]
    return statistics.median(b - a for a, b in pairwise(times))


def _last_event(k: Syscalls) -> int:
    return int(k.vmstat()["trace.last"])


def _events(k: Syscalls, since: int, pid: Pid, kind: str) -> list[Any]:
    return [event for event in k.trace(pid, since) if event.kind == kind]


def _until_state(k: Syscalls, pid: Pid, *states: str) -> None:
    def come() -> bool:
        state = k.stat(pid).state
        assert state != "zombie", "it was given too few tokens for the turns that it takes"
        return state in states

    _until(come)


def _until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end_s:
            raise TimeoutError("the kernel did not come to it")
        time.sleep(POLL_S)


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
