"""The socket file: where it is, who may open it, and what an earlier owner has left."""

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import tokenix
from tokenix.syscalls.wire.listener import Listener
from tokenix.syscalls.wire.paths import MAX_PATH_BYTES, socket_path
from tokenix.tests.tidy.tree import ROOT
from tokenix.tests.wire.conftest import Serving


def test_the_path_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENIX_SOCKET", "from-variable.sock")
    assert socket_path() == Path("from-variable.sock")
    assert socket_path("given.sock") == Path("given.sock")
    monkeypatch.delenv("TOKENIX_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_path() == tmp_path / "tokenix" / "tokenix.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert socket_path().name == "tokenix.sock"


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("x" * (MAX_PATH_BYTES + 1), errno.ENAMETOOLONG),
        ("é" * 54, errno.ENAMETOOLONG),
        ("a\0b", errno.EINVAL),
        ("", errno.EINVAL),
    ],
)
def test_a_path_that_no_socket_can_have(path: str, number: int) -> None:
    with pytest.raises(OSError) as refused:
        socket_path(path)
    assert refused.value.errno == number
    with pytest.raises(OSError):
        tokenix.connect(path)


def test_the_longest_path(
    tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "x" * (MAX_PATH_BYTES - len(".lock"))
    listener = Listener(Path(name))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(name)
    listener.close()


def test_modes_and_directories(tmp_path: Path) -> None:
    path = tmp_path / "new" / "k.sock"
    old = os.umask(0)
    try:
        listener = Listener(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(f"{path}.lock").stat().st_mode) == 0o600
    listener.close()
    listener.close()
    assert not path.exists()


def test_a_live_owner_is_not_replaced(serving: Serving) -> None:
    server = serving()
    with pytest.raises(OSError, match=rf"pid {os.getpid()}\) listens at .* already") as refused:
        serving()
    assert refused.value.errno == errno.EADDRINUSE
    with tokenix.connect(server.path) as k:
        assert k.ps() == ()


def test_what_a_dead_owner_has_left_is_replaced(serving: Serving, tmp_path: Path) -> None:
    program = (
        "import os, pathlib\n"
        "from tokenix.syscalls.wire.listener import Listener\n"
        "listener = Listener(pathlib.Path('k.sock'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, check=False)
    left = tmp_path / "k.sock"
    assert stat.S_ISSOCK(left.stat().st_mode)
    with pytest.raises(ConnectionRefusedError, match="no kernel listens on"):
        tokenix.connect(left)
    with tokenix.connect(serving().path) as k:
        assert k.ps() == ()


def test_a_file_is_not_replaced(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "k.sock").write_text("precious")
    with pytest.raises(FileExistsError, match="no socket; it is not replaced"):
        serving()
    assert (tmp_path / "k.sock").read_text() == "precious"


def test_a_successor_keeps_its_file(tmp_path: Path) -> None:
    """Whoever stops late does not remove the file of the one that came after it."""
    path = tmp_path / "k.sock"
    first = Listener(path)
    path.unlink()
    path.write_text("another's")
    first.close()
    assert path.read_text() == "another's"


def test_nobody_there(tmp_path: Path) -> None:
    for path in (tmp_path / "k.sock", tmp_path / "none" / "k.sock"):
        with pytest.raises(FileNotFoundError, match=r"start one: tokenix serve MODEL"):
            tokenix.connect(path)
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        tokenix.connect(tmp_path / "file" / "k.sock")
    with pytest.raises(ConnectionRefusedError):
        tokenix.connect(tmp_path / "file")


def test_a_client_loads_no_kernel(serving: Serving, tmp_path: Path) -> None:
    """A short command is mostly imports."""
    heavy = ["numpy", "tokenizers", "jinja2", "asyncio", "anyio", "tokenix.kernel.core", "ssl"]
    program = (
        "import sys, tokenix\n"
        f"with tokenix.connect({serving().path!r}) as k: k.ps()\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n"
