"""Six command queues and the tiers below the device: what real devices share.

    compute   Forward, CopyFrame, Poison   |
    out       CopyOut                      |  the driver's own: arithmetic, and memory
    in        CopyIn                       |
    store     Store, SwapOn, SwapOff       |
    fetch     Fetch                        |  the same for all: host slots and files
    image     OpenImages, SaveImage ...    |

Each queue is a thread that runs its commands in order. A command is done when its handler returns:
a driver whose hardware is asynchronous waits for it there. Of a forward it may wait later, when the
next one is behind it:

    compute thread   launch 1 | launch 2, wait for 1 | launch 3, wait for 2 | ...

A disk or a device may hang for ever. `close` then leaves what is behind it to a thread of its own:
memory is given back when the last command has ended, or by the end of the process, which no thread
of ours keeps from coming.
"""

import errno
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.disktier import DiskTier
from tokenix.drivers.faults import Faults
from tokenix.drivers.imagetier import ImageTier
from tokenix.drivers.ops import (
    Command,
    Completion,
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    DeviceFault,
    Fetch,
    Forward,
    ForwardDone,
    LoadImage,
    OpenImages,
    PageOut,
    Poison,
    ReadImage,
    SaveImage,
    Store,
    SwapChanged,
    SwapOff,
    SwapOn,
    UnlinkImage,
)
from tokenix.drivers.queues import CommandQueue
from tokenix.drivers.slots import HostSlots

CLOSE_S = 10.0
"""`close` waits so long for commands at hand: many times what one takes on a disk that answers."""


Answer = Callable[[], ForwardDone | DeviceFault]
"""Waits for a forward and says what became of it; what it raises is a fault."""


class QueuedDevice(ABC):
    """Keeps `drivers.device.Device`. A driver sets `_info` and gives the handlers below; what one
    raises fails its command, never a thread."""

    _info: DeviceInfo

    def __init__(self, slots: HostSlots, faults: Faults | None) -> None:
        self._faults = faults or Faults()
        self._disk = DiskTier(slots, self._faults)
        self._images = ImageTier(slots, self._faults)
        self._ready: deque[Completion] = deque()
        self._wake: Callable[[], None] | None = None
        self._queues: list[CommandQueue] = []
        self._launched: deque[tuple[Forward, Answer]] = deque()
        """Forwards whose answers were not waited for yet; the compute thread's."""
        self._closed = False

    # ---- what a driver gives ----

    @abstractmethod
    def _forward(self, command: Forward) -> ForwardDone: ...

    def _launch(self, command: Forward) -> Answer:
        """Begin a forward. What is returned waits for its end; it is called once, on the same
        thread, when another one was launched or there is nothing to launch."""
        return partial(self._forward, command)

    @abstractmethod
    def _copy_frame(self, command: CopyFrame) -> None: ...

    @abstractmethod
    def _poison(self, command: Poison) -> None: ...

    @abstractmethod
    def _copy_out(self, pages: Sequence[PageOut]) -> list[str | None]:
        """Publish pages; what went wrong with each, if anything. On the swap-out thread."""

    @abstractmethod
    def _copy_in(self, command: CopyIn) -> list[str | None]:
        """Load pages; what went wrong with each, if anything. On the swap-in thread."""

    @abstractmethod
    def _release(self) -> None:
        """Free all memory: the threads have ended."""

    # ---- the protocol ----

    def _open(self, start: Callable[[], object] | None = None) -> None:
        """Start the queues. `start` runs first on the compute thread, and must not raise."""
        self._compute = CommandQueue("tokenix-compute", self._run_compute, start, self._answer)
        self._out = CommandQueue("tokenix-swap-out", self._run_copy)
        self._in = CommandQueue("tokenix-swap-in", self._run_copy)
        self._store = CommandQueue("tokenix-store", self._run_disk)
        self._fetch = CommandQueue("tokenix-fetch", self._run_disk)
        self._image = CommandQueue("tokenix-image", self._run_image)
        self._queues = [
            self._compute, self._out, self._in, self._store, self._fetch, self._image,
        ]  # fmt: skip

    def info(self) -> DeviceInfo:
        return self._info

    def submit(self, command: Command, now_s: float) -> None:
        assert not self._closed, "submit to a closed device"
        match command:
            case CopyOut():
                self._out.put(command)
            case CopyIn():
                self._in.put(command)
            case Store() | SwapOn() | SwapOff():
                self._store.put(command)
            case Fetch():
                self._fetch.put(command)
            case OpenImages() | SaveImage() | ReadImage() | LoadImage() | UnlinkImage():
                self._image.put(command)
            case _:
                self._compute.put(command)

    def poll(self, now_s: float) -> list[Completion]:
        found: list[Completion] = []
        while self._ready:
            found.append(self._ready.popleft())
        return found

    def next_completion_s(self) -> float | None:
        return None

    def set_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for commands in self._queues:
                commands.stop()
            ending = threading.Thread(target=self._end, name="tokenix-close", daemon=True)
            ending.start()
            ending.join(CLOSE_S)

    def _end(self) -> None:
        """Give back what nothing is under way with any more: files, then memory."""
        self._image.join()
        self._images.close()
        for commands in self._queues:
            commands.join()
        self._disk.close()
        self._release()

    def _complete(self, completion: Completion) -> None:
        self._ready.append(completion)
        if self._wake is not None:
            self._wake()

    # ---- on the compute thread ----

    def _run_compute(self, command: Command) -> None:
        if isinstance(command, Forward):
            self._launched.append((command, self._begin(command)))
            while len(self._launched) >= self._info.depth:
                self._answer()
            return
        while self._answer():  # what comes later is told later
            pass
        try:
            reason = self._faults.before(command)
            match command:
                case CopyFrame():
                    assert reason is None, reason
                    self._copy_frame(command)
                    self._complete(CopyDone(command.ticket))
                case Poison():
                    self._poison(command)
                case _:
                    raise AssertionError(f"{command} is not for the compute queue")
        except Exception as error:
            if isinstance(command, CopyFrame):
                self._complete(CopyFailed(command.ticket, (0,), _reason(error)))

    def _begin(self, command: Forward) -> Answer:
        """A forward that cannot begin fails when its turn comes."""
        try:
            reason = self._faults.before(command)
            assert reason is None, reason
            return self._launch(command)
        except Exception as error:
            return partial(DeviceFault, command.ticket, _reason(error))

    def _answer(self) -> bool:
        """Wait for the oldest forward that was launched; False if there is none."""
        if not self._launched:
            return False
        command, answer = self._launched.popleft()
        try:
            done = answer()
        except Exception as error:
            done = DeviceFault(command.ticket, _reason(error))
        self._complete(done)
        return True

    # ---- on the swap threads ----

    def _run_copy(self, command: Command) -> None:
        assert isinstance(command, CopyOut | CopyIn), command
        failed = self._before(command)
        wrong: list[str | None] = [failed] * len(command.pages)
        if failed is None:
            try:
                if isinstance(command, CopyIn):
                    wrong = self._copy_in(command)
                else:
                    wrong = self._copy_out(command.pages)
            except Exception as error:
                wrong = [_reason(error)] * len(command.pages)
        reasons = [(i, why) for i, why in enumerate(wrong) if why is not None]
        if reasons:
            bad = tuple(i for i, _ in reasons)
            self._complete(CopyFailed(command.ticket, bad, reasons[0][1]))
        else:
            self._complete(CopyDone(command.ticket))

    def _before(self, command: Command) -> str | None:
        try:
            return self._faults.before(command)
        except Exception as error:
            return _reason(error)

    # ---- on the store and fetch threads ----

    def _run_disk(self, command: Command) -> None:
        assert isinstance(command, Store | Fetch | SwapOn | SwapOff), command
        try:
            reason = self._faults.before(command)
            assert reason is None, reason
            match command:
                case SwapOn() | SwapOff():
                    self._complete(self._disk.change(command))
                    return
                case Store():
                    wrong = self._disk.store(command)
                case Fetch():
                    wrong = self._disk.fetch(command)
        except Exception as error:
            reason = _reason(error)
            if isinstance(command, SwapOn | SwapOff):
                failed = SwapChanged(command.ticket, 0, reason=reason, error=errno.EIO)
                self._complete(failed)
                return
            wrong = dict.fromkeys(range(len(command.pages)), reason)
        if wrong:
            bad = tuple(sorted(wrong))
            self._complete(CopyFailed(command.ticket, bad, wrong[bad[0]]))
        else:
            self._complete(CopyDone(command.ticket))

    # ---- on the image thread ----

    def _run_image(self, command: Command) -> None:
        assert isinstance(command, OpenImages | SaveImage | ReadImage | LoadImage | UnlinkImage), (
            command
        )
        self._complete(self._images.done(command, self._before(command)))


def _reason(error: Exception) -> str:
    """In one line, whatever a library has to say."""
    said = str(error).splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}"
