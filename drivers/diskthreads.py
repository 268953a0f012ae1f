"""Threads that wait in system calls of a disk. Daemons, unlike those of `concurrent.futures`, which
the interpreter joins at its end: a disk that hangs for ever must not keep a process from ending."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

Work = tuple[Future[None], Callable[[], None]]


class DiskThreads:
    """`count` threads that take work in the order given. Any thread may submit."""

    def __init__(self, count: int, name: str) -> None:
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}_{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Its end, or what it raised. RuntimeError after `close`."""
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads of the disk have ended")
            self._waiting.put((future, work))
        return future

    def close(self) -> None:
        """Wait for all that was submitted, as long as it takes. Idempotent."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            for _ in self._threads:
                self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (taken := self._waiting.get()) is not None:
            future, work = taken
            try:
                work()
            except BaseException as why:
                future.set_exception(why)
            else:
                future.set_result(None)
