"""The commands of a running daemon, as subprocesses."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tokenix.cli.status import FAILED, INTERRUPTED, NO_DAEMON, OK, PIPE_CLOSED, USAGE
from tokenix.syscalls.types import Pid, ProcessStat, Rusage
from tokenix.tests.daemon.daemons import COMMAND, Daemon, command, environment, poll

pytestmark = pytest.mark.timeout(300)

STORY = "Tell me a very long story about the sea."


@pytest.fixture
def stopped(daemon: Daemon) -> Pid:
    """A detached process that is stopped."""
    with daemon.connect() as k:
        pid = k.spawn(STORY, max_tokens=400, detach=True, nice=3, qos="batch", name="a story")
        k.kill(pid, signal.SIGSTOP)
        return pid


def test_ps_shows_every_column(daemon: Daemon, stopped: Pid) -> None:
    found = daemon.ask("ps")
    assert [process["pid"] for process in found] == [stopped]
    assert found[0].keys() == set(ProcessStat.__struct_fields__)
    assert found[0]["rusage"].keys() == set(Rusage.__struct_fields__)
    done = daemon.command("ps")
    head, line = done.stdout.splitlines()
    assert head.split() == (
        [
            "PID",
            "PPID",
            "TENANT",
            "STATE",
            "QOS",
            "NI",
            "LVL",
            "LEAD",
            "PAGES",
            "RES",
            "CLEAN",
            "TOK/OUT",
            "UNREAD",
            "AGE",
            "QUEUE",
            "NAME",
        ]
    )
    assert line.split()[0] == str(stopped) and line.endswith("a story")
    assert "(signal)" in line and " batch " in line


def test_maps_prefixes_and_plan(daemon: Daemon, stopped: Pid) -> None:
    shown = daemon.ask("maps", str(stopped))
    assert shown["pid"] == stopped and shown["page_tokens"] > 0
    assert sum(each["last"] - each["first"] + 1 for each in shown["ranges"]) == shown["pages"]
    lines = daemon.command("maps", str(stopped)).stdout.splitlines()
    assert lines[0].split() == ["PAGES", "TOKENS", "WHERE", "HOW"]
    assert len(lines) == 1 + len(shown["ranges"])
    assert daemon.ask("plan")["policy"] == "progress"
    assert daemon.command("plan").stdout.startswith("policy   progress")
    assert daemon.ask("prefixes") == [] or daemon.ask("prefixes")[0]["pages"] > 0
    assert daemon.command("prefixes").stdout.split()[:3] == ["HITS", "DEPTH", "PAGES"]
    for args, code, words in (
        (("maps", "999999"), FAILED, "no process 999999"),
        (("prefixes", "--limit", "0"), USAGE, "at least 1"),
    ):
        done = daemon.command(*args)
        assert done.returncode == code and words in done.stderr


def test_ps_tree_sort_and_filter(daemon: Daemon, stopped: Pid) -> None:
    with daemon.connect() as k:
        child, other = k.fork(stopped, 2)
        for pid in (child, other):
            k.kill(pid, signal.SIGSTOP)
        (grandchild,) = k.fork(child)
        k.kill(grandchild, signal.SIGSTOP)
        drawn = daemon.command("ps").stdout.splitlines()[1:]
        pids = [int(line.split()[0]) for line in drawn]
        assert pids == [stopped, child, grandchild, other]
        assert "|- " in drawn[1] and r"|  \_ " in drawn[2] and r"\_ " in drawn[3]
        backwards = daemon.ask("ps", "--sort", "pid", "--reverse")
        assert [p["pid"] for p in backwards] == sorted(
            [stopped, child, grandchild, other], reverse=True
        )
        assert daemon.ask("ps", "--state", "zombie") == []
        assert len(daemon.ask("ps", "--qos", "batch", "--tenant", "default")) == 4
        assert [p["pid"] for p in daemon.ask("ps", str(child), "999")] == [child]
        assert daemon.ask("ps", "--name", "nothing of it") == []
    done = daemon.command("ps", "--sort", "colour")
    assert done.returncode == USAGE and "there are pid, ppid" in done.stderr


def test_signals_nice_and_wait(daemon: Daemon, stopped: Pid) -> None:
    assert daemon.ask("nice", str(stopped), "-5") == {"pid": stopped, "old": 3, "nice": -5}
    assert daemon.ask("stat", str(stopped))["nice"] == -5
    done = daemon.command("nice", str(stopped), "77")
    assert done.returncode == USAGE and "-20" in done.stderr
    text = daemon.command("stat", str(stopped)).stdout
    assert "nice" in text and "held" in text and "signal" in text
    assert daemon.command("kill", "-CONT", str(stopped)).returncode == OK
    poll(lambda: daemon.ask("stat", str(stopped))["output_tokens"] > 2, "output")
    assert daemon.command("kill", "-19", str(stopped)).returncode == OK
    assert daemon.ask("stat", str(stopped))["held"] == ["signal"]
    assert daemon.command("kill", "-s", "SIGTERM", str(stopped)).returncode == OK
    done = daemon.command("wait", str(stopped), "--json")
    assert done.returncode == FAILED, "it was terminated"
    ended = json.loads(done.stdout)
    assert ended.keys() == {"pid", "reason", "error", "rusage"}
    assert ended["reason"] == "terminated" and ended["rusage"]["output_tokens"] > 2
    assert daemon.ask("stat", str(stopped))["state"] == "zombie", "wait has only looked"
    assert daemon.command("wait", str(stopped), "--reap").returncode == FAILED
    done = daemon.command("wait", str(stopped))
    assert done.returncode == FAILED and f"{stopped}" in done.stderr


def test_one_bad_pid_does_not_keep_the_others_from_their_signal(
    daemon: Daemon, stopped: Pid
) -> None:
    done = daemon.command("kill", "-KILL", "999999", str(stopped))
    assert done.returncode == FAILED and "999999" in done.stderr
    assert daemon.ask("stat", str(stopped))["state"] == "zombie"
    done = daemon.command("wait", str(stopped))
    assert done.returncode == FAILED
    assert done.stdout.startswith(f"{stopped}: killed\n") and "page-seconds" in done.stdout


def test_signals_as_json(daemon: Daemon, stopped: Pid) -> None:
    assert daemon.ask("kill", "-l") == {"KILL": 9, "TERM": 15, "CONT": 18, "STOP": 19}
    done = daemon.command("kill", "-STOP", str(stopped), "999999", "--json")
    sent = json.loads(done.stdout)
    assert sent[0] == {"pid": stopped, "signal": "STOP", "error": None}
    assert sent[1]["pid"] == 999999 and "no process 999999" in sent[1]["error"]
    assert done.returncode == FAILED and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["kill"], USAGE, "at least one pid"),
        (["kill", "-s", "HUP", "1"], USAGE, "STOP=19"),
        (["kill", "-77", "1"], USAGE, "no signal '77'"),
        (["kill", "-HUP", "1"], USAGE, "no signal 'HUP'; there are KILL=9"),
        (["kill", "one"], USAGE, "one"),
        (["ps", "--state", "bogus"], USAGE, "there are new, ready"),
        (["stat"], USAGE, "parameter PID"),
        (["suspend", "1"], USAGE, "parameter NAME"),
        (["nice", "1"], USAGE, "parameter VALUE"),
        (["swapon", "/tmp"], USAGE, "parameter SIZE"),
        (["resume"], USAGE, "parameter NAME"),
        (["stat", "999999"], FAILED, "999999"),
        (["strace"], USAGE, "--all"),
        (["strace", "999999"], FAILED, "999999"),
        (["vmstat", "0"], USAGE, "interval"),
        (["vmstat", "1", "0"], USAGE, "count"),
        (["sysctl", "no.such"], FAILED, "no.such"),
        (["sysctl", "kernel.max_forks=3"], FAILED, "only be read"),
        (["sysctl", "policy=lifo"], USAGE, "progress"),
        (["sysctl", "sched.margin_s=-1"], USAGE, "margin_s cannot be -1"),
        (["sysctl", "get"], USAGE, "NAME=VALUE"),
        (["swapon", "nowhere", "many"], USAGE, "is no size"),
        (["swapon", "/nowhere/at/all", "1M"], FAILED, "/nowhere/at/all"),
        (["swapon", "/proc", "10M"], FAILED, "makes no files"),
        (["swapoff"], USAGE, "swap"),
        (["resume", "no-such"], FAILED, "no-such"),
        (["suspend", "999999", "x"], FAILED, "999999"),
    ],
)
def test_errors_are_one_line(daemon: Daemon, words: list[str], code: int, said: str) -> None:
    done = daemon.command(*words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.count("no swap file") <= 1 >= done.stderr.count("cannot be")
    assert done.stderr.startswith("tokenix: error: ") and done.stderr.count("\n") == 1
    assert said in done.stderr


def test_vmstat_and_free(daemon: Daemon, stopped: Pid) -> None:
    done = daemon.command("vmstat", "0.05", "3")
    groups, names, *lines = done.stdout.splitlines()
    assert "procs" in groups and "memory (pages)" in groups
    assert names.split()[:5] == ["r", "w", "p", "t", "free"]
    assert len(lines) == 3 and all(len(line.split()) == len(names.split()) for line in lines)
    one = daemon.ask("vmstat")
    assert one["time_s"] > 0 and one["free"] + one["cache"] + one["held"] == 64
    assert daemon.ask("vmstat", "--raw")["frames.total"] == 64
    tiers = daemon.ask("free")["tiers"]
    assert tiers.keys() == {"device", "host", "file"}
    device = tiers["device"]
    assert device["total"] == 64 == device["used"] + device["free"] + device["cached"]
    rows = daemon.command("free", "--human").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["device", "host", "file"]
    assert "M" in rows[1]


def test_sysctl(daemon: Daemon) -> None:
    values = daemon.ask("sysctl")
    assert values["policy"] == "progress" and values["sched.target_stream_s"] == 600
    assert daemon.ask("sysctl", "set", "sched.margin_s", "0.25") == {"sched.margin_s": 0.25}
    assert daemon.ask("sysctl", "get", "sched.margin_s") == {"sched.margin_s": 0.25}
    assert daemon.command("sysctl", "sched.margin_s=0.3").stdout == "sched.margin_s = 0.3\n"
    assert daemon.command("sysctl", "sched.margin_s").stdout == "sched.margin_s = 0.3\n"
    poll(lambda: daemon.events("sysctl"), "a line in the daemon's log")


def test_strace_follows_until_the_end(daemon: Daemon) -> None:
    with daemon.connect() as k:
        pid = k.spawn("Hi", max_tokens=4, detach=True)
        done = daemon.command("strace", str(pid), "--json")
        assert done.returncode == OK
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events[0]["kind"] == "spawn" and events[-1]["kind"] == "exit"
        assert events[0].keys() == {"seq", "time_s", "pid", "kind", "detail"}
        assert {event["pid"] for event in events} == {pid}
        assert " exit reason=" in daemon.command("strace", str(pid), "--now").stdout
        assert k.wait(pid).pid == pid
    assert daemon.command("strace", "--all", "--now").stdout.count("\n") >= len(events)


def test_strace_all_goes_on_until_interrupted(daemon: Daemon, stopped: Pid) -> None:
    with subprocess.Popen(
        [*COMMAND, "strace", "--all"], env=daemon.env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as following:  # fmt: skip
        assert following.stdout is not None and following.stderr is not None
        assert following.stdout.readline()
        daemon.command("nice", str(stopped), "7")
        while "nice old=3 new=7" not in following.stdout.readline():
            pass
        following.send_signal(signal.SIGINT)
        assert following.wait() == INTERRUPTED and following.stderr.read() == ""


def test_dmesg_shows_what_is_notable(daemon: Daemon, stopped: Pid) -> None:
    daemon.command("kill", "-KILL", str(stopped))
    lines = daemon.command("dmesg").stdout.splitlines()
    mine = [line for line in lines if f" {stopped} " in line]
    assert any("signal" in line for line in mine) and "exit reason=killed" in mine[-1]
    assert not any(" state " in line for line in lines)
    killed = poll(
        lambda: [e for e in daemon.events("process ended") if e["pid"] == stopped], "the log"
    )
    assert killed[0]["reason"] == "killed" and killed[0]["tenant"] == "default"
    assert "name" not in killed[0], "it may be what somebody has asked"


def test_swap_file(daemon: Daemon, tmp_path: Path) -> None:
    opened = daemon.ask("swapon", str(tmp_path), "16M")
    assert 15 << 20 < opened["size_bytes"] <= 16 << 20
    assert daemon.ask("free")["tiers"]["file"]["total"] > 0
    assert daemon.ask("swapoff") == {"size_bytes": 0}


def test_images(daemon: Daemon, stopped: Pid) -> None:
    image = daemon.ask("suspend", str(stopped), "tale")
    assert image["name"] == "tale" and image["size_bytes"] > 0
    assert [known["name"] for known in daemon.ask("images")] == ["tale"]
    assert "tale" in daemon.command("images").stdout
    resumed = daemon.ask("resume", "tale")["pid"]
    assert daemon.ask("stat", str(resumed))["name"] == "a story", "it outlives the command"
    assert daemon.ask("images") == []


def test_images_of_a_tenant(daemon: Daemon) -> None:
    with daemon.connect() as k:
        pid = k.as_tenant("red").spawn(STORY, max_tokens=400, ignore_eos=True, detach=True)
        daemon.ask("suspend", str(pid), "saga")
    for word in ("resume", "unlink"):
        done = daemon.command(word, "saga")
        assert done.returncode == FAILED and done.stdout == "" and done.stderr.count("\n") == 1
        assert "default tenant" in done.stderr and "--tenant" in done.stderr
    assert daemon.ask("images", "--tenant", "blue") == []
    assert [known["name"] for known in daemon.ask("images", "--tenant", "red")] == ["saga"]
    resumed = daemon.ask("resume", "saga", "--tenant", "red")["pid"]
    assert daemon.ask("stat", str(resumed))["tenant"] == "red"
    daemon.ask("suspend", str(resumed), "saga")
    assert daemon.command("unlink", "saga", "--tenant", "red").returncode == OK
    assert daemon.ask("images") == []


def test_attach_shows_what_nobody_has_read(daemon: Daemon) -> None:
    with daemon.connect() as k:
        alone = k.spawn(STORY, max_tokens=12, ignore_eos=True)
        text = "".join(k.stream(alone))
        pid = k.spawn(STORY, max_tokens=12, ignore_eos=True, detach=True)
        k.kill(pid, signal.SIGSTOP)
        daemon.ask("suspend", str(pid), "tale")
        k.wait(pid)
        k.wait(alone)
    resumed = daemon.ask("resume", "tale")["pid"]
    daemon.command("kill", "-CONT", str(resumed))
    done = daemon.command("attach", str(resumed))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (OK, text.strip(), "")
    assert daemon.ask("ps") == [], "it was waited for"
    assert daemon.command("attach", str(resumed)).returncode == FAILED


def test_resume_attached(daemon: Daemon, stopped: Pid) -> None:
    """Ctrl-C leaves it to itself, and who attaches again hears how it ends."""
    daemon.command("kill", "-CONT", str(stopped))
    daemon.ask("suspend", str(stopped), "tale")
    with subprocess.Popen(
        [*COMMAND, "resume", "tale", "--attach"], env=daemon.env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as following:  # fmt: skip
        assert following.stdout is not None and following.stdout.read(1)
        following.send_signal(signal.SIGINT)
        assert following.wait() == INTERRUPTED
    with daemon.connect() as k:  # before it ends by itself, which takes no longer than a command
        (pid,) = [process.pid for process in k.ps() if process.state != "zombie"]
        k.kill(pid)
    done = daemon.command("attach", str(pid))
    assert done.returncode == FAILED and f"process {pid} was terminated" in done.stderr


def test_run_asks_the_daemon(daemon: Daemon) -> None:
    found = daemon.ask("run", "What is the capital of France?", "--max-tokens", "8")
    assert found["model"] == "smollm2" and 0 < found["usage"]["output_tokens"] <= 8
    done = daemon.command("run", "smollm2", "What is the capital of France?", "--max-tokens", "8")
    assert done.stdout.rstrip("\n") == found["text"].rstrip("\n")
    assert daemon.ask("vmstat", "--raw")["spawned"] >= 2
    assert daemon.ask("ps") == [], "it was waited for"
    words = ["run", "./other.gguf", "Hi", "--socket", str(daemon.socket)]
    assert daemon.command(*words).returncode == FAILED
    done = daemon.command("run", "Hi", "--policy", "fcfs", "--socket", str(daemon.socket))
    assert done.returncode == USAGE and "--policy" in done.stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    ("words", "said"),
    [(["kill"], "terminated"), (["kill", "-KILL"], "killed"), (["suspend"], "suspended")],
)
def test_run_says_who_has_ended_it(
    daemon: Daemon, words: list[str], said: str, form: list[str]
) -> None:
    """What there is of the answer is shown, but it is not complete."""
    with subprocess.Popen(
        [*COMMAND, "run", STORY, *form], env=daemon.env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        pid = poll(lambda: [p["pid"] for p in daemon.ask("ps") if p["output_tokens"]], "output")[0]
        name = [f"cut-{len(form)}"] if words == ["suspend"] else []
        assert daemon.command(*words, str(pid), *name).returncode == OK
        shown, told = running.communicate()
        assert running.returncode == FAILED
    assert told.startswith(f"tokenix: error: process {pid} was {said}") and told.count("\n") == 1
    assert json.loads(shown)["finish_reason"] == said if form else shown
    if name:
        daemon.ask("resume", *name)


def test_processes_of_a_killed_command_end(daemon: Daemon) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", STORY], env=daemon.env, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None and running.stdout.read(1)
        assert len(daemon.ask("ps")) == 1
        running.kill()
    poll(lambda: daemon.ask("ps") == [], "the end of its process")


def test_a_closed_pipe_is_no_error(daemon: Daemon, stopped: Pid) -> None:
    with subprocess.Popen(
        [*COMMAND, "strace", "--all"], env=daemon.env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as following:  # fmt: skip
        assert following.stdout is not None and following.stderr is not None
        following.stdout.readline()
        following.stdout.close()
        daemon.command("nice", str(stopped), "5")
        assert following.wait() == PIPE_CLOSED and following.stderr.read() == b""


@pytest.mark.parametrize(
    "words",
    [
        ["ps"], ["stat", "1"], ["wait", "1"], ["kill", "1"], ["nice", "1", "2"], ["vmstat"],
        ["free"], ["strace", "1"], ["dmesg"], ["sysctl"], ["swapon", ".", "1M"], ["images"],
        ["unlink", "x"], ["attach", "1"],
    ],
)  # fmt: skip
def test_without_a_daemon(words: list[str], tmp_path: Path) -> None:
    done = command(*words, env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (NO_DAEMON, "")
    assert "tokenix serve" in done.stderr and str(tmp_path) in done.stderr
    assert done.stderr.count("\n") == 1


def test_names_of_strangers_do_not_reach_the_terminal(daemon: Daemon) -> None:
    with daemon.connect() as k:
        pid = k.spawn("Hi", max_tokens=3, detach=True, name="\x1b[2Jgone\nnext")
        k.kill(pid, signal.SIGSTOP)
        shown = daemon.command("ps").stdout
        assert "\x1b" not in shown and "gone?next" in shown
