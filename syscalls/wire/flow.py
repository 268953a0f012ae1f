"""The server's side of a flow: the output of one process, pushed while there is credit.

    kernel's thread      part, part, part ...          at once into the socket
    the server's loop                    last part     the end, or more credit

At most one `Follow` is in the kernel, for all of the credit at that moment. There is none while the
credit is used up or more is unsent to the client than its budget: then the output stays in the
process's pipe, where it counts as the reader's lead and, in the end, holds the process.
"""

import errno
from collections.abc import Callable
from typing import Protocol, cast

from tokenix.kernel.answers import ReadResult, ends_turn
from tokenix.kernel.calls import CancelCall, Follow, KernelError, Principal, error
from tokenix.kernel.event import Reply
from tokenix.kernel.loop import Settle
from tokenix.mm.ids import Pid
from tokenix.syscalls.wire.abi import Delta, Fail
from tokenix.syscalls.wire.bridge import Bridge


class Client(Protocol):
    """What a flow needs of its connection."""

    @property
    def blocked(self) -> bool: ...

    def send(self, message: Delta | Fail) -> None: ...

    def push(self, message: Delta) -> Settle:
        """The same on the kernel's thread; what it returns sends all that was pushed until then."""
        ...

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
        """What may be pushed, with what the `Follow` in flight has brought already ..."""
        self._came = 0
        """... which is so much; changed where parts come, while there is one."""
        self._following = 0
        """The kernel's number of that; 0: there is none."""
        self._held = False
        """It was taken back, as its client takes nothing."""
        self._stopped: Callable[[], None] | None = None
        self._orphan = False

    def go_on(self) -> None:
        """Ask for more if there is credit and room. Idempotent."""
        if not self._following and self._credit > 0 and not self._client.blocked:
            request = Follow(self.pid, self._credit)
            self._following = self._bridge.follow(request, self._who, self._part, self._arrived)

    def grant(self, tokens: int, most: int) -> None:
        """More credit, up to `most` in all."""
        self._credit = min(most + self._came, self._credit + tokens)
        self.go_on()

    def hold(self) -> None:
        """Take nothing from the kernel until `go_on` is called again."""
        if self._following and not self._held:
            self._held = True
            self._cancel()

    def stop(self, stopped: Callable[[], None]) -> None:
        """End it with EINTR. What the kernel has given it already goes out before; `stopped` is
        called behind all of that."""
        self._stopped = stopped
        if self._following:
            self._cancel()
        else:
            self._end(error(errno.EINTR, "the call was cancelled"))

    def abandon(self, ends: bool) -> None:
        """The client is gone. `ends`: and so is the process in a moment."""
        self._orphan = True
        if self._following and not ends:
            self._cancel()

    def _cancel(self) -> None:
        root = Principal(root=True)
        self._bridge.submit(CancelCall(self._following), root, _heard)

    def _part(self, result: ReadResult) -> Settle | None:
        """On the kernel's thread."""
        if self._orphan:
            return None
        self._came += len(result.outputs)
        return self._client.push(Delta(self.number, result))

    def _arrived(self, reply: Reply) -> None:
        held, self._held, self._following = self._held, False, 0
        self._credit -= self._came
        self._came = 0
        if self._orphan:
            return
        if reply.error is not None:
            if held and self._stopped is None and reply.error.errno == errno.EINTR:
                self.go_on()
            else:
                self._end(reply.error)
            return
        result = cast("ReadResult", reply.value)
        self._credit -= len(result.outputs)
        self._client.send(Delta(self.number, result))
        if ends_turn(result):
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
