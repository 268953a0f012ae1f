"""Loads against servers that behave, and that do not."""

import json
import socket
import threading
from pathlib import Path

import pytest

from tokenix.bench.load.clients import Clients
from tokenix.bench.load.content import Content
from tokenix.bench.load.events import Events
from tokenix.bench.load.http import Pool
from tokenix.bench.load.openai import Asking
from tokenix.bench.load.run import Options, Report, run
from tokenix.bench.load.sessions import make_parts
from tokenix.tests.bench_load.replies import CHUNK, GOOD, answering, events, plain, until_closed
from tokenix.tests.bench_load.stubs import play, stub

QUICK = [[0.05, 0.06, 0.07]] * 64


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
    ("reply", "ending", "tokens"),
    [
        (until_closed(*GOOD), "stop", 1),
        (events(CHUNK % ("a", '"eos_token"')), "stop", 1),
        (events(*GOOD[:2], '{"choices":null,"usage":{"completion_tokens":7}}'), "stop", 7),
        (events(CHUNK % ("a", '"length"'), '{"choices":[],"usage":null}'), "length", 1),
    ],
)
def test_other_servers_have_habits_of_their_own(reply: bytes, ending: str, tokens: int) -> None:
    group = Clients(requests=1, concurrency=1)
    with answering(lambda number, body: reply) as url:
        (record,) = play(url, make_parts((group,), 1), Content(1, 30_000)).records
    assert (record.ending, record.output_tokens, record.error) == (ending, tokens, "")
    assert record.counted == (tokens == 7)


def test_a_key_that_is_missing_is_asked_for() -> None:
    reply = plain("401 No", b'{"error":{"message":"no key"}}')
    with (
        answering(lambda number, body: reply) as url,
        pytest.raises(ValueError, match=r"401: no key; give --api-key"),
    ):
        run(Options((Clients(requests=1),), url=url))


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
        (until_closed(CHUNK % ("a", "null")), "failed", "finish_reason missing"),
        (b"HTTP/1.0 200 OK\r\ncontent-", "failed", "closed the connection before"),
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
    whole = b"\r\n\r\n" in reply
    assert record.status == (int(reply[9:12]) if whole else 0)


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
