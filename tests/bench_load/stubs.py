"""Starts stub servers, and plays loads against them."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenix.bench.load.content import Content
from tokenix.bench.load.openai import Asking, OpenAITarget
from tokenix.bench.load.player import Played, Player
from tokenix.bench.load.run import in_loop
from tokenix.bench.load.sessions import Part, Session

START_S = 60.0


class Numbered(Content):
    """Prompts that name their session's number, by which the stub knows what to do."""

    def ids(self, session: Session, turn: int) -> list[int]:
        return [int(session.name.rpartition("-")[2]) - 1, 1, 2, 3]


class Stub:
    def __init__(self, url: str, log: Path, pid: int) -> None:
        self.url, self._log, self.pid = url, log, pid

    def written(self) -> dict[int, dict]:
        """What it has done, by the number of the request."""
        lines = map(json.loads, self._log.read_text().splitlines())
        return {line["number"]: line for line in lines}


@contextlib.contextmanager
def stub(plan: Sequence[Sequence[float]], folder: Path) -> Iterator[Stub]:
    folder.mkdir(exist_ok=True)
    (folder / "plan").write_text("".join(json.dumps(list(line)) + "\n" for line in plan))
    (folder / "log").touch()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        command = [
            sys.executable, str(Path(__file__).with_name("stub.py")), str(listener.fileno()),
            str(folder / "plan"), str(folder / "log"),
        ]  # fmt: skip
        running = subprocess.Popen(command, pass_fds=[listener.fileno()])
        port = listener.getsockname()[1]
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(port))
        yield Stub(url, folder / "log", running.pid)
    finally:
        running.kill()
        running.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as one:
        one.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        return one.recv(12).endswith(b"200")
    return False


def until(true) -> None:
    late_s = time.monotonic() + START_S
    while not true():
        assert time.monotonic() < late_s, f"it happens within {START_S:g} s"
        time.sleep(0.02)


def play(url: str, parts: Sequence[Part], content: Content | None = None, **asking) -> Played:
    async def played() -> Played:
        made = content or Numbered(1, 30_000)
        target = OpenAITarget(url, made, Asking(**asking), "stub", "")
        try:
            async with asyncio.timeout(100):
                return await Player(target, parts).play()
        finally:
            await target.close()

    return in_loop(played)
