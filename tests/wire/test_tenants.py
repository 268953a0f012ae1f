"""Who a client is, and what it may do: from the peer's uid, never from what it says."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import msgpack

import tokenix
from tokenix.kernel import calls
from tokenix.kernel.calls import Principal
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.texts import SpawnText, Tokenize
from tokenix.syscalls.wire import abi
from tokenix.syscalls.wire.server import principal_of
from tokenix.tests.wire.conftest import Serving
from tokenix.tests.wire.raw import Raw, framed

PROMPT = [1, 2, 3]


def tenant(name: str):  # type: ignore[no-untyped-def]
    return lambda uid: Principal(name)


def test_principals() -> None:
    assert principal_of(0).root and principal_of(os.geteuid()).root
    assert principal_of(4711) == Principal("uid-4711")


def test_a_tenant_sees_only_its_own(serving: Serving, stage: Syscalls) -> None:
    ann = tokenix.connect(serving("ann.sock", tenant("uid-1")).path)
    bob = tokenix.connect(serving("bob.sock", tenant("uid-2")).path)
    mine = ann.spawn(PROMPT, max_tokens=50_000, name="secret plan")
    assert bob.ps() == ()
    for call in (
        lambda: bob.read(mine, block=False),
        lambda: bob.stat(mine),
        lambda: bob.kill(mine, tokenix.SIGKILL),
        lambda: bob.nice(mine, 5),
        lambda: bob.fork(mine),
        lambda: bob.write(mine, [1]),
        lambda: bob.setrlimit(mine, max_tokens=5),
        lambda: bob.trace(mine),
        lambda: bob.suspend(mine, "stolen"),
    ):
        with pytest.raises(OSError) as refused:
            call()
        assert refused.value.errno in (errno.ESRCH, errno.EINVAL)
        assert "secret" not in str(refused.value)
    with pytest.raises(ChildProcessError):
        bob.wait(mine)
    assert ann.stat(mine).tenant == "uid-1"
    ann.close()
    bob.close()


def test_a_flow_of_another_tenant(serving: Serving) -> None:
    with (
        Raw(serving("ann.sock", tenant("uid-1")).path) as ann,
        Raw(serving("bob.sock", tenant("uid-2")).path) as bob,
    ):
        pid = ann.call(SpawnText(PROMPT, {"max_tokens": 5}))
        bob.send(abi.Follow(1, pid, 10))
        assert bob.receive().errno == errno.ESRCH
        assert ann.call(calls.Read(pid)).outputs


@pytest.mark.parametrize("claimed", ["default", "uid-1", "uid-2", ""])
def test_only_root_calls_for_a_tenant(serving: Serving, claimed: str) -> None:
    with Raw(serving("k.sock", tenant("uid-1")).path) as raw:
        fail = raw.call(calls.Ps(), claimed)
        assert isinstance(fail, abi.Fail) and fail.errno == errno.EPERM
        raw.send(abi.Follow(50, 1, 5, claimed))
        assert raw.receive().errno == errno.EPERM


def test_what_only_root_may(serving: Serving, stage: Syscalls, tmp_path: Path) -> None:
    with tokenix.connect(serving("k.sock", tenant("uid-1")).path) as k:
        for call in (
            lambda: k.sysctl("sched.max_running", 1),
            lambda: k.swapon(str(tmp_path), 1 << 20),
            k.swapoff,
            k.trace,
        ):
            with pytest.raises(PermissionError):
                call()
        assert k.spawn(PROMPT, max_tokens=1)
        assert k.port.welcome.peer == abi.Peer("uid-1", False)  # type: ignore[attr-defined]


def test_another_tenants_call_cannot_be_cancelled(serving: Serving, stage: Syscalls) -> None:
    with (
        Raw(serving("ann.sock", tenant("uid-1")).path) as ann,
        Raw(serving("bob.sock", tenant("uid-1")).path) as bob,
    ):
        pid = ann.call(SpawnText(PROMPT, {"max_tokens": 1, "keep_open": True}))
        while ann.call(calls.Read(pid)).turn_ended is None:
            pass
        blocked = ann.ask(calls.Read(pid))
        for number in range(1, 200):
            assert bob.call(calls.CancelCall(number)) is False
        assert ann.call(calls.CancelCall(blocked)) is True


def test_an_error_tells_no_secret(
    serving: Serving, stage: Syscalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong inside is in the log, not in the answer."""

    def broken(*_: object) -> None:
        raise RuntimeError("password at /etc/shadow")

    with Raw(serving("k.sock", tenant("uid-1")).path) as raw:
        monkeypatch.setattr(type(stage.machine.image.tokenizer), "encode", broken)
        fail = raw.call(Tokenize("Hi", {"raw": True}))
        assert isinstance(fail, abi.Fail) and fail.errno == errno.EINVAL
        assert "shadow" not in fail.message and "Traceback" not in fail.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_real_user_is_a_tenant(serving: Serving, tmp_path: Path) -> None:
    server = serving()
    socket = Path(server.path)
    for directory in (socket.parent, *socket.parent.parents):
        if directory.stat().st_uid == 0 and not directory.stat().st_mode & 0o001:
            directory.chmod(0o711)
    socket.chmod(0o666)
    # The library is not readable for every user; the bytes of a hello need none.
    hello = framed(msgpack.encode(abi.Hello(abi.VERSION))).hex()
    program = (
        "import os, socket, sys\n"
        "os.setuid(4711)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        f"s.sendall(bytes.fromhex('{hello}'))\n"
        "sys.stdout.buffer.write(s.recv(4096))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, server.path],
        cwd="/",
        check=True,
        capture_output=True,
    )
    assert b"uid-4711" in done.stdout
