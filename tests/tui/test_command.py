"""`tokenix top` as scripts call it, and its settings."""

import json
import socket
import subprocess
import sys

import httpx
import pytest

from tokenix.cli.status import UsageError
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.server import serve
from tokenix.tests.daemon.daemons import COMMAND, LIMIT_S, command, environment
from tokenix.tui import settings


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine without a model, behind a socket."""
    home = tmp_path_factory.mktemp("machine")
    with rehearse(pipe_tokens=1 << 30) as k, serve(k.port, home / "socket"):
        k.spawn("A prompt that is private. " * 4, max_tokens=60_000)
        yield home


def top(home, *words):
    env = environment(home, TOKENIX_SOCKET=str(home / "socket"), COLUMNS="160")
    return command("top", "--refresh", "0.2", *words, env=env)


def test_one_look_as_json(machine):
    done = top(machine, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["machine"] == "rehearsal"
    assert found["figures"]["frames.total"] == 4096
    assert found["gauges"]["tiers"]["device"]["total"] == 4096
    assert found["gauges"]["out_per_s"] > 0, "of two looks"
    (process,) = found["processes"]
    assert process["pid"] == 1 and process["tokens_per_s"] > 0
    assert "private" not in done.stdout


def test_one_look_as_text(machine):
    done = top(machine, "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "PID" in done.stdout and "device" in done.stdout
    assert "private" not in done.stdout
    assert "private" in top(machine, "--once", "--prompts").stdout


def test_a_record_is_replayed(machine, tmp_path):
    path = tmp_path / "looks.gz"
    assert top(machine, "--json", "--record", str(path)).returncode == 0
    again = command("top", "--replay", str(path), "--json", env=environment(tmp_path))
    assert json.loads(again.stdout)["machine"] == "rehearsal"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--once"], 69, "no daemon listens at"),
        (["--demo"], 2, "needs a terminal; --once and --json print one look"),
        (["--once", "--sort", "luck"], 2, "no column 'luck' to sort by; there are pid, tenant"),
        (["--once", "--refresh", "0"], 2, "refresh"),
        (["--replay", "nowhere"], 1, "nowhere: No such file or directory"),
        (["--replay", "x", "--demo"], 2, "--replay goes neither with"),
        (["--web", "8123", "--once"], 2, "--web goes neither with"),
        (["--web", "99999"], 2, "65535"),
        (["--once", "--demo", "--record", "nowhere/x"], 1, "nowhere/x: No such file"),
        (["--once", "--config", "nowhere.toml"], 1, "nowhere.toml: No such file"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(tmp_path, words, code, said):
    done = command("top", *words, env=environment(tmp_path))
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_scripts_do_not_import_what_draws(machine):
    code = (
        "import sys; from tokenix.cli.main import main\n"
        "assert main(['top', '--once']) == 0\n"
        "sys.exit([name for name in sys.modules if name.partition('.')[0] == 'textual'] != [])"
    )
    env = environment(machine, TOKENIX_SOCKET=str(machine / "socket"))
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=False, capture_output=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert COMMAND[0] == sys.executable


def test_browsers_on_this_machine_are_served(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    words = [*COMMAND, "top", "--demo", "--web", str(port)]
    program = subprocess.Popen(words, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    with program:
        try:
            check_pages(program, port)
            taken = command("top", "--demo", "--web", str(port), env=environment(tmp_path))
            assert taken.returncode == 1
            assert f"port {port} of 127.0.0.1: Address already in use" in taken.stderr
            assert taken.stderr.count("\n") == 1
            program.terminate()
            assert program.wait(LIMIT_S) in (0, 143)
        finally:
            program.kill()


def check_pages(program, port):
    """Its own page is given to its own address only."""
    assert f"http://127.0.0.1:{port}" in program.stderr.readline()
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False) as browser:
        assert "tokenix top" in browser.get("/").text
        assert browser.get("/", headers={"Origin": f"http://localhost:{port}"}).status_code == 200
        assert browser.get("/", headers={"Origin": "http://evil.example"}).status_code == 403
        assert browser.get("/ws", headers={"Host": "evil.example"}).status_code == 403


def test_the_daemon_leaves_the_settings_alone(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('device_pages = 99\n[top]\ntheme = "nord"\n[top.keys]\n"app.quit" = "x"\n')
    done = command("config", "show", "--config", str(path), "--json", env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["device_pages"]["value"] == 99


# ---- settings ----


def written(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return str(path)


def test_flags_win_over_the_file(tmp_path):
    path = written(tmp_path, '[top]\nsort = "wait"\nrefresh = 2\n[top.keys]\n"app.quit" = "x"\n')
    chosen = settings.read(path, refresh=None, sort="age", theme=None, prompts=False)
    assert chosen == settings.Settings(refresh=2.0, sort="age", keys={"app.quit": "x"})


def test_without_a_table_all_is_as_usual(tmp_path):
    assert settings.read(written(tmp_path, "device_pages = 7\n")) == settings.Settings()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[top", "config.toml"),
        ("top = 3\n", r"\[top\]"),
        ("[top]\nrefresh = 0.001\n", "refresh is 0.1 to 3600 seconds, not 0.001"),
        ('[top]\nrefresh = "soon"\n', "refresh"),
        ('[top]\nsort = "luck"\n', "no column 'luck'"),
        ("[top]\ncolour = 1\n", "unknown field `colour`"),
        ('[top.keys]\n"app.quit" = 3\n', "keys"),
    ],
)
def test_settings_that_make_no_sense(tmp_path, text, why):
    with pytest.raises(UsageError, match=why):
        settings.read(written(tmp_path, text))
