"""The threads that talk to a machine, so that the screen never waits for one.

One thread looks, at its own rate; each question of a screen has a thread of its own; what is done
to the machine is done in the order of the keys. They are not waited for at the end: closing the
source wakes them.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import Source, View

Answer = TypeVar("Answer")


class Puller:
    """Looks at a source every `every_s` seconds. `deliver` gets what came, on this thread: a
    snapshot, or the problem. The next look is not taken before `taken` was called for it, so that a
    screen that is stuck asks nothing."""

    def __init__(
        self, source: Source, every_s: float, deliver: Callable[[Snapshot | Exception], None]
    ) -> None:
        self.every_s = every_s
        self._source = source
        self._deliver = deliver
        self._ready = threading.Event()
        self._soon = threading.Event()
        self._stopped = False
        self._asked_s: float | None = None
        self._ready.set()
        self._thread = threading.Thread(target=self._run, name="tokenix-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def silent_s(self) -> float:
        """For how long the source has not answered the look that it was asked for."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    def taken(self) -> None:
        """What was delivered last is on the screen."""
        self._ready.set()

    def hurry(self) -> None:
        """Look at once: something was done to the machine."""
        self._soon.set()

    def stop(self) -> None:
        """Look no more. Does not wait."""
        self._stopped = True
        self._ready.set()
        self._soon.set()

    def _run(self) -> None:
        while not self._stopped:
            self._ready.clear()
            self._asked_s = began_s = time.monotonic()
            try:
                found: Snapshot | Exception = self._source.pull()
            except Exception as problem:
                found = problem
            self._asked_s = None
            if self._stopped:
                return
            self._deliver(found)
            self._ready.wait()
            self._soon.wait(max(0.0, self.every_s - (time.monotonic() - began_s)))
            self._soon.clear()


def ask(
    source: Source,
    work: Callable[[View], Answer],
    then: Callable[[Answer], object],
    failed: Callable[[OSError], object],
    after: threading.Thread | None = None,
) -> threading.Thread:
    """Do `work` in a thread, which is returned, when that of an earlier question has ended; `then`
    or `failed` is called there."""

    def run() -> None:
        if after is not None:
            after.join()
        try:
            answer = work(source.view())
        except OSError as problem:
            failed(problem)
        else:
            then(answer)

    thread = threading.Thread(target=run, name="tokenix-top-ask", daemon=True)
    thread.start()
    return thread
