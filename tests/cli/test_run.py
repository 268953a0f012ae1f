"""`tokenix run` on the real model: text, JSON, pipes and interrupts."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenix
from tokenix.cli.answer import RunOptions
from tokenix.cli.chat import Chat
from tokenix.cli.main import main
from tokenix.cli.status import FAILED, INTERRUPTED, OK, PIPE_CLOSED, TERMINATED, USAGE

ROOT = Path(tokenix.__file__).resolve().parent
ENV = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
COMMAND = [sys.executable, "-m", "tokenix.cli.main"]

pytestmark = [
    pytest.mark.timeout(240),
]

SMALL = ["--device-pages", "64"]
STORY = "Tell me a very long story about the sea."


def test_json_and_text_agree(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "What is the capital of France?", "--max-tokens", "12", *SMALL]
    assert main([*argv, "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert len(found["tokens"]) == found["usage"]["output_tokens"] <= 12
    assert found["finish_reason"] in ("stop", "length")
    assert found["model"] == "smollm2"
    timings = found["timings"]
    assert 0 < timings["ttft_s"] <= timings["total_s"] and timings["tokens_per_s"] > 0
    assert {"load_s", "queue_s", "prefill_s", "decode_s", "paused_s"} <= timings.keys()
    assert {"prompt_tokens", "cached_tokens", "preemptions"} <= found["usage"].keys()

    assert main(argv) == OK
    out, err = capsys.readouterr()
    assert out.rstrip("\n") == found["text"].rstrip("\n")
    assert err == "", "no bar and no timings without a terminal"


def test_stop_seed_and_system(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "Count: one, two, three, four,", "--raw", "--max-tokens", "30", "--json", *SMALL]
    assert main(argv) == OK
    text = json.loads(capsys.readouterr().out)["text"]
    stop = text[len(text) // 2 :][:6]
    assert main([*argv, "--stop", stop]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == text[: text.index(stop)]
    assert found["finish_reason"] == "stop"

    argv = ["run", "Say hello.", "--system", "You are a pirate.", "--temperature", "0.9"]
    argv += ["--top-k", "40", "--top-p", "0.9", "--seed", "7", "--max-tokens", "8", *SMALL]
    assert main(argv) == OK
    assert capsys.readouterr().out.strip()


def test_values_that_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "x", "--temperature", "-1", *SMALL]) == USAGE
    assert "temperature" in capsys.readouterr().err
    assert main(["run", "x", "--kv-dtype", "int3", *SMALL]) == USAGE
    assert "int8, fp8, int4" in capsys.readouterr().err


def test_closed_pipe() -> None:
    """`tokenix run ... | head -c 1`"""
    with subprocess.Popen(
        [*COMMAND, "run", STORY, *SMALL], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == PIPE_CLOSED


def test_prompt_from_stdin_and_interrupt() -> None:
    with subprocess.Popen(
        [*COMMAND, "run", *SMALL],
        env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(STORY.encode())
        process.stdin.close()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == INTERRUPTED


def test_a_terminated_command_gives_the_cursor_back() -> None:
    with Terminal([*COMMAND, "run", STORY], kind="xterm") as terminal:
        terminal.expect("packing weights|measuring")
        terminal.terminate()
        assert terminal.wait() == TERMINATED
        assert "\x1b[?25h" in terminal.all and "Traceback" not in terminal.all


def test_chat() -> None:
    """Two turns, one interrupted; a reset; then Ctrl-C twice."""
    with Terminal([*COMMAND, "run", "--max-tokens", "300", *SMALL]) as terminal:
        terminal.expect(">>> ")
        terminal.type("/help\n")
        terminal.expect("/reset.*>>> ")
        terminal.type("Say hello to me in a few words.\n")
        terminal.expect(r"\w+.*\n>>> ")
        terminal.type(STORY + "\n")
        terminal.expect(r"\n\w+ ")
        terminal.type("\x03")
        terminal.expect(r"\(stopped\).*>>> ")
        terminal.type("Name one fish.\n")
        terminal.expect(r"\n.*\w+.*>>> ")
        terminal.type("/reset\n")
        terminal.expect(r"\(new conversation\).*>>> ")
        terminal.type("/bogus\n")
        terminal.expect(r"no command /bogus.*>>> ")
        terminal.press("\x03", r"Ctrl-C once more.*>>> ")
        terminal.press("\x03", r"\n$")
        assert terminal.wait() == INTERRUPTED
        assert "Traceback" not in terminal.all


def test_a_chat_says_who_has_ended_its_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And goes on; its exit code is that of the last answer."""
    with tokenix.boot("smollm2", device_pages=64) as k:

        def kill_all(text: str) -> None:
            for process in k.ps() if text else ():
                k.kill(process.pid, tokenix.SIGKILL)

        for lines, code in (([STORY], FAILED), ([STORY, "Say hello."], OK)):
            left = iter([*lines, "/exit"])
            monkeypatch.setattr("builtins.input", lambda _, left=left: next(left))
            chat = Chat(k, "smollm2", RunOptions({"max_tokens": 200}, quiet=True))
            written: list[str] = []

            def write(text: str, written: list[str] = written) -> None:
                written.append(text)
                if len(written) == 1:
                    kill_all(text)

            monkeypatch.setattr("tokenix.cli.stdout.write", write)
            assert chat.run() == code
            told = capsys.readouterr().err
            assert "was killed" in told and told.count("\n") == 1


class Terminal:
    """A program on a pseudo terminal: type, and wait for what it shows."""

    def __init__(self, command: list[str], kind: str = "dumb") -> None:
        self.all = ""
        self._shown = ""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execve(command[0], command, {**ENV, "TERM": kind})

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._fd)

    def type(self, text: str) -> None:
        self._shown = ""
        os.write(self._fd, text.encode())

    def press(self, key: str, pattern: str) -> None:
        """Type a key until it is noticed. Python's `input` misses a signal between showing the
        prompt and waiting for keys, until the next key comes."""
        for _ in range(20):
            with contextlib.suppress(AssertionError):
                self.type(key)
                return self.expect(pattern, limit_s=3.0)
        raise AssertionError(f"{key!r} has no effect: {self._shown!r}")

    def terminate(self) -> None:
        os.kill(self._pid, signal.SIGTERM)

    def expect(self, pattern: str, limit_s: float = 60.0) -> None:
        """Wait until what came since the last `type` matches, over line ends."""
        for _ in self._read(limit_s):
            if re.search(pattern, self._shown, re.DOTALL):
                return
        raise AssertionError(f"expected {pattern!r}, got {self._shown!r}")

    def wait(self, limit_s: float = 30.0) -> int:
        for _ in self._read(limit_s):
            pass
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _read(self, limit_s: float) -> Iterator[None]:
        end_s = time.monotonic() + limit_s
        yield
        while (left_s := end_s - time.monotonic()) > 0:
            if not select.select([self._fd], [], [], left_s)[0]:
                return
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return  # Linux says EIO when the other end is closed.
            if not data:
                return
            text = data.decode(errors="replace").replace("\r", "")
            self.all += text
            self._shown += text
            yield
