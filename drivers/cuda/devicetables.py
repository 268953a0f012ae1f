"""Block tables on the GPU: int32 [slots][max_pages], kept between steps and changed by deltas."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenix.drivers.cuda.buffers import Inputs
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.ops import TableDelta
from tokenix.drivers.tables import BlockTables


class DeviceTables:
    """The device's copy of `tables`, which it makes. Only the compute thread uses it."""

    FIRST_SLOTS = 1024
    """Room for more than run at once: where there are more processes than slots, all graphs are
    captured again."""

    def __init__(self, driver: CudaDriver, frames: int, max_pages: int) -> None:
        self.host = BlockTables(frames, self.FIRST_SLOTS, max_pages)
        self._driver = driver
        self._take_room()

    def close(self) -> None:
        self._driver.free(self.address)

    def update(self, deltas: Sequence[TableDelta], inputs: Inputs, stream: Any) -> bool:
        """Tell the device what `host` was told by these deltas. True: the tables are elsewhere now,
        and what has their address must forget it."""
        if self.host.pages.shape != self._shape:
            self._driver.sync(stream)
            self._driver.free(self.address)
            self._take_room()
            return True
        if not deltas:
            return False
        inputs.settle_spare()
        room, used = inputs.spare, 0
        for delta in deltas:
            length = self.host.length(delta.pid)
            count = length - delta.keep
            if count <= 0:
                continue
            if used + count > len(room):
                self._driver.sync(stream)
                used = 0
            row = self.host.row_of(delta.pid)
            room[used : used + count] = self.host.pages[row, delta.keep : length]
            to = self.address + 4 * (row * self.max_pages + delta.keep)
            self._driver.copy_in(to, inputs.spare_address + 4 * used, 4 * count, stream)
            used += count
        inputs.note_spare(stream)
        return False

    def _take_room(self) -> None:
        """Room for all slots that the host has, with what is in them."""
        pages = np.ascontiguousarray(self.host.pages, np.int32)
        self._shape = pages.shape
        self.max_pages = pages.shape[1]
        self.address = self._driver.alloc(pages.nbytes)
        self._driver.upload(self.address, pages.ctypes.data, pages.nbytes)
