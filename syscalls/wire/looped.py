"""A connection that is read and written by the event loop of its caller (asyncio): a token is not
handed from a thread to another, which would cost more than all else that is done with it.

    socket readable -> _readable: every frame that has come -> receivers, here and now
    send(f) send(g) send(h)  ->  one write when the loop has done what it is at
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from tokenix.kernel.calls import KernelError, error
from tokenix.syscalls.wire import channel, client
from tokenix.syscalls.wire.channel import Channel
from tokenix.syscalls.wire.client import Line, RemotePort

CLOSE_S = 5.0
"""From another thread, closing waits for the loop at most so long."""


class LoopChannel(Channel):
    """Of the running event loop, on which its receivers are called. Calls may come from elsewhere
    too; who blocks the loop's own thread to wait for an answer waits for ever. It ends with its
    loop."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(path)
        self._loop = loop
        self._ringing = False
        self._writing = False
        """What is unsent waits for room in the socket."""
        self._over: Future[None] = Future()
        self._timer: asyncio.TimerHandle | None = None
        self._descriptor = self._socket.fileno()
        try:
            self._soon(self._begin)
        except RuntimeError:
            self._socket.close()
            what = "this connection is of an event loop that has ended; connect anew in this one"
            raise error(errno.ESHUTDOWN, what) from None

    def close(self) -> None:
        if os.getpid() != self._home:
            return
        if self._is_here() or not self._loop.is_running():
            self._close()
            return
        with contextlib.suppress(RuntimeError, TimeoutError):  # the loop ends at this moment
            self._loop.call_soon_threadsafe(self._close)
            self._over.result(CLOSE_S)

    def _ring(self) -> None:
        if self._ringing:
            return
        self._ringing = True
        try:
            self._soon(self._write)
        except RuntimeError:
            self._lose(self._gone("its event loop has ended"))

    def _soon(self, then: Callable[[], None]) -> None:
        """Have it called on the loop. RuntimeError if that has ended."""
        here = self._is_here()
        (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(then)

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
        self._over.set_result(None)

    # ---- on the loop ----

    def _begin(self) -> None:
        if self.lost is None:
            self._loop.add_reader(self._descriptor, self._readable)
            self._look_later()
            self._write()

    def _readable(self) -> None:
        if self.lost is not None:
            return
        try:
            why = self._receive()
        except BlockingIOError:
            return
        except Exception as problem:
            why = self._explain(problem)
        if why is not None:
            self._lose(why)

    def _write(self) -> None:
        self._ringing = False
        if self.lost is not None:
            return
        try:
            unsent = self._send()
        except Exception as problem:
            self._lose(self._explain(problem))
            return
        if unsent != self._writing:
            self._writing = unsent
            if unsent:
                self._loop.add_writer(self._descriptor, self._write)
            else:
                self._loop.remove_writer(self._descriptor)

    def _close(self) -> None:
        self._write()
        self._lose(self._gone("it was closed"))

    def _look_later(self) -> None:
        patience_s = self._patience_s()
        if patience_s is None:
            patience_s = channel.PING_S
        self._timer = self._loop.call_later(patience_s + 0.001, self._look)

    def _look(self) -> None:
        """Whether it has been silent for too long; not if it was the loop that did not listen."""
        self._readable()
        if self.lost is not None:
            return
        why = self._check_silence()
        if why is not None:
            self._lose(why)
        else:
            self._write()
            self._look_later()


async def connect(path: "str | os.PathLike[str] | None" = None) -> RemotePort:
    """As `client.connect`, on the running event loop."""
    line = Line(path, partial(LoopChannel, loop=asyncio.get_running_loop()))
    try:
        async with asyncio.timeout(client.WELCOME_S):
            line.greet(await asyncio.wrap_future(line.greeting))
    except TimeoutError:
        raise line.unanswered() from None
    except KernelError as problem:
        raise problem.as_os_error() from None
    except BaseException:
        line.close()
        raise
    return RemotePort(line)
