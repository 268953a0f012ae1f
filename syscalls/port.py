"""Where system calls go: to a kernel in this process, or to one behind a socket.

`inproc.Syscalls` and `aio.Syscalls` are the calls and a port carries them, so that a program moves
from one to the other by changing the line that opens it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from tokenix.kernel.calls import Asks, Principal
from tokenix.syscalls.texts import Answered, TextRequest, resolve

if TYPE_CHECKING:
    from tokenix.kernel.answers import ReadResult
    from tokenix.kernel.boot import Machine
    from tokenix.mm.ids import Pid

Answer = TypeVar("Answer")

ROOT = Principal(root=True)


class Flow(Protocol):
    """The output of a process's present turn, pushed as it comes."""

    def take(self) -> "ReadResult | None":
        """The next result; None: there is none yet. One with a turn's end or the end of the output
        is the last. Raises what a read would."""
        ...

    def when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, on any thread, when `take` has something; at once if it has."""
        ...

    def attend(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on, on any thread, whenever `take` has something new; it may have
        something already."""
        ...

    def stop(self) -> "Future[list[ReadResult]]":
        """End it early; what was on the way and not taken."""
        ...


class Port(Protocol):
    """Carries requests to a kernel. Thread-safe."""

    def submit(self, request: Asks[Answer]) -> "tuple[int, Future[Answer]]":
        """Send a call; the number that `CancelCall` knows it by, and its answer to come: the
        result, or a KernelError. OSError at once for what can be seen to make no sense."""
        ...

    def follow(self, pid: "Pid") -> Flow | None:
        """What reads of the present turn would bring, pushed; None: reads are as good here."""
        ...

    def as_tenant(self, tenant: str) -> Self:
        """The same kernel as `tenant` sees it."""
        ...

    def close(self) -> None:
        """Stop the kernel, if it is ours; let go of it, if not. Idempotent."""
        ...


class LocalPort:
    """A kernel in this process."""

    def __init__(self, machine: "Machine", principal: Principal = ROOT) -> None:
        self.machine = machine
        self.principal = principal

    def submit(self, request: Asks[Answer]) -> "tuple[int, Future[Answer]]":
        if isinstance(request, TextRequest):
            resolved: Any = resolve(self.machine, request)
            if isinstance(resolved, Answered):
                done: Future[Answer] = Future()
                done.set_result(resolved.value)
                return 0, done
            request = cast("Asks[Answer]", resolved)
        return self.machine.pump.submit(request, self.principal)

    def follow(self, pid: "Pid") -> None:
        return None

    def as_tenant(self, tenant: str) -> "LocalPort":
        return LocalPort(self.machine, Principal(tenant))

    def close(self) -> None:
        self.machine.pump.close()
