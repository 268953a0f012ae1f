"""The fence between the compute stream and the copy streams.

    compute   forward | copy of a frame | ^ raise_fence
    swap out                              hold | copy of a frame that was written before the fence

A copy of a frame on the device is complete for the kernel as soon as it is queued. What the kernel
does next with those frames, on whatever stream, is ordered behind it here, on the device.
"""

from typing import Any

from tokenix.drivers.cuda.driver import CudaDriver


class Fence:
    """The end of what a stream was given. Any thread may hold others back; one raises it."""

    def __init__(self, driver: CudaDriver, stream: Any) -> None:
        self._driver = driver
        self._stream = stream
        self._event = driver.event()
        self.rise()

    def rise(self) -> None:
        """To behind what the stream has now."""
        self._driver.record(self._event, self._stream)

    def hold(self, stream: Any) -> None:
        """What `stream` gets from now on waits for the fence."""
        self._driver.wait(stream, self._event)

    def sync(self) -> None:
        """Wait for the fence here."""
        self._driver.sync_event(self._event)

    def close(self) -> None:
        self._driver.destroy_event(self._event)
