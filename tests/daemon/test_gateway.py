"""The gateway as the daemon's child: it answers, dies, comes back, and goes with its daemon."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tokenix.cli.status import FAILED, OK
from tokenix.tests.daemon.daemons import Daemon, command, environment, poll

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
    assert refused.status_code == 503 and refused.json()["error"]["message"]
    listener.join(100)
    assert served.wait_end() == OK
    data = [line.removeprefix("data: ") for line in answers if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    finished = [json.loads(line) for line in data[:-1]]
    assert finished[-1]["choices"][0]["finish_reason"] == "length"
    assert not is_alive(served.gateway_pid())


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
