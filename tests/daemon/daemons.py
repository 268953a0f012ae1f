"""`tokenix serve` as a process of its own, and the other commands as its users run them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenix
from tokenix.syscalls import inproc
from tokenix.syscalls.inproc import Syscalls

ROOT = Path(tokenix.__file__).resolve().parent
COMMAND = [sys.executable, "-m", "tokenix.cli.main"]
LIMIT_S = 100.0
"""Nothing takes so long, not even on a machine that does much else."""

PATIENT = [f"--sched.target_{qos}_s=600" for qos in ("interactive", "stream", "batch", "idle")]
"""Nobody is refused, however slow the machine is."""
SMALL = ["--device-pages", "64"]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Of a user whose runtime directory and settings are in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKENIX_")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT / ".lib"),
        "XDG_RUNTIME_DIR": str(home),
        "XDG_CONFIG_HOME": str(home / "settings"),
        **more,
    }


def poll(done: Callable[[], Any], what: str) -> Any:
    """Until `done` gives something true; that."""
    end_s = time.monotonic() + LIMIT_S
    while not (found := done()):
        assert time.monotonic() < end_s, f"{what} has not come about"
        time.sleep(0.05)
    return found


class Daemon:
    """A running `tokenix serve`; killed at the end of the block if it still runs."""

    def __init__(self, home: Path, *flags: str, small: bool = True, **env: str) -> None:
        self.home = home
        self.env = environment(home, **env)
        self.socket = home / "tokenix" / "tokenix.sock"
        self.pid_file = self.socket.with_name("tokenix.pid")
        self.log_path = home / "log"
        arguments = [*COMMAND, "serve", *flags, *(SMALL if small else []), *PATIENT]
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                arguments, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    # ---- its log ----

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of its log with that event."""
        lines = self.log_path.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    def wait_for(self, name: str, count: int = 1) -> dict[str, Any]:
        """The event of that name, when there are so many."""

        def come() -> bool:
            assert self.process.poll() is None or self.events(name), self.log_path.read_text()
            return len(self.events(name)) >= count

        poll(come, name)
        return self.events(name)[-1]

    def wait_ready(self) -> dict[str, Any]:
        return self.wait_for("ready")

    def wait_end(self) -> int:
        return self.process.wait(LIMIT_S)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    # ---- its users ----

    def connect(self) -> Syscalls:
        return inproc.connect(self.socket)

    def clear(self) -> None:
        """End all processes."""
        with self.connect() as k:
            for process in k.ps():
                try:
                    k.kill(process.pid, tokenix.SIGKILL)
                    k.wait(process.pid)
                except (ProcessLookupError, ChildProcessError):
                    continue

    def command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a user of this daemon."""
        return command(*words, env={**self.env, **env})

    def ask(self, *words: str) -> Any:
        """What a command prints with --json, which it must do without complaint."""
        done = self.command(*words, "--json")
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return json.loads(done.stdout)


def command(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        env=env,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
