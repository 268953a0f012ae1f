"""A connection with a thread of its own: for blocking calls, and for event loops that are not
asyncio's.
"""

import os
import select
import threading
from pathlib import Path

from tokenix.kernel.calls import KernelError
from tokenix.syscalls.wire.channel import Channel


class ThreadChannel(Channel):
    """Its receivers are called on its thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._bell = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # rung for the hello
        self._rung = True
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tokenix-client", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if os.getpid() != self._home:
            return
        self._closing = True
        with self._lock:
            if self.lost is None:
                self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def leave(self) -> None:
        super().leave()
        os.close(self._bell)

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def _let_go(self) -> None:
        os.close(self._bell)

    # ---- the thread ----

    def _run(self) -> None:
        why: KernelError | None = None
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._socket, select.POLLIN)
        try:
            while why is None:
                why = self._turn(poll)
        except Exception as problem:
            why = self._explain(problem)
        finally:
            self._lose(why or self._gone("the client's thread has ended"))

    def _turn(self, poll: select.poll) -> KernelError | None:
        """Send, wait, receive. Why it is over, or None."""
        closing = self._closing
        unsent = self._send()
        if closing:
            return self._gone("it was closed")
        poll.modify(self._socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        patience_s = self._patience_s()
        events = dict(poll.poll(None if patience_s is None else patience_s * 1000 + 1))
        if self._bell in events:
            os.eventfd_read(self._bell)
            self._rung = False
        if events.get(self._socket.fileno(), 0) & ~select.POLLOUT:
            why = self._receive()
            if why is not None:
                return why
        return self._check_silence()
