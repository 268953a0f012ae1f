"""Loads against servers that behave, and that do not."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tokenix.bench.load.clients import Clients
from tokenix.bench.load.content import Content
from tokenix.bench.load.events import Events
from tokenix.bench.load.http import Pool
from tokenix.bench.load.openai import Asking
from tokenix.bench.load.run import Options, Report, run
from tokenix.bench.load.sessions import make_parts
from tokenix.cli.main import main
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.server import serve
from tokenix.tests.bench_load.stubs import play, stub

QUICK = [[0.05, 0.06, 0.07]] * 64
CHUNK = '{"choices":[{"index":0,"text":"%s","finish_reason":%s}]}'


@contextlib.contextmanager
def answering(reply: Callable[[int, bytes], bytes]) -> Iterator[str]:
    """A server that answers its n-th request with raw bytes, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        number = 0
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                data = b""
                while b"\r\n\r\n" not in data:
                    data += peer.recv(65536)
                head, _, body = data.partition(b"\r\n\r\n")
                wanted = int(head.lower().partition(b"content-length:")[2].split(b"\r")[0] or b"0")
                while len(body) < wanted:
                    body += peer.recv(65536)
                peer.sendall(reply(number, body))
                number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(30)


def plain(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def events(*data: str, cut: bool = False) -> bytes:
    body = "".join(f"data: {one}\r\n\r\n" for one in data).encode()
    if cut:
        return plain("200 OK", body + b"x" * 50, "text/event-stream")[:-50]
    return plain("200 OK", body, "text/event-stream")


GOOD = (CHUNK % ("a", "null"), CHUNK % ("", '"stop"'), "[DONE]")


def test_a_closed_loop_never_has_more_under_way(tmp_path: Path) -> None:
    parts = make_parts((Clients(requests=12, concurrency=3, output_tokens=3),), 1)
    with stub(QUICK, tmp_path) as server:
        played = play(server.url, parts)
        done = server.written()
    spans = sorted((line["came_s"], line["written_s"][-1]) for line in done.values())
    for came_s, _ in spans:
        assert sum(begin <= came_s < end for begin, end in spans) <= 3
    assert len(played.records) == 12 and all(record.finished for record in played.records)


def test_what_a_bound_holds_back_counts_from_when_it_was_due(tmp_path: Path) -> None:
    group = Clients(requests=6, rate=1000.0, concurrency=1, output_tokens=3)
    with stub(QUICK, tmp_path) as server:
        played = play(server.url, make_parts((group,), 1))
    last = max(played.records, key=lambda record: record.sent_s)
    assert last.sent_s - last.due_s > 0.25, "five others came before it, 70 ms each"
    assert last.ttft_s > last.sent_s - last.due_s


def test_groups_run_beside_each_other(tmp_path: Path) -> None:
    groups = (
        Clients(name="a", requests=4, rate=50.0, output_tokens=3),
        Clients(name="b", requests=6, concurrency=2, output_tokens=3, start_s=0.1),
    )
    with stub(QUICK, tmp_path) as server:
        played = play(server.url, make_parts(groups, 1))
    ends = [(record.clients, record.finished) for record in played.records]
    assert sorted(ends) == [("a", True)] * 4 + [("b", True)] * 6
    assert min(record.due_s for record in played.records if record.clients == "b") >= 0.1


def test_readers_that_leave_hang_up(tmp_path: Path) -> None:
    plan = [[0.02 * number for number in range(1, 41)]] * 4
    group = Clients(requests=4, concurrency=4, output_tokens=20, leaving_share=1.0)
    with stub(plan, tmp_path) as server:
        played = play(server.url, make_parts((group,), 1))
        assert not server.written(), "the server never came to an end"
    for record in played.records:
        assert record.ending == "left" and not record.error
        assert len(record.times_s) == record.reader.after_tokens


def test_readers_that_stall_do_not_read(tmp_path: Path) -> None:
    plan = [[0.01 * number for number in range(1, 21)]] * 2
    group = Clients(requests=2, concurrency=2, output_tokens=20, stalled_share=1.0, stall_s=0.6)
    with stub(plan, tmp_path) as server:
        played = play(server.url, make_parts((group,), 1))
    for record in played.records:
        assert record.ending == "length" and len(record.times_s) == 20
        assert max(record.itls_s) > 0.5
        assert record.itls_s.index(max(record.itls_s)) == record.reader.after_tokens - 1


@pytest.mark.parametrize(
    ("reply", "ending", "words"),
    [
        (plain("500 No", b'{"error":{"message":"it is\\nbroken"}}'), "failed", "500: it is broken"),
        (plain("404 No", b"nothing here"), "failed", "404: nothing here"),
        (plain("429 Busy", b'{"error":{"message":"full"}}'), "refused", "429: full"),
        (plain("503 Busy", b""), "refused", "503: an empty answer"),
        (b"", "failed", "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n", "failed", "no HTTP"),
        (events(*GOOD, cut=True), "failed", "closed the connection before"),
        (events(CHUNK % ("a", "null")), "failed", "finish_reason missing"),
        (events(CHUNK % ("a", '"error"')), "failed", "finish_reason error"),
        (events('{"error":{"message":"Context size"}}', "[DONE]"), "failed", "Context size"),
        (events('{"choices": 3}'), "failed", "not a chunk"),
        (plain("200 OK", b'{"choices":[{"text":"a"}]}'), "failed", "no stream of events"),
        (events("{"), "failed", "not a chunk"),
    ],
)
def test_what_servers_do_wrong_is_in_the_record(reply: bytes, ending: str, words: str) -> None:
    group = Clients(requests=1, concurrency=1)
    with answering(lambda number, body: reply) as url:
        (record,) = play(url, make_parts((group,), 1), Content(1, 30_000)).records
    assert record.ending == ending and words in record.error and "\n" not in record.error
    came = sum(b'"text":"a"' in line for line in reply.split(b"\n") if line.startswith(b"data"))
    assert record.output_tokens == came == len(record.times_s), "what came before counts"
    assert record.status == (int(reply[9:12]) if reply.startswith(b"HTTP") else 0)


def test_a_request_without_an_end_is_given_up() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    with silent:
        played = play(url, make_parts((Clients(requests=1),), 1), Content(1, 30_000), limit_s=0.3)
    assert "no end within 0.3 s" in played.records[0].error


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/proxy/v1"])
def test_addresses_with_and_without_the_version(path: str) -> None:
    head = Pool("http://127.0.0.1:1" + path).head("/v1/completions", {}, 3)
    prefix = b"/proxy" if "proxy" in path else b""
    assert head.startswith(b"POST " + prefix + b"/v1/completions HTTP/1.1\r\nHost: 127.0.0.1:1")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nobody_listens(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OSError, match=rf"127\.0\.0\.1 port {port}: Connection refused"):
        run(Options((Clients(requests=1),), url=f"{scheme}://127.0.0.1:{port}"))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_says_nothing_is_not_waited_for(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OSError, match=r"no answer to /v1/models within 0\.3 s"):
            run(Options((Clients(requests=1),), url=url, asking=Asking(limit_s=0.3)))


def test_no_tls_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plainly:
        port = plainly.getsockname()[1]

        def work() -> None:
            peer, _ = plainly.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 400 No\r\n\r\n")

        thread = threading.Thread(target=work)
        thread.start()
        with pytest.raises(OSError, match=rf"port {port}: no TLS: WRONG_VERSION_NUMBER"):
            run(Options((Clients(requests=1),), url=f"https://127.0.0.1:{port}"))
        thread.join(30)


def test_a_session_says_again_what_was_said() -> None:
    bodies: list[dict] = []

    def reply(number: int, body: bytes) -> bytes:
        if not body:
            return plain("200 OK", b'{"data":[{"id":"m"}]}')
        bodies.append(json.loads(body))
        delta = '{"choices":[{"delta":%s,"finish_reason":%s}]}'
        return events(
            delta % ('{"role":"assistant","content":""}', "null"),
            delta % (f'{{"content":"answer {number}"}}', "null"), delta % ("{}", '"stop"'),
        )  # fmt: skip

    group = Clients(requests=1, turns=3, input_tokens=5, nice=3, qos="batch")
    asking = Asking(api="chat", prompt="text", extra={"top_k": 1})
    with answering(reply) as url:
        report = run(Options((group,), url=url, asking=asking))
    assert report.summary["completed"] == 3
    assert [len(record.times_s) for record in report.played.records] == [1, 1, 1], "no role"
    roles = [message["role"] for message in bodies[2]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert bodies[2]["messages"][1]["content"] == "answer 1"
    assert bodies[2]["messages"][:3] == bodies[1]["messages"]
    assert (bodies[0]["priority"], bodies[0]["service_tier"], bodies[0]["top_k"]) == (3, "flex", 1)
    assert len(bodies[0]["messages"][0]["content"].split()) == 5


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_may_be_cut_anywhere(size: int) -> None:
    data = (
        b": hi\n\ndata: "
        + (CHUNK % ("x\\n", "null")).encode()
        + b"\n\nevent: y\r\ndata:[DONE]\r\n\r\n"
    )
    reader = Events()
    chunks = [
        chunk
        for begin in range(0, len(data), size)
        for chunk in reader.feed(data[begin : begin + size])
    ]
    assert [chunk.choices[0].said for chunk in chunks] == ["x\n"] and reader.done


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with (
        rehearse(step_s=0.005) as k,
        serve(k.port, tmp_path_factory.mktemp("s") / "k.sock") as server,
    ):
        yield server.path


def at_socket(kernel: Path, *groups: Clients) -> Report:
    return run(Options(groups, socket=kernel))


def test_a_kernel_is_a_target(kernel: Path) -> None:
    report = at_socket(kernel, Clients(requests=5, rate=20, turns=2, output_tokens=8))
    assert report.summary["completed"] == 10
    assert report.summary["total_output_tokens"] == 80
    assert report.summary["backend"] == "tokenix-socket"


def test_a_kernel_sees_its_readers_leave(kernel: Path) -> None:
    groups = (
        Clients(name="l", requests=3, output_tokens=200, leaving_share=1.0),
        Clients(name="s", requests=2, output_tokens=40, stalled_share=1.0, stall_s=0.4),
    )
    report = at_socket(kernel, *groups)
    assert report.summary["left"] == 3 and report.summary["completed"] == 2
    import tokenix

    with tokenix.connect(kernel) as k:
        assert k.ps() == (), "nothing of the load is left"


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


def answer(number: int, body: bytes) -> bytes:
    return events(*GOOD) if body else plain("200 OK", b'{"data":[{"id":"m"}]}')


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
