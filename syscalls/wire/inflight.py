"""The calls of one connection: those in flight, and the processes that live as long as it does.

    Ask --> (pool: text to tokens) --> kernel --> Answer or Fail
                    ^ CancelCall may come at any point

A process that was spawned, forked or resumed over a connection is its own: when the connection
ends, whatever it waits for is cancelled, then its processes are killed and reaped. Those spawned
with `detach` belong to nobody.
"""

import errno
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from tokenix.kernel import calls
from tokenix.kernel.answers import Listing, WaitResult
from tokenix.kernel.calls import Asks, KernelError, Principal
from tokenix.kernel.event import Reply
from tokenix.mm.ids import Pid
from tokenix.syscalls import texts
from tokenix.syscalls.port import ROOT
from tokenix.syscalls.wire.bridge import Bridge
from tokenix.syscalls.wire.flow import Client, Flow

READ_TOKENS = 4096
"""Most that one read brings, so that its answer fits into a frame."""

LOOK_AT = 8192

BEGINS = (texts.SpawnText, calls.Fork, calls.Resume)
"""What makes processes."""

Settle = Callable[[int, "object | KernelError"], None]
"""Send the answer of a call to the client."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pending:
    """A call that has no answer yet."""

    request: Asks[Any]
    who: Principal
    size_bytes: int
    kernel_id: int = 0
    """0: it is not in the kernel yet."""


class Calls:
    def __init__(self, bridge: Bridge, client: Client, settle: Settle) -> None:
        self._bridge = bridge
        self._client = client
        self._settle = settle
        self._pending: dict[int, Pending] = {}
        self._flows: dict[int, Flow] = {}
        self._owned: dict[Pid, None] = {}
        self._look_at = LOOK_AT
        """So many processes of its own are looked through for those that are gone."""
        self._gone = False
        self.size_bytes = 0
        """Of the requests in flight."""

    def __len__(self) -> int:
        return len(self._pending) + len(self._flows)

    def __contains__(self, number: int) -> bool:
        return number in self._pending or number in self._flows

    @property
    def flows(self) -> int:
        return len(self._flows)

    @property
    def owned(self) -> int:
        return len(self._owned)

    def ask(self, number: int, request: Asks[Any], who: Principal, size_bytes: int) -> None:
        """Begin a call. `size_bytes`: of its frame."""
        pending = self._pending[number] = Pending(request, who, size_bytes)
        self.size_bytes += size_bytes
        if isinstance(request, texts.TextRequest):
            self._bridge.resolve(request, partial(self._resolved, number, pending))
            return
        if isinstance(request, calls.Read) and request.max_tokens > READ_TOKENS:
            request = calls.Read(request.pid, READ_TOKENS, request.block)
        self._submit(number, pending, request)

    def follow(self, number: int, pid: Pid, window: int, who: Principal) -> None:
        flow = Flow(self._client, self._bridge, who, number, pid, window)
        self._flows[number] = flow
        flow.go_on()

    def grant(self, number: int, tokens: int, most: int) -> None:
        """Credit for a flow; nothing if it has ended."""
        flow = self._flows.get(number)
        if flow is not None and tokens > 0:
            flow.grant(tokens, most)

    def go_on(self) -> None:
        """There is room for output again."""
        for flow in tuple(self._flows.values()):
            flow.go_on()

    def hold(self) -> None:
        """There is no room for output until `go_on`."""
        for flow in tuple(self._flows.values()):
            flow.hold()

    def drop_flow(self, number: int) -> None:
        self._flows.pop(number, None)

    def cancel(self, number: int, answer: Callable[[object], None]) -> None:
        """Take back a call or a flow; `answer` gets whether there was one to take back, behind
        whatever the call itself is answered with."""
        flow = self._flows.get(number)
        if flow is not None:
            flow.stop(partial(answer, True))
            return
        pending = self._pending.get(number)
        if pending is None:
            answer(False)
        elif pending.kernel_id:
            request = calls.CancelCall(pending.kernel_id)
            self._bridge.submit(request, ROOT, partial(_pass_on, answer))
        else:
            self._finish(number, pending)
            self._settle(number, calls.error(errno.EINTR, "the call was cancelled"))
            answer(True)

    def abandon(self) -> None:
        """The client is gone: nothing of it stays in the kernel. Reads of its own processes are
        answered by their end; the kernel would have to look for each of them to cancel it."""
        self._gone = True
        for pending in self._pending.values():
            request = pending.request
            ends = isinstance(request, calls.Read) and request.pid in self._owned
            if pending.kernel_id and not ends:
                self._bridge.submit(calls.CancelCall(pending.kernel_id), ROOT, _ignore)
        for flow in self._flows.values():
            flow.abandon(ends=flow.pid in self._owned)
        for pid in self._owned:
            self._end(pid)
        self._flows.clear()
        self._owned.clear()

    # ---- inside ----

    def _submit(self, number: int, pending: Pending, request: Asks[Any]) -> None:
        then = partial(self._answered, number, pending)
        pending.kernel_id = self._bridge.submit(request, pending.who, then)

    def _resolved(self, number: int, pending: Pending, future: "Future[Any]") -> None:
        if self._gone or self._pending.get(number) is not pending:  # or it was cancelled
            return
        try:
            result = future.result()
        except OSError as problem:
            self._finish(number, pending)
            what = problem.strerror or str(problem)
            self._settle(number, KernelError(problem.errno or errno.EIO, what))
        except Exception:
            log.exception("a %s could not be made", type(pending.request).__name__)
            self._finish(number, pending)
            what = "the request makes no sense to the model's tokenizer or chat template"
            self._settle(number, calls.error(errno.EINVAL, what))
        else:
            if isinstance(result, texts.Answered):
                self._finish(number, pending)
                self._settle(number, result.value)
            else:
                self._submit(number, pending, result)

    def _answered(self, number: int, pending: Pending, reply: Reply) -> None:
        if reply.error is None:
            self._note_owner(pending.request, reply.value)
        if self._gone:
            return
        self._finish(number, pending)
        self._settle(number, reply.value if reply.error is None else reply.error)

    def _finish(self, number: int, pending: Pending) -> None:
        del self._pending[number]
        self.size_bytes -= pending.size_bytes

    def _note_owner(self, request: Asks[Any], value: object) -> None:
        match request:
            case texts.SpawnText(_, options):
                if not options.get("detach", False):
                    self._own(cast("Pid", value))
            case calls.Resume(detach=False):
                self._own(cast("Pid", value))
            case calls.Fork():
                for pid in cast("tuple[Pid, ...]", value):
                    self._own(pid)
            case calls.Wait(keep=False):
                if isinstance(value, WaitResult):
                    self._owned.pop(value.pid, None)

    def _own(self, pid: Pid) -> None:
        if self._gone:
            self._end(pid)
        else:
            self._owned[pid] = None
            if len(self._owned) == self._look_at:
                self._bridge.submit(calls.Ps(), ROOT, partial(self._forget_reaped, []))

    def _forget_reaped(self, alive: list[Pid], reply: Reply) -> None:
        """Processes that others have waited for, or that nobody did for too long. All that are
        owned when the last page comes were spawned before the kernel looked at it. `alive`: of the
        pages so far."""
        if reply.error is None and not self._gone:
            page = cast("Listing", reply.value)
            alive += (process.pid for process in page.processes)
            if page.after is not None:
                following = partial(self._forget_reaped, alive)
                self._bridge.submit(calls.Ps(page.after), ROOT, following)
                return
            known = frozenset(alive)
            self._owned = {pid: None for pid in self._owned if pid in known}
        self._look_at = max(LOOK_AT, 2 * len(self._owned))

    def _end(self, pid: Pid) -> None:
        self._bridge.submit(calls.Kill(pid, calls.Signal.KILL), ROOT, _ignore)
        self._bridge.submit(calls.Wait(pid), ROOT, _ignore)


def _pass_on(answer: Callable[[object], None], reply: Reply) -> None:
    answer(reply.error is None and reply.value)


def _ignore(_: Reply) -> None:
    """Whatever became of it, nobody is left to be told."""
