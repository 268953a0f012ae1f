"""What a demonstration's machine is asked: long streams that need more memory than there is, and
short questions in bursts.

    streams   |-------------->|----------------->   8 at once; readers are slower than the machine
    questions      |||||        |||||        |||||  bursts of 5
    search               |-<<<                      now and then one that forks into three
    batch     |------------------------------------ nobody reads along
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterator

from tokenix.bench.workload import SUBJECTS, THINGS
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.types import Pid

STREAMS = 8
STREAM_TOKENS = (300, 600)
STREAM_PROMPT = (180, 420)
"""Characters; each is a token there."""
STAGGER_S = 0.8
"""Between the first streams."""
READ_PER_S = 6.0
BURST, BURST_EVERY_S = 5, 7.0
QUESTION_TOKENS = (18, 40)
SEARCH_EVERY_S = 19.0
SEARCH_TOKENS, SEARCH_BRANCHES = 120, 3
BATCH_TOKENS = 600
ENDED_SHOWN_S = 1.5
"""What has ended stays in sight for so long."""
TURN_S = 0.05
TENANTS = ("acme", "globex", "initech")

PAGES, HOST_PAGES, STEP_S = 208, 900, 0.04
"""Of the machine: memory for about five of the streams; 25 steps a second."""


class Load:
    """Asks in a thread of its own until it is closed."""

    def __init__(self, calls: Syscalls, seed: int = 1) -> None:
        self._calls = calls
        self._chance = random.Random(seed)
        self._closed = threading.Event()
        self._streams: dict[Pid, None] = {}
        self._batch: Pid | None = None
        self._searches: dict[Pid, None] = {}
        """Those that have not forked yet."""
        self._ended: dict[Pid, float] = {}
        """When it was seen."""
        self._asked = 0
        self._thread = threading.Thread(target=self._run, name="tokenix-demo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        began_s = time.monotonic()
        streams_s, burst_s, search_s = 0.0, BURST_EVERY_S, SEARCH_EVERY_S / 2
        while not self._closed.wait(TURN_S):
            now_s = time.monotonic() - began_s
            self._reap(now_s)
            if len(self._streams) < STREAMS and now_s >= streams_s:
                self._stream()
                streams_s = now_s + STAGGER_S
            if self._batch is None and now_s > BURST_EVERY_S:
                self._batch = self._spawn(
                    "batch", "nightly", self._long("Summarise every log line about"), BATCH_TOKENS
                )
            if now_s >= burst_s:
                for _ in range(BURST):
                    self._question()
                burst_s += BURST_EVERY_S
            if now_s >= search_s:
                search_s += SEARCH_EVERY_S
                self._search()
            self._fork()

    # ---- what comes ----

    def _stream(self) -> None:
        tenant = TENANTS[self._asked % len(TENANTS)]
        text = self._long(f"Write a long story about {self._chance.choice(SUBJECTS)}.")
        pid = self._spawn("stream", tenant, text, self._chance.randint(*STREAM_TOKENS))
        if pid is not None:
            self._streams[pid] = None

    def _question(self) -> None:
        tenant = self._chance.choice(TENANTS)
        text = f"What is {self._chance.choice(THINGS)}, in one sentence?"
        self._spawn("interactive", tenant, text, self._chance.randint(*QUESTION_TOKENS))

    def _search(self) -> None:
        text = self._long(f"Find three ways to explain {self._chance.choice(THINGS)}.")
        pid = self._spawn("stream", TENANTS[0], text, SEARCH_TOKENS)
        if pid is not None:
            self._searches[pid] = None

    def _fork(self) -> None:
        """A search that has written some forks."""
        for pid in tuple(self._searches):
            with contextlib.suppress(OSError):
                if self._calls.stat(pid).output_tokens >= SEARCH_TOKENS // 4:
                    self._calls.fork(pid, SEARCH_BRANCHES)
                    del self._searches[pid]

    def _spawn(self, qos: str, tenant: str, text: str, tokens: int) -> Pid | None:
        """None: it was refused."""
        self._asked += 1
        try:
            return self._calls.as_tenant(tenant).spawn(
                text, max_tokens=tokens, qos=qos, ignore_eos=True, raw=True,
                tokens_per_s=READ_PER_S, reader="batch" if qos == "batch" else "paced",
            )  # fmt: skip
        except OSError:
            return None

    def _long(self, text: str) -> str:
        """With details, until it is as long as such prompts are."""
        length = self._chance.randint(*STREAM_PROMPT)
        return " ".join([text, *self._details(length - len(text))])[:length]

    def _details(self, length: int) -> Iterator[str]:
        while length > 0:
            detail = f"Mention {self._chance.choice(THINGS)}."
            length -= len(detail) + 1
            yield detail

    # ---- what ends ----

    def _reap(self, now_s: float) -> None:
        for process in self._calls.ps():
            if process.state == "zombie":
                seen_s = self._ended.setdefault(process.pid, now_s)
                if now_s - seen_s >= ENDED_SHOWN_S:
                    self._forget(process.pid)

    def _forget(self, pid: Pid) -> None:
        with contextlib.suppress(OSError):
            self._calls.wait(pid)
        self._ended.pop(pid, None)
        self._streams.pop(pid, None)
        self._searches.pop(pid, None)
        if pid == self._batch:
            self._batch = None
