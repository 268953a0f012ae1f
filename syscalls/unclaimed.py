"""What becomes of an answer that nobody took, because its call was interrupted or cancelled while
the answer was on the way: nothing is lost, and nothing runs on unknown to everybody.

What was read is kept for the next read, what was reaped for the next wait, what was resumed for the
next resume of that name. What was spawned is ended: nobody has learned its pid.
"""

import threading
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from tokenix.kernel import calls
from tokenix.kernel.answers import ReadResult, WaitResult
from tokenix.kernel.calls import Asks
from tokenix.mm.ids import Pid
from tokenix.syscalls import texts
from tokenix.syscalls.port import Port


class Unclaimed:
    """The answers of one caller that were not taken. Thread-safe."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._reads: dict[Pid, deque[ReadResult]] = {}
        self._waits: dict[Pid, WaitResult] = {}
        self._resumed: dict[str, Pid] = {}

    def take(self, request: Asks[Any]) -> ReadResult | WaitResult | Pid | None:
        """A kept answer to this request; None if the kernel must be asked."""
        with self._lock:
            match request:
                case calls.Read() if request.pid in self._reads and request.max_tokens > 0:
                    return self._take_read(request.pid, request.max_tokens)
                case calls.Wait(keep=False) if self._waits:
                    pid = next(iter(self._waits)) if request.pid is None else request.pid
                    return self._waits.pop(pid, None)
                case calls.Resume(name):
                    return self._resumed.pop(name, None)
        return None

    def forget(self, pid: Pid) -> None:
        """The process has been waited for: its unread output is gone."""
        with self._lock:
            self._reads.pop(pid, None)

    def take_back(self, request: Asks[Any], call_id: int, future: "Future[Any]") -> "Future[bool]":
        """Cancel a blocked call. Done when its answer, if there is one, has been put away."""
        settled: Future[bool] = Future()
        _, cancelled = self._port.submit(calls.CancelCall(call_id))
        cancelled.add_done_callback(partial(self._settle, request, future, settled))
        return settled

    def _settle(
        self,
        request: Asks[Any],
        future: "Future[Any]",
        settled: "Future[bool]",
        cancelled: "Future[bool]",
    ) -> None:
        answered = cancelled.exception() is None and not cancelled.result() and future.done()
        if answered and future.exception() is None:
            self.keep(request, future.result())
        settled.set_result(answered)

    def keep(self, request: Asks[Any], answer: object) -> None:
        """Put away what a call has brought that nobody takes."""
        match request:
            case calls.Read(pid):
                with self._lock:
                    self._reads.setdefault(pid, deque()).append(cast("ReadResult", answer))
            case calls.Wait(keep=False):
                result = cast("WaitResult", answer)
                with self._lock:
                    self._waits[result.pid] = result
            case calls.Resume(name):
                with self._lock:
                    self._resumed[name] = cast("Pid", answer)
            case texts.SpawnText():
                self._end(cast("Pid", answer))
            case calls.Fork():
                for pid in cast("tuple[Pid, ...]", answer):
                    self._end(pid)

    def _take_read(self, pid: Pid, max_tokens: int) -> ReadResult:
        kept = self._reads[pid]
        result = kept.popleft()
        if len(result.outputs) > max_tokens:
            kept.appendleft(replace(result, outputs=result.outputs[max_tokens:]))
            result = ReadResult(result.outputs[:max_tokens])
        if not kept:
            del self._reads[pid]
        return result

    def _end(self, pid: Pid) -> None:
        self._port.submit(calls.Kill(pid, calls.Signal.KILL))
        self._port.submit(calls.Wait(pid))
