"""Signals as something to wait for with `select`, beside other things."""

import contextlib
import os
import signal
from types import TracebackType
from typing import Any, Self


class SignalPipe:
    """While open, the signals named do nothing but make `fileno` readable. Main thread only."""

    def __init__(self, *signals: signal.Signals) -> None:
        self._signals = signals
        self._before: dict[signal.Signals, Any] = {}
        self._read, self._write = -1, -1
        self._wakeup = -1

    def fileno(self) -> int:
        return self._read

    def take(self) -> list[signal.Signals]:
        """Those that came, oldest first."""
        with contextlib.suppress(BlockingIOError):
            came = map(signal.Signals, os.read(self._read, 256))
            return [number for number in came if number in self._signals]
        return []

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._signals:
            self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)
