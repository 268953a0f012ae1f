"""A CUDA device on the fake GPU in virtual time, for the whole kernel (`tests/sim/machine.py`).

All work is done, by the driver and the fake GPU; that it is done is told when a GPU and a link of a
given pace would have done it. At boot the driver measures that pace, by a clock that goes with the
work of the fake.
"""

import threading
from collections import deque
from dataclasses import dataclass

from tokenix.drivers.cuda import rates
from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.ops import CopyIn, CopyOut, Forward, Poison
from tokenix.drivers.sim.costs import beside_s
from tokenix.tests.cuda import fake as fakes
from tokenix.tests.cuda import rig

PATIENCE_S = 100.0
"""Of the clock on the wall, for any command."""

PAGE_BYTES = FrameShape.of(rig.TINY, PAGE_TOKENS, "f32").stride_bytes


@dataclass(frozen=True)
class Pace:
    """Seconds of a pass that is measured at boot, and of a page on its way."""

    pass_s: float
    in_page_s: float
    out_page_s: float


class WorkClock:
    """Goes on with what the fake GPU has done since it was asked last: a pass, or pages on their
    way."""

    def __init__(self, pace):
        self._pace = pace
        self._fake = fakes.load()
        self._seen = self._look()
        self._now_s = 0.0

    def _look(self):
        return self._fake.launches, self._fake.in_bytes, self._fake.out_bytes

    def perf_counter(self):
        pace, now = self._pace, self._look()
        launches, in_bytes, out_bytes = (a - b for a, b in zip(now, self._seen, strict=True))
        self._seen = now
        if launches:  # what a pass is given is on its way in no time
            self._now_s += pace.pass_s
        else:
            moved_s = in_bytes * pace.in_page_s + out_bytes * pace.out_page_s
            self._now_s += moved_s / PAGE_BYTES
        return self._now_s


def measured(pace, **options):
    """A device that has found this pace at boot."""
    plain, rates.time = rates.time, WorkClock(pace)
    try:
        return rig.device(**options)
    finally:
        rates.time = plain


class TimedDevice:
    """Keeps `drivers.device.Device`, as a virtual device does."""

    def __init__(self, frames, host_slots, pace, **options):
        self._pace = pace
        self._device = measured(pace, frames=frames, host_slots=host_slots, **options)
        self._told = threading.Condition()
        self._done = {}
        self._due = {kind: deque() for kind in (Forward, CopyIn, CopyOut)}
        """Of each engine: when it will be done, and with which ticket."""
        self._free_s = dict.fromkeys(self._due, 0.0)
        self._load_s = 0.0, 0.0
        """Begin and end of the last load."""
        self.watch = lambda command, now_s: None
        """Called with what is submitted, before it is."""
        self._device.set_wake(self._take)

    @property
    def violations(self):
        return rig.failures()

    def info(self):
        return self._device.info()

    def busy(self, kind):
        """Whether the engine of such commands has something to do."""
        return bool(self._due[kind])

    def submit(self, command, now_s):
        self.watch(command, now_s)
        if not isinstance(command, Poison):
            kind = type(command) if type(command) in self._due else Forward
            begin_s = max(now_s, self._free_s[kind])
            done_s = begin_s + self._cost_s(command)
            if kind is Forward and getattr(command, "beside", None) is not None:
                done_s = beside_s(begin_s, self._cost_s(command), *self._load_s)
            elif kind is CopyIn:
                self._load_s = begin_s, done_s
            self._free_s[kind] = done_s
            self._due[kind].append((done_s, command.ticket))
        self._device.submit(command, now_s)

    def _cost_s(self, command):
        info = self._device.info()
        match command:
            case Forward():
                prefill = sum(len(row.tokens) for row in command.rows)
                return info.step_s + prefill / info.prefill_tokens_per_s
            case CopyIn():
                return len(command.pages) * self._pace.in_page_s
            case CopyOut():
                return len(command.pages) * self._pace.out_page_s
        return 0.0

    def next_completion_s(self):
        return min((due[0][0] for due in self._due.values() if due), default=None)

    def poll(self, now_s):
        over = []
        for due in self._due.values():
            while due and due[0][0] <= now_s:
                over.append(due.popleft())
        return [self._wait(ticket) for _, ticket in sorted(over)]

    def _take(self):
        """On a thread of the device."""
        with self._told:
            self._done |= {done.ticket: done for done in self._device.poll(0.0)}
            self._told.notify()

    def _wait(self, ticket):
        with self._told:
            assert self._told.wait_for(lambda: ticket in self._done, PATIENCE_S)
            return self._done.pop(ticket)

    def close(self):
        self._device.close()
