"""Readiness, drain, sudden death, and starting again."""

import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenix.cli.status import FAILED, INTERRUPTED, OK, TERMINATED, USAGE
from tokenix.tests.daemon.daemons import Daemon, command, environment

pytestmark = pytest.mark.timeout(400)

STORY = "Tell me a very long story about the sea."


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon of its own, as the test ends it."""
    with Daemon(tmp_path, "--no-http") as running:
        running.wait_ready()
        yield running


def test_ready_files_and_a_second_daemon(tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = tmp_path / "manager"
    with manager, Daemon(tmp_path, "--no-http", NOTIFY_SOCKET=str(address)) as running:
        manager.bind(str(address))
        manager.settimeout(100)
        assert manager.recv(100) == b"READY=1"
        ready = running.wait_ready()
        assert ready["model"] == "smollm2" and ready["socket"] == str(running.socket)
        assert ready["http"] is None and ready["device_pages"] == 64
        assert stat.S_IMODE(running.socket.stat().st_mode) == 0o600
        assert int(running.pid_file.read_text()) == running.process.pid
        loading = running.events("loading")
        assert loading and loading[0].keys() >= {"stage", "done", "total", "percent"}

        second = command("serve", "--no-http", env=running.env)
        assert second.returncode == FAILED and second.stdout == ""
        line = second.stderr.splitlines()[-1]
        assert line.startswith("tokenix: error: ") and str(running.socket) in line
        assert '"loading"' not in second.stderr, "it is told before it loads anything"
        assert running.ask("ps") == []

        running.terminate()
        assert manager.recv(100) == b"STOPPING=1"
        assert running.wait_end() == OK
        assert not running.socket.exists() and not running.pid_file.exists()
        assert running.events("stopped")


def test_a_signal_while_it_loads_ends_it_at_once(tmp_path: Path) -> None:
    for number, code in ((signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)):
        with Daemon(tmp_path, "--no-http") as running:
            running.wait_for("loading")
            running.process.send_signal(number)
            assert running.wait_end() == code
            assert "Traceback" not in running.log_path.read_text()
            assert not running.socket.exists()


def test_a_drain_lets_a_stream_end_and_takes_nothing_new(fresh: Daemon) -> None:
    heard: list[str] = []
    with fresh.connect() as k:
        pid = k.spawn(STORY, max_tokens=120, ignore_eos=True)
        waiting = k.spawn("Hello", max_tokens=4, keep_open=True)
        stopped = k.spawn(STORY, max_tokens=100)
        k.kill(stopped, signal.SIGSTOP)
        assert "".join(k.stream(waiting)), "and now it waits for input"
        stream = k.stream(pid)
        heard.append(next(stream))
        fresh.terminate()
        draining = fresh.wait_for("draining")
        assert draining["processes"] == 1 and draining["signal"] == "SIGTERM"
        with pytest.raises(OSError, match="shutting down"):
            k.spawn("Hi", max_tokens=4)
        assert fresh.ask("stat", str(pid))["pid"] == pid, "it can be looked at"
        heard += stream
        result = k.wait(pid)
    assert result.reason.value == "length" and result.rusage.output_tokens == 120
    assert len("".join(heard)) > 100
    assert fresh.wait_end() == OK
    assert fresh.events("drained") and not fresh.socket.exists()


def test_a_second_signal_ends_it_at_once(fresh: Daemon) -> None:
    with fresh.connect() as k:
        pid = k.spawn(STORY, max_tokens=400, ignore_eos=True)
        stream = k.stream(pid)
        next(stream)
        fresh.terminate()
        fresh.wait_for("draining")
        fresh.terminate()
        assert fresh.wait_end() == OK
        with pytest.raises(OSError):
            list(stream)
    assert fresh.events("second signal: stopping at once")
    assert not fresh.socket.exists() and not fresh.pid_file.exists()


def test_a_drain_has_an_end(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--no-http", "--drain-s", "0.5") as running:
        running.wait_ready()
        with running.connect() as k:
            k.spawn(STORY, max_tokens=400, ignore_eos=True)
            running.terminate()
            assert running.wait_end() == OK
        assert running.events("drain takes too long: stopping")


def test_sudden_death_and_a_clean_start(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--no-http") as running:
        running.wait_ready()
        with running.connect() as k:
            pid = k.spawn(STORY, max_tokens=400, ignore_eos=True)
            stream = k.stream(pid)
            next(stream)
            failures: list[BaseException] = []

            def listen() -> None:
                try:
                    list(stream)
                except OSError as problem:
                    failures.append(problem)

            listener = threading.Thread(target=listen)
            listener.start()
            running.process.send_signal(signal.SIGKILL)
            listener.join(100)
            assert not listener.is_alive() and failures, "a reader is told, and does not hang"
            assert running.wait_end() == -signal.SIGKILL
            assert running.socket.exists() and running.pid_file.exists()
            done = running.command("ps")
            assert "tokenix serve" in done.stderr
            with Daemon(tmp_path, "--no-http") as again:
                again.wait_ready()
                assert int(again.pid_file.read_text()) == again.process.pid
                assert again.ask("ps") == []
                assert k.ps() == (), "the same client finds the new one"


def test_options_come_from_flags_environment_and_file(tmp_path: Path) -> None:
    settings = tmp_path / "settings" / "tokenix" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        'device_pages = 40\npage_tokens = 32\nno_http = true\npolicy = "fcfs"\n'
        "[kernel]\npipe_tokens = 77\n"
    )
    with Daemon(tmp_path, "--policy", "retract", small=False, TOKENIX_DEVICE_PAGES="48") as running:
        ready = running.wait_ready()
        assert ready["device_pages"] == 48 and ready["http"] is None
        values = running.ask("sysctl")
        assert values["policy"] == "retract" and values["kernel.pipe_tokens"] == 77
        with running.connect() as k:
            assert k.model().page_tokens == 32


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-model"], FAILED, "no-such-model"),
        (["--policy", "lifo"], USAGE, "lifo"),
        (["--device-pages", "1.5"], USAGE, "--device-pages"),
        (["--socket-mode", "9"], USAGE, "octal"),
        (["--socket", "x" * 200], FAILED, "107"),
        (["--http.host", "0.0.0.0"], USAGE, "API keys"),
        (["--http.limits.body_bytes", "0.5"], USAGE, "body_bytes"),
        (["--http.limits.nonsense", "1"], USAGE, "nonsense"),
        (["--http.keys", "/nowhere/keys"], FAILED, "/nowhere/keys"),
        (["--sched.nonsense", "1"], USAGE, "nonsense"),
        (["--kernel.max-forks", "0"], USAGE, "max_forks"),
        (["--swap-bytes", "lots"], USAGE, "lots"),
        (["--swap-dir", "."], USAGE, "swap_bytes"),
        (
            ["--swap-dir", "/nope", "--swap-bytes", "1G"],
            FAILED,
            "--swap-dir: cannot write in /nope",
        ),
        (
            ["no-such-model", "--swap-dir", "/tmp", "--swap-bytes", "9999T"],
            FAILED,
            "are free; ask for less",
        ),
        (["--image-dir", "/proc/x"], FAILED, "--image-dir: cannot write in /proc/x"),
        (["--socket", "/proc/x.sock"], FAILED, "--socket: cannot write in /proc"),
        (["--socket", "/etc/passwd"], FAILED, "is no socket"),
        (["--drain-s", "-1"], USAGE, "--drain-s"),
        (["--http.ping-s", "0"], USAGE, "--http.ping-s"),
        (["--http.limits.body_s", "0"], USAGE, "body_s"),
        (["--socket-group", "no-such-group"], FAILED, "no-such-group"),
        (["--tenants.no-such-user", "acme"], FAILED, "no-such-user"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    done = command("serve", *words, env=environment(tmp_path))
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == code and len(errors) == 1, done.stderr
    assert errors[0].startswith("tokenix: error: ") and said in errors[0]
    assert '"loading"' not in done.stderr or words == ["no-such-model"]
