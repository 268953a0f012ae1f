"""The program in a real terminal (tmux), looking at a real daemon: keys act on real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tokenix.tests.daemon.daemons import LIMIT_S, ROOT, Daemon, environment, poll

TMUX = shutil.which("tmux")
pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
PRIVATE = "A prompt that nobody is to see"


class Terminal:
    """A tmux server of its own with one window in which a command runs."""

    def __init__(self, env, *words, size=(120, 40)):
        self._name = f"tokenix-{uuid.uuid4().hex}"
        here = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self._env = {**here, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        command = " ".join([sys.executable, "-m", "tokenix.cli.main", *words])
        self._tmux(
            "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]),
            f"{command}; echo code $?; exec sleep 600",
        )  # fmt: skip

    def _tmux(self, *words):
        done = subprocess.run(
            [TMUX, "-L", self._name, "-f", os.devnull, *words], env=self._env, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0 or words[0] == "kill-server", done.stderr
        return done.stdout

    def press(self, *keys):
        self._tmux("send-keys", *keys)

    def resize(self, width, height):
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def shown(self):
        return self._tmux("capture-pane", "-p")

    def wait_for(self, *words):
        end_s = time.monotonic() + LIMIT_S
        while not all(word in (shown := self.shown()) for word in words):
            assert time.monotonic() < end_s, f"{words} have not come about in\n{shown}"
            time.sleep(0.05)
        return shown

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._tmux("kill-server")


def test_a_working_day(tmp_path):
    """One story, as a daemon with a real model takes seconds to start."""
    with Daemon(tmp_path, "--no-http", "--kernel.pipe-tokens=1000000") as daemon:
        daemon.wait_ready()
        with daemon.connect() as k, Terminal(daemon.env, "top", "--sort", "pid") as terminal:
            terminal.wait_for("smollm2", "live", "Memory")
            options = {"max_tokens": 700, "ignore_eos": True, "keep_open": True}
            pids = [k.spawn(PRIVATE, **options) for _ in range(2)]
            shown = terminal.wait_for("LEAD", "runs")
            assert PRIVATE[:8] not in shown
            numbers_agree(daemon, terminal, k, pids)
            terminal.press("s")
            poll(lambda: "signal" in k.stat(pids[0]).held, "SIGSTOP")
            terminal.wait_for("stopped")
            terminal.press("F8")
            poll(lambda: k.stat(pids[0]).nice == 1, "nice")
            terminal.press("c")
            poll(lambda: "signal" not in k.stat(pids[0]).held, "SIGCONT")
            terminal.press("End", "F9", "Down", "Enter")
            terminal.wait_for(f"End process {pids[1]}")
            terminal.press("y")
            poll(lambda: k.stat(pids[1]).state == "zombie", "SIGKILL")
            terminal.resize(80, 24)
            terminal.wait_for("PID CLASS", "? Help  q Quit")


def numbers_agree(daemon, terminal, k, pids):
    """A stopped machine shows what vmstat tells."""
    for pid in pids:
        k.kill(pid, signal.SIGSTOP)
    poll(lambda: k.vmstat()["processes.running"] == 0, "a machine at rest")
    figures = daemon.ask("vmstat", "--raw")
    found = daemon.ask("top", "--refresh", "0.1")
    for name in ("frames.free", "frames.cached", "frames.held", "host.valid", "output_tokens"):
        assert found["figures"][name] == figures[name], name
    device = found["gauges"]["tiers"]["device"]
    used = int(figures["frames.held"] + figures["frames.in_transfer"])
    assert device["held"] + device["transfer"] == used
    terminal.wait_for(f"{used}/{int(figures['frames.total'])}")
    for pid in pids:
        k.kill(pid, signal.SIGCONT)


class Machine:
    """A daemon as far as a client can tell: a machine without a model, in a process of its own."""

    CODE = (
        "import sys, time\n"
        "from tokenix.syscalls.rehearsal import rehearse\n"
        "from tokenix.syscalls.wire.server import serve\n"
        "with rehearse() as k, serve(k.port, sys.argv[1]):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
    )

    def __init__(self, env, path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, str(path)], env=env, stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_a_daemon_goes_comes_back_and_hangs(tmp_path):
    path = tmp_path / "socket"
    env = environment(tmp_path, TOKENIX_SOCKET=str(path))
    with Machine(env, path) as first, Terminal(env, "top") as terminal:
        terminal.wait_for("live", "rehearsal")
        first.kill()
        first.wait()
        terminal.wait_for("trying again")
        with Machine(env, path) as second:
            terminal.wait_for("live")
            second.send_signal(signal.SIGSTOP)
            terminal.wait_for("no answer for")
            terminal.press("3", "1", "s", "q")
            terminal.wait_for("code 0")


def test_a_demonstration_needs_nothing(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib"), "XDG_CONFIG_HOME": str(tmp_path)}
    with Terminal(env, "top", "--demo", "--record", str(tmp_path / "looks")) as terminal:
        terminal.wait_for("What happens", "P paused", "unread text")
        terminal.press("q")
        terminal.wait_for("code 0")
    with Terminal(env, "top", "--replay", str(tmp_path / "looks"), "--speed", "8") as terminal:
        terminal.wait_for("replay 8x", "What happens")
        terminal.press("C-c")
        terminal.press("q")
        terminal.wait_for("code 0")
    assert json.loads((tmp_path / "looks").read_text().split("\n")[0])["format"] == "tokenix top 1"
