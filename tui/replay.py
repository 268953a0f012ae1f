"""A recording, played at any speed."""

import errno
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tokenix.syscalls.types import Pid
from tokenix.tui.beside import Recall
from tokenix.tui.recalled import Recalled
from tokenix.tui.recording import read_lines
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import View


class Replay:
    """Keeps `tui.source.Source`; each pull gives the look that is due by the clock. It can be held,
    moved in, and sped up. OSError when made: there is no such recording."""

    can_act = False

    def __init__(self, path: Path, speed: float = 1.0) -> None:
        self._lines, times = read_lines(path)
        self._offsets_s = [taken_s - times[0] for taken_s in times]
        self._decoder = msgspec.json.Decoder(Snapshot)
        self._recalled = Recalled(self, Recall(self._lines))
        self._lock = threading.Lock()
        self._speed = speed
        self._held = False
        self._at_s, self._since_s = 0.0, time.monotonic()
        """Where it was at that time of the clock."""

    @property
    def speed(self) -> float:
        return self._speed

    @property
    def length_s(self) -> float:
        return self._offsets_s[-1]

    @property
    def position_s(self) -> float:
        """Seconds since its first look."""
        with self._lock:
            return self._position_s()

    def hold(self, held: bool) -> None:
        """Time stands still in it, or goes on."""
        with self._lock:
            self._move(self._position_s())
            self._held = held

    def skip(self, seconds: float) -> None:
        """So much further, or back."""
        with self._lock:
            self._move(self._position_s() + seconds)

    def play(self, speed: float) -> None:
        """So many times as fast as it was."""
        assert speed > 0
        with self._lock:
            self._move(self._position_s())
            self._speed = speed

    @property
    def line(self) -> int:
        """Of the look that is due, counted from 0."""
        return bisect_right(self._offsets_s, self.position_s) - 1

    def pull(self) -> Snapshot:
        due = self.line
        try:
            return self._decoder.decode(self._lines[due])
        except msgspec.DecodeError as problem:
            what = f"look {due + 1} of the recording is damaged: {problem}"
            raise OSError(errno.EBADMSG, what) from None

    def watch(self, pids: Sequence[Pid]) -> None:
        """All are as they were."""

    def view(self) -> View:
        return self._recalled

    def close(self) -> None:
        """There is nothing to let go of."""

    def _position_s(self) -> float:
        passed_s = 0.0 if self._held else (time.monotonic() - self._since_s) * self._speed
        return min(self.length_s, self._at_s + passed_s)

    def _move(self, to_s: float) -> None:
        self._at_s, self._since_s = min(max(0.0, to_s), self.length_s), time.monotonic()
