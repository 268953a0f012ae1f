"""The server's side of a flow: reads of one process, pushed while there is credit.

At most one read is in the kernel. None is asked for while the client's credit is used up or more is
unsent to it than its budget: then the output stays in the process's pipe, where it counts as the
reader's lead and, in the end, holds the process.
"""

import errno
from collections.abc import Callable
from typing import Protocol, cast

from tokenix.kernel.answers import ReadResult
from tokenix.kernel.calls import CancelCall, KernelError, Principal, Read, error
from tokenix.kernel.event import Reply
from tokenix.mm.ids import Pid
from tokenix.syscalls.wire.abi import Delta, Fail
from tokenix.syscalls.wire.bridge import Bridge


class Client(Protocol):
    """What a flow needs of its connection."""

    @property
    def blocked(self) -> bool: ...

    def send(self, message: Delta | Fail) -> None: ...

    def flow_ended(self, flow: "Flow") -> None: ...


class Flow:
    def __init__(
        self, client: Client, bridge: Bridge, who: Principal, number: int, pid: Pid, credit: int
    ) -> None:
        self.number = number
        self._client = client
        self._bridge = bridge
        self._who = who
        self.pid = pid
        self._credit = credit
        self._reading = 0
        """The kernel's number of the read in flight; 0: none."""
        self._stopped: Callable[[], None] | None = None
        self._orphan = False

    def go_on(self) -> None:
        """Ask for more if there is credit and room. Idempotent."""
        if not self._reading and self._credit > 0 and not self._client.blocked:
            request = Read(self.pid, self._credit)
            self._reading = self._bridge.submit(request, self._who, self._arrived)

    def grant(self, tokens: int, most: int) -> None:
        """More credit, up to `most` in all."""
        self._credit = min(most, self._credit + tokens)
        self.go_on()

    def stop(self, stopped: Callable[[], None]) -> None:
        """End it with EINTR. What the kernel has given it already goes out before; `stopped` is
        called behind all of that."""
        self._stopped = stopped
        if self._reading:
            self._cancel()
        else:
            self._end(error(errno.EINTR, "the call was cancelled"))

    def abandon(self, ends: bool) -> None:
        """The client is gone. `ends`: and so is the process in a moment."""
        self._orphan = True
        if self._reading and not ends:
            self._cancel()

    def _cancel(self) -> None:
        root = Principal(root=True)
        self._bridge.submit(CancelCall(self._reading), root, _heard)

    def _arrived(self, reply: Reply) -> None:
        self._reading = 0
        if self._orphan:
            return
        if reply.error is not None:
            self._end(reply.error)
            return
        result = cast("ReadResult", reply.value)
        self._credit -= len(result.outputs)
        self._client.send(Delta(self.number, result))
        if result.turn_ended is not None or result.eof:
            self._client.flow_ended(self)
            self._tell_stopped()
        elif self._stopped is not None:
            self._end(error(errno.EINTR, "the call was cancelled"))
        else:
            self.go_on()

    def _end(self, problem: KernelError) -> None:
        assert problem.errno is not None
        fail = Fail(self.number, problem.errno, problem.message, problem.retry_after_s)
        self._client.send(fail)
        self._client.flow_ended(self)
        self._tell_stopped()

    def _tell_stopped(self) -> None:
        if self._stopped is not None:
            self._stopped()


def _heard(_: Reply) -> None:
    """The read itself is answered too, and says all there is to say."""
