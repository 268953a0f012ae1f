"""One device on the fake GPU and a way to wait for it."""

import ctypes
import threading

import numpy as np

from tokenix.drivers.faults import Faults
from tokenix.drivers.ops import Forward, ForwardDone, Row, SampleSpec
from tokenix.drivers.sampling import SamplingParams
from tokenix.tests.cuda import rig

PATIENCE_S = 60.0


class Corrupting(Faults):
    """Changes a bit of what is published in some slots."""

    def __init__(self):
        self.slots = set()

    def published(self, page, data):
        if page.slot in self.slots:
            data[len(data) // 2] ^= 1


class Bench:
    """A device of 32 frames and 16 slots."""

    def __init__(self, seed=1, eager_percent=10, **options):
        self.faults = Corrupting()
        self.woken = threading.Event()
        self.device = rig.device(seed, eager_percent, faults=self.faults, **options)
        self.device.set_wake(self.woken.set)
        self.tickets = 0
        self.done = {}

    def start(self, kind, *args):
        self.tickets += 1
        self.device.submit(kind(self.tickets, *args), 0.0)
        return self.tickets

    def wait(self, ticket):
        while ticket not in self.done:
            self.woken.clear()
            found = self.device.poll(0.0)
            self.done.update({done.ticket: done for done in found})
            if not found:
                assert self.woken.wait(PATIENCE_S)
        return self.done.pop(ticket)

    def do(self, kind, *args):
        return self.wait(self.start(kind, *args))

    def draw(self, *rows, tables=()):
        done = self.do(Forward, rows, tables)
        assert isinstance(done, ForwardDone), done
        return list(done.results)

    def frame(self, pfn):
        """The bytes of a frame, as they are now."""
        arena = self.device._arena
        size = arena.shape.frame_bytes
        return np.frombuffer((ctypes.c_ubyte * size).from_address(arena.at(pfn)), np.uint8)

    def close(self):
        self.device.close()
        assert rig.failures() == []


def row(pid, tokens, start=0, params=SamplingParams()):
    return Row(pid, start, tuple(tokens), SampleSpec(params, (), start + len(tokens)))
