"""A terminal that nobody reads, as when a link hangs or the flow is stopped by Ctrl-S."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.server import serve
from tokenix.tests.daemon.daemons import environment, poll

QUIET_S = 3.0
"""Thirty looks."""


def test_it_asks_nothing_and_goes_on_when_it_is_read(tmp_path):
    path = tmp_path / "socket"
    with rehearse(4096, 64, 0.01, pipe_tokens=1 << 40) as k, serve(k.port, path):
        for _ in range(40):
            k.spawn([1] * 32, max_tokens=1 << 12, tokens_per_s=1000.0)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        words = [sys.executable, "-m", "tokenix.cli.main", "top", "--refresh", "0.1"]
        env = environment(tmp_path, TOKENIX_SOCKET=str(path), TERM="xterm-256color")
        with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as top:
            os.close(theirs)
            try:
                poll(lambda: b"LEAD" in os.read(ours, 1 << 16), "a table")
                poll(lambda: calls_in(k, QUIET_S) == 0, "an end of questions")
                assert calls_in(k, QUIET_S) == 0
                poll(lambda: (read(ours), calls_in(k, 0.1))[1], "questions again")
                os.write(ours, b"q")
                poll(lambda: (read(ours), top.poll())[1] == 0, "its end")
            finally:
                top.kill()
                os.close(ours)


def calls_in(k, seconds):
    """Syscalls of others."""
    before = k.vmstat()["calls"]
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and k.vmstat()["calls"] == (before := before + 1):
        time.sleep(0.05)
    return k.vmstat()["calls"] - before - 1


def read(terminal):
    """What is there now."""
    while select.select([terminal], [], [], 0)[0]:
        try:
            os.read(terminal, 1 << 16)
        except OSError:  # EIO: the program has ended
            return
