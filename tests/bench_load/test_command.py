"""`tokenix bench load` as people call it."""

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tokenix.cli.benchload import as_called
from tokenix.cli.main import main
from tokenix.tests.bench_load.replies import answer, answering, plain
from tokenix.tests.bench_load.stubs import stub


def test_the_command_writes_lines_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    with answering(answer) as url:
        words = ["bench", "load", "--url", url, "--requests", "3", "--warmup", "2"]
        assert main([*words, "--json", "--out", str(lines)]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert main([*words, "--machine", "2xcpu-2vcpu"]) == 0
    assert summary["completed"] == 3 and summary["model_id"] == "m"
    assert len([json.loads(line) for line in lines.read_text().splitlines()]) == 3
    out = capsys.readouterr().out
    assert "all at once" in out and "USD for a million" in out


@pytest.mark.parametrize(("refused", "code"), [(2, 0), (3, 1)])
def test_a_load_of_which_all_is_refused_has_failed(
    refused: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(number: int, body: bytes) -> bytes:
        busy = bool(body) and number <= refused
        return plain("429 Busy", b'{"error":{"message":"full"}}') if busy else answer(number, body)

    with answering(reply) as url:
        assert main(["bench", "load", "--url", url, "--requests", "3"]) == code
    assert f"{refused} times: 429: full" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--out", "--html"])
def test_a_full_disk_does_not_cost_the_figures(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as url:
        words = ["bench", "load", "--url", url, "--requests", "3", option, "/dev/full"]
        assert main(words) == 1
    out, err = capsys.readouterr()
    assert "completed 3" in out
    assert f"{option} /dev/full: No space left on device" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--url", "ftp://x"], 2, "http://"),
        (["--url", "http://me:word@x"], 2, "--api-key"),
        (["--input", "many"], 2, "no quantity"),
        (["--rate", "0"], 2, "--rate"),
        (["--api", "chat", "--prompt", "ids"], 2, "token ids"),
        (["--turns", "2", "--prompt", "ids"], 2, "several turns"),
        (["--extra-body", "[1]"], 2, "no JSON object"),
        (["--machine", "abacus"], 2, "abacus"),
        (["--prices", "mine.csv"], 2, "--machine"),
        (["--machine", "h100", "--usd-per-hour", "3"], 2, "give one"),
        (["--trace", "missing.csv"], 1, "missing.csv"),
        (["--clients", "missing.toml"], 1, "missing.toml"),
        (["--clients", "missing.toml", "--rate", "3"], 2, "rate belongs into that file"),
        (["--socket", "missing.sock"], 1, "missing.sock"),
        (["--html", "missing/x.html"], 2, "a folder that exists"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "load", *words]) == code
    err = capsys.readouterr().err
    assert message in err and (err.count("\n") == 1 or err.startswith("╭")), err


@pytest.mark.parametrize("words", [["--api-key", "secret"], ["--api-key=secret"]])
def test_a_page_keeps_no_key(words: list[str]) -> None:
    told = as_called(["bench", "load", *words, "--extra-body", '{"a": 1}'])
    assert told.startswith(f"tokenix bench load --api-key{words[0][9:10] or ' '}*** --extra-body ")
    assert shlex.split(told)[-1] == '{"a": 1}'


@pytest.mark.filterwarnings("error")
def test_a_page_of_nothing_but_failures(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with answering(lambda number, body: b"" if body else answer(number, body)) as url:
        words = ["--url", url, "--requests", "2", "--html", str(page)]
        assert main(["bench", "load", *words]) == 1
    assert "2 times: the server closed the connection" in page.read_text()


def test_a_page_needs_nothing_else(kernel: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    groups = tmp_path / "load.toml"
    groups.write_text(
        '[[clients]]\nname = "chat"\nrate = 50\nrequests = 12\noutput_tokens = "4-20"\n'
        '[[clients]]\nname = "<jobs>"\nconcurrency = 2\nrequests = 6\noutput_tokens = 10\n'
    )
    words = ["--socket", str(kernel), "--clients", str(groups), "--html", str(page)]
    assert main(["bench", "load", *words]) == 0
    text = page.read_text()
    assert text.count("<svg") == 4 and "chat: Poisson, 50/s" in text
    assert "<jobs>" not in text and "&lt;jobs&gt;" in text
    outside = re.findall(r'(?:src|href)="(?!#)([^"]*)"', text)
    assert not outside, "nothing is loaded from elsewhere"
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_load_can_be_ended(number: signal.Signals, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = ["bench", "load", "--url", url, "--model", "m", "--requests", "2"]
        running = subprocess.Popen(
            [sys.executable, "-m", "tokenix.cli.main", *words], stderr=subprocess.PIPE, text=True
        )
        peer, _ = silent.accept()  # asks for the models, and waits
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
        peer.close()
    assert running.returncode == code and not err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_ended_before_an_interruption_is_told(number: signal.Signals, tmp_path: Path) -> None:
    came, over = threading.Event(), threading.Event()

    def reply(count: int, body: bytes) -> bytes:
        if count == 2:  # the models, one request, and now the second
            came.set()
            over.wait(60)
        return answer(count, body)

    lines = tmp_path / "lines"
    with answering(reply) as url:
        words = ["--url", url, "--requests", "9", "--concurrency", "1", "--out", str(lines)]
        running = subprocess.Popen(
            [sys.executable, "-m", "tokenix.cli.main", "bench", "load", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert came.wait(60)
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
        over.set()
    assert running.returncode == 130 and not err
    assert "completed 1" in out and "interrupted; 1 under way" in out
    assert len(lines.read_text().splitlines()) == 1


def test_a_terminal_sees_how_far_it_is(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with stub([[0.2, 0.4, 0.6]] * 30_000, tmp_path) as server:
        words = ["bench", "load", "--url", server.url, "--requests", "3", "--output", "3"]
        running = subprocess.Popen(
            [sys.executable, "-m", "tokenix.cli.main", *words], stderr=slave,
            stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )  # fmt: skip
        os.close(slave)
        seen = b""
        with contextlib.suppress(OSError):  # the last one has closed it
            while data := os.read(master, 4096):
                seen += data
        out, _ = running.communicate(timeout=60)
        os.close(master)
    assert running.returncode == 0 and b"completed 3" in out
    assert b"streaming" in seen and b"tok/s" in seen
