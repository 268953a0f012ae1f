"""A command queue with its own thread. Commands run one after another, as submitted."""

import queue
import threading
from collections.abc import Callable

from tokenix.drivers.ops import Command


class CommandQueue:
    """Runs `handle` for every command on a daemon thread, and `idle` whenever there is none, until
    that says that there is nothing left to do. Neither may raise."""

    def __init__(
        self,
        name: str,
        handle: Callable[[Command], None],
        start: Callable[[], object] | None = None,
        idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self._waiting: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._handle = handle
        self._start = start
        self._idle = idle
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def put(self, command: Command) -> None:
        self._waiting.put(command)

    def stop(self) -> None:
        """Let the command at hand be the last one. Returns at once."""
        self._closing = True
        self._waiting.put(None)

    def join(self) -> None:
        """After `stop`: wait for the thread to end."""
        assert self._closing, "a queue that was not stopped does not end"
        self._thread.join()

    def _serve(self) -> None:
        if self._start is not None:
            self._start()
        while True:
            while self._waiting.empty() and self._idle():
                pass
            command = self._waiting.get()
            if command is None or self._closing:
                return
            self._handle(command)
