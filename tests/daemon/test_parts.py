"""The parts of a daemon that can be looked at alone."""

import errno
import gc
import io
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from tokenix.cli.table import fitted, seconds, size, table
from tokenix.daemon.doorway import Doorway
from tokenix.daemon.notify import notify
from tokenix.daemon.options import HttpOptions, ServeOptions
from tokenix.daemon.peers import recogniser
from tokenix.daemon.pidfile import PidFile
from tokenix.daemon.places import check_places
from tokenix.daemon.service import Service
from tokenix.daemon.settings import gateway_settings
from tokenix.daemon.signalpipe import SignalPipe
from tokenix.daemon.validity import check_options, machine_options
from tokenix.gateway.garbage import keep_loaded
from tokenix.gateway.logs import bridge_logging, open_log
from tokenix.syscalls.types import TraceEvent


def test_whom_users_are() -> None:
    recognise = recogniser({"4242": "acme", "root": "nobody"})
    assert recognise(4242).tenant == "acme" and not recognise(4242).root
    assert recognise(4243).tenant == "uid-4243"
    assert recognise(0).root and recognise(os.geteuid()).root
    for tenants, number in (({"4242": " "}, errno.EINVAL), ({"no-such-user": "x"}, errno.ENOENT)):
        with pytest.raises(OSError) as caught:
            recogniser(tenants)
        assert caught.value.errno == number


def test_a_pid_file_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "it.pid"
    path.write_text("999999\n")
    mine = PidFile(path)
    assert path.read_text() == f"{os.getpid()}\n" and list(tmp_path.iterdir()) == [path]
    path.write_text("999999\n")
    mine.remove()
    assert path.exists(), "another's is left alone"
    mine = PidFile(path)
    mine.remove()
    mine.remove()
    assert not path.exists()


def test_a_pid_file_says_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write .*no-such-folder/it\.pid") as caught:
        PidFile(tmp_path / "no-such-folder" / "it.pid")
    assert caught.value.errno == errno.ENOENT
    for name, expected in [("a.sock", "a.pid"), ("b", "b.pid"), ("c.d.pid", "c.d.pid.pid")]:
        found = PidFile.beside(tmp_path / name)
        assert found.path == tmp_path / expected
        found.remove()


def test_nothing_but_a_socket_is_replaced_by_one(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("kept")
    mine = tmp_path / "run" / "tokenix.sock"
    for check, uds, said in [
        (check_places, notes, "is there and is no socket"),
        (check_options, f"{tmp_path}/run/../run/tokenix.sock", "are both"),
    ]:
        options = ServeOptions(http=HttpOptions(uds=str(uds)))
        with pytest.raises(OSError, match=said):
            check(mine, options)
        check(mine, replace(options, no_http=True))
    with pytest.raises(OSError, match="is there and is no socket"):
        check_places(notes, ServeOptions())
    assert notes.read_text() == "kept"


def test_packed_weights_are_kept_unless_said_otherwise() -> None:
    for none in (False, True):
        assert machine_options(ServeOptions(no_weight_cache=none))["weight_cache"] is not none


def test_a_full_disk_is_found_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: io.FileIO("/dev/full", "w"))
    with pytest.raises(OSError, match=r"cannot write in .*No space left") as caught:
        check_places(tmp_path / "tokenix.sock", ServeOptions())
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"nope": 3.0}, "no limit 'nope'; there are body_bytes"),
        ({"body_s": float("inf")}, "limits.body_s must be above 0 and finite"),
        ({"body_bytes": float("nan")}, "limits.body_bytes must be above 0"),
        ({"requests": 0.0}, "limits.requests must be above 0"),
        ({"body_bytes": 0.5}, "body_bytes"),
    ],
)
def test_limits_that_are_none(limits: dict[str, float], said: str) -> None:
    with pytest.raises(OSError, match=said) as caught:
        gateway_settings(Path("x.sock"), ServeOptions(http=HttpOptions(limits=limits)))
    assert caught.value.errno == errno.EINVAL


def test_signals_are_waited_for() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with SignalPipe(signal.SIGUSR1, signal.SIGUSR2) as pipe:
        assert pipe.take() == []
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        came: list[signal.Signals] = []
        end_s = time.monotonic() + 60
        while len(came) < 2 and time.monotonic() < end_s:
            came += pipe.take()
        assert set(came) == {signal.SIGUSR1, signal.SIGUSR2}
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    name = f"@tokenix-{os.getpid()}" if abstract else str(tmp_path / "manager")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify("READY=1")  # nobody listens: that is no failure
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0") if abstract else name)
        notify("STOPPING=1")
        assert manager.recv(100) == b"STOPPING=1"


def test_log_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    handlers = logging.getLogger().handlers[:]
    level = logging.getLogger().level
    try:
        log = open_log("info", "json")
        bridge_logging(log, "info")
        log.debug("not this")
        log.info("this", pid=7, path=Path("x"))
        logging.getLogger("elsewhere").warning("%d of them", 3)
        text = open_log("warning", "text")
        text.info("not this")
        text.warning("but this", pid=7)
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
        structlog.reset_defaults()
    this, library, plain = written.getvalue().splitlines()
    assert json.loads(this) | {"timestamp": ""} == {
        "event": "this", "level": "info", "pid": 7, "path": "x", "timestamp": "",
    }  # fmt: skip
    found = json.loads(library)
    assert (found["event"], found["logger"], found["level"]) == (
        "3 of them", "elsewhere", "warning",
    )  # fmt: skip
    assert "but this" in plain and "pid=7" in plain and "\x1b" not in plain


def test_a_doorway_of_two(tmp_path: Path) -> None:
    with Doorway(HttpOptions(port=0)) as door:
        assert door.url == f"http://127.0.0.1:{door.port}" and door.port > 0
        with pytest.raises(OSError, match="in use"):
            Doorway(HttpOptions(port=door.port))
    path = tmp_path / "door"
    with Doorway(HttpOptions(uds=str(path))), pytest.raises(OSError, match="in use"):
        Doorway(HttpOptions(uds=str(path)))
    assert not path.exists()
    with pytest.raises(OSError, match="HTTP"):
        Doorway(HttpOptions(host="no.such.host.invalid"))


def test_tables_end_where_the_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("1", "a", "one"), ("22", "bbb", "a long name indeed")]
    text = table(("PID", "WHO", "NAME"), rows, left=("WHO",))
    assert text == "PID WHO NAME\n  1 a   one\n 22 bbb a long name indeed\n"
    wide = table(
        ("PID", "WHO", "NAME"), [("1", "日本", "x"), ("2", "e\u0301te", "y")], left=("WHO",)
    )
    assert wide == "PID WHO  NAME\n  1 日本 x\n  2 e\u0301te  y\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "10")
    assert fitted(" 22 bbb a long name") == " 22 bbb a "
    assert fitted(" 22 日本語言 a") == " 22 日本語", "in cells"


@pytest.mark.parametrize(
    ("value_s", "shown"),
    [(0, "0.00s"), (9.994, "9.99s"), (12.4, "12s"), (184, "3:04"), (7384, "2h03"),
     (3 * 86400 + 4 * 3600, "3d04")],
)  # fmt: skip
def test_durations(value_s: float, shown: str) -> None:
    assert seconds(value_s) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0B"), (1023, "1023B"), (1536, "1.5K"), (24 << 20, "24.0M"), (5 << 40, "5.0T")],
)
def test_sizes_shown(value: int, shown: str) -> None:
    assert size(value) == shown


def test_a_kernel_that_has_failed_ends_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def trace(self, *_: object) -> tuple[TraceEvent, ...]:
            raise OSError(errno.EIO, "the kernel has failed: out of order")

    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    try:
        log = open_log("info", "json")
        with SignalPipe(signal.SIGUSR1) as pipe:
            service = Service(Broken(), None, None, pipe, log, drain_s=1.0)
            assert service.run() == 1
    finally:
        structlog.reset_defaults()
    assert json.loads(written.getvalue())["error"] == "the kernel has failed: out of order"


def test_what_is_loaded_is_not_looked_through_again() -> None:
    try:
        loaded = keep_loaded()
        assert loaded > 10_000
        assert len(gc.get_objects()) < loaded // 10
    finally:
        gc.unfreeze()
    assert len(gc.get_objects()) >= loaded // 2
