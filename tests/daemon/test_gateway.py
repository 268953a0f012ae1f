"""The gateway as the daemon's child: it answers, dies, comes back, and goes with its daemon."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tokenix.cli.status import FAILED, OK
from tokenix.tests.daemon.daemons import (
    COMMAND,
    PATIENT,
    SMALL,
    Daemon,
    command,
    environment,
    poll,
)

pytestmark = pytest.mark.timeout(400)

STORY = {"role": "user", "content": "Tell me a very long story about the sea."}


class Served(Daemon):
    """A daemon with a gateway, on a port that is free."""

    def __init__(self, home: Path, *flags: str, **env: str) -> None:
        super().__init__(home, "--http.port", "0", *flags, **env)
        self.url = self.wait_ready()["http"]
        self.http = httpx.Client(base_url=self.url, timeout=100)

    def __exit__(self, *problem: object) -> None:
        self.http.close()
        super().__exit__(*problem)

    def gateway_pid(self) -> int:
        return int(self.events("gateway started")[-1]["gateway_pid"])

    def chat(self, **more: object) -> httpx.Response:
        body = {"model": "smollm2", "messages": [STORY], "max_tokens": 8, **more}
        return self.http.post("/v1/chat/completions", json=body)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as running:
        yield running


def is_alive(pid: int) -> bool:
    """Whether it runs: an orphan that has ended may stay a zombie where nobody reaps it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_it_dies_and_comes_back(served: Served) -> None:
    assert served.chat().json()["usage"]["completion_tokens"] == 8
    first = served.gateway_pid()
    assert os.getpgid(first) == first, "Ctrl-C in a terminal is for the daemon"
    assert os.getsid(first) == os.getsid(served.process.pid), "one priority for both"
    kept = served.command("ps", "--json")
    os.kill(first, signal.SIGKILL)
    poll(lambda: not is_alive(first), "its end")
    models = httpx.get(f"{served.url}/v1/models", timeout=100)
    assert models.json()["data"][0]["id"] == "smollm2", "who comes meanwhile waits"
    assert served.gateway_pid() != first
    died = served.events("gateway died")
    assert died[0]["status"] == "signal 9"
    assert kept.returncode == served.command("ps").returncode == OK
    poll(lambda: len(served.events("gateway started")) == 2, "the log")
    body = {"model": "smollm2", "messages": [STORY], "max_tokens": 2}
    assert httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=100).is_success


def test_its_requests_die_with_it(served: Served) -> None:
    with pytest.raises(httpx.HTTPError), served.http.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": "smollm2", "messages": [STORY], "max_tokens": 400, "stream": True,
            "ignore_eos": True,
        },
    ) as answer:  # fmt: skip
        lines = answer.iter_lines()
        next(lines)
        assert [p["name"] for p in served.ask("ps")] == [answer.headers["x-request-id"]]
        os.kill(served.gateway_pid(), signal.SIGKILL)
        list(lines)
    poll(lambda: served.ask("ps") == [], "the end of its processes")
    ended = poll(lambda: served.events("process ended"), "the log")
    assert ended[0]["name"] == answer.headers["x-request-id"]


def test_a_drain_lets_an_answer_end(served: Served) -> None:
    answers: list[str] = []
    body = {
        "model": "smollm2", "messages": [STORY], "max_tokens": 100, "stream": True,
        "ignore_eos": True,
    }  # fmt: skip
    started = threading.Event()

    def listen() -> None:
        with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                answers.append(line)
                started.set()

    listener = threading.Thread(target=listen)
    listener.start()
    assert started.wait(100)
    served.terminate()
    served.wait_for("draining")
    refused = served.chat()
    assert refused.status_code == 503
    assert "shutting down and takes no new requests" in refused.json()["error"]["message"]
    health = served.http.get("/health/ready")
    assert (health.status_code, health.json()) == (503, {"status": "shutting down"})
    listener.join(100)
    assert served.wait_end() == OK
    data = [line.removeprefix("data: ") for line in answers if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    finished = [json.loads(line) for line in data[:-1]]
    assert finished[-1]["choices"][0]["finish_reason"] == "length"
    assert not is_alive(served.gateway_pid())


@pytest.mark.parametrize("signals", [1, 2])
def test_the_limit_and_a_second_signal_end_a_stream_with_its_error(
    signals: int, tmp_path: Path
) -> None:
    """One deadline for daemon and gateway, and none at the second signal."""
    limit_s = 1.0 if signals == 1 else 600.0
    body = {"model": "smollm2", "messages": [STORY], "max_tokens": 900, "stream": True,
            "ignore_eos": True}  # fmt: skip
    with Served(tmp_path, "--drain-s", str(limit_s)) as served:
        with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            served.terminate()
            served.wait_for("draining")
            if signals == 2:
                served.terminate()
            *_, error, done = [line for line in lines if line.startswith("data: ")]
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "service_unavailable"
        assert served.wait_end() == OK
        assert not is_alive(served.gateway_pid())
        assert not served.events("gateway does not end; it is killed")
        (stopped,) = served.events("gateway stopped")
        assert stopped["status"] == "exit 0"


def test_a_gateway_that_comes_back_in_a_drain_takes_nothing(served: Served) -> None:
    with served.connect() as k:
        k.spawn("Tell me a story.", max_tokens=900, ignore_eos=True)
        served.terminate()
        served.wait_for("draining")
        os.kill(served.gateway_pid(), signal.SIGKILL)
        served.wait_for("gateway started", 2)
        with httpx.Client(base_url=served.url, timeout=100) as client:
            assert client.get("/health/ready").json() == {"status": "shutting down"}
    assert served.wait_end() == OK, "its process ends with its connection"


@pytest.mark.parametrize("reader", ["gone", "full"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_log_that_cannot_be_written_changes_nothing(
    reader: str, end: signal.Signals, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    read, write = os.pipe() if reader == "gone" else (-1, os.open("/dev/full", os.O_WRONLY))
    env = environment(tmp_path)
    daemon = subprocess.Popen(
        [*COMMAND, "serve", "--http.port", str(port), *SMALL, *PATIENT],
        env=env, stdin=subprocess.DEVNULL, stdout=write, stderr=write,
    )  # fmt: skip
    os.close(write)
    if read >= 0:
        os.close(read)
    try:
        url = f"http://127.0.0.1:{port}/health/ready"

        def is_ready() -> bool:
            assert daemon.poll() is None
            try:
                return httpx.get(url, timeout=100).status_code == 200
            except httpx.HTTPError:
                return False

        poll(is_ready, "readiness")
        (gateway,) = children(daemon.pid)
        daemon.send_signal(end)
        assert daemon.wait(100) == (OK if end == signal.SIGTERM else -end)
        poll(lambda: not is_alive(gateway), "the end of the gateway")
        if end == signal.SIGKILL:
            return
        assert not (tmp_path / "tokenix" / "tokenix.sock").exists()
        assert not (tmp_path / "tokenix" / "tokenix.pid").exists()
    finally:
        daemon.kill()
        daemon.wait()


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in found.split()]


def test_it_goes_with_its_daemon(served: Served) -> None:
    child = served.gateway_pid()
    served.process.kill()
    served.wait_end()
    poll(lambda: not is_alive(child), "the end of the gateway")
    port = served.url.rpartition(":")[2]
    with Daemon(served.home, "--http.port", port) as again:
        assert again.wait_ready()["http"] == served.url
        assert again.ask("ps") == []
        assert httpx.get(f"{served.url}/health/ready", timeout=100).status_code == 200


def test_keys_of_the_usual_file_are_needed(tmp_path: Path) -> None:
    env = environment(tmp_path)
    secret = command("keys", "new", "--tenant", "acme", env=env).stdout.strip()
    with Served(tmp_path) as running:
        assert running.http.get("/v1/models").status_code == 401
        running.http.headers["Authorization"] = f"Bearer {secret}"
        assert running.chat().status_code == 200
        assert running.http.get("/health/live").status_code == 200


def test_a_path_instead_of_a_port(tmp_path: Path) -> None:
    door = tmp_path / "http.sock"
    for _ in range(2):  # the second finds the file of the first
        with Daemon(tmp_path, "--http.uds", str(door)) as running:
            assert running.wait_ready()["http"] == f"unix:{door}"
            assert door.stat().st_mode & 0o777 == 0o600
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(door))) as client:
                assert client.get("http://localhost/v1/models").status_code == 200


def test_a_port_that_is_taken(served: Served, tmp_path: Path) -> None:
    port = served.url.rpartition(":")[2]
    home = tmp_path / "other"
    home.mkdir()
    done = command("serve", "--http.port", port, env=environment(home))
    assert done.returncode == FAILED and done.stderr.count("\n") == 1
    assert port in done.stderr and "in use" in done.stderr
