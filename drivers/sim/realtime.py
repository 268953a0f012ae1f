"""A simulated device whose time is the clock's: it wakes its kernel as a real one does."""

import math
import threading
import time
from collections.abc import Callable

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import Command, Completion
from tokenix.drivers.sim.fast import FastDevice


class RealTimeDevice:
    """Keeps `drivers.device.Device`, for a pump whose clock runs as `time.monotonic` does."""

    def __init__(self, device: FastDevice) -> None:
        self._device = device
        self._changed = threading.Condition()
        self._due_s = math.inf
        """When to wake the kernel next, by `time.monotonic`."""
        self._wake: Callable[[], None] = lambda: None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tokenix-sim", daemon=True)
        self._thread.start()

    def info(self) -> DeviceInfo:
        return self._device.info()

    def submit(self, command: Command, now_s: float) -> None:
        self._device.submit(command, now_s)
        self._set_alarm(now_s)

    def poll(self, now_s: float) -> list[Completion]:
        done = self._device.poll(now_s)
        self._set_alarm(now_s)
        return done

    def next_completion_s(self) -> float | None:
        return None

    def set_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._device.close()

    def _set_alarm(self, now_s: float) -> None:
        next_s = self._device.next_completion_s()
        due_s = math.inf if next_s is None else time.monotonic() + (next_s - now_s)
        with self._changed:
            sooner, self._due_s = due_s < self._due_s, due_s
            if sooner:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (left_s := self._due_s - time.monotonic()) > 0 and not self._closed:
                    self._changed.wait(None if left_s == math.inf else left_s)
                if self._closed:
                    return
                self._due_s = math.inf
            self._wake()
