"""One device on the fake GPU."""

import ctypes

import numpy as np

from tokenix.drivers.faults import Faults
from tokenix.tests.cuda import rig
from tokenix.tests.device.bench import Bench


class Corrupting(Faults):
    """Changes a bit of what is published in some slots."""

    def __init__(self):
        self.slots = set()

    def published(self, page, data):
        if page.slot in self.slots:
            data[len(data) // 2] ^= 1


class CudaBench(Bench):
    """A device of 32 frames and 16 slots."""

    def __init__(self, seed=1, eager_percent=10, **options):
        self.faults = Corrupting()
        super().__init__(rig.device(seed, eager_percent, faults=self.faults, **options))

    def frame(self, pfn):
        """The bytes of a frame, as they are now."""
        arena = self.device._arena
        size = arena.shape.frame_bytes
        return np.frombuffer((ctypes.c_ubyte * size).from_address(arena.at(pfn)), np.uint8)

    def close(self):
        super().close()
        assert rig.failures() == []
