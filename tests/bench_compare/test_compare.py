"""Comparisons of servers that are there, that cannot be had, and that die."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tokenix.bench.compare import machine
from tokenix.bench.compare.figures import FIGURES
from tokenix.bench.compare.itself import Itself
from tokenix.bench.compare.llama import Llama
from tokenix.bench.compare.openvino import OpenVino
from tokenix.bench.compare.peer import ROOT, Cache, Command, Place, Shape, Unavailable
from tokenix.bench.compare.report import render
from tokenix.bench.compare.rounds import Comparison
from tokenix.bench.compare.scenarios import AMPLE, SCENARIOS, TIGHT, Scenario, chosen
from tokenix.bench.load.clients import Clients
from tokenix.cli.main import main

ECHO = Path(__file__).with_name("echo.py")
SMALL = Scenario(
    "eight", "a few", AMPLE, (Clients(concurrency=2, requests=4, input_tokens=8, output_tokens=3),)
)


@dataclass(frozen=True)
class Echo:
    """A peer that is installed already."""

    name: str
    words: tuple[str, ...] = ()
    missing: str = ""

    def install(self) -> None:
        if self.missing:
            raise Unavailable(self.missing)

    def describe(self) -> str:
        return f"{self.name} 1.0"

    def serve(self, shape: Shape, place: Place) -> Command:
        words = (sys.executable, str(ECHO), str(place.port), *self.words)
        return Command(words, ready="/v1/models")


def compare(tmp_path: Path, *peers: Echo, rounds: int = 2) -> tuple[list[dict], list[str]]:
    told: list[str] = []
    comparison = Comparison(peers, [SMALL], rounds, 1, tmp_path / "runs.jsonl", told.append)
    return comparison.run(), told


def test_servers_take_turns(tmp_path: Path) -> None:
    lines, _ = compare(tmp_path, Echo("a"), Echo("b"))
    runs = [(line["round"], line["peer"]) for line in lines if "scenario" in line]
    assert runs == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]
    first = next(line for line in lines if "scenario" in line)
    assert first["summary"]["completed"] == 4 and first["summary"]["total_output_tokens"] == 12
    assert first["usage"]["others"] >= 0


def test_a_scenario_may_have_fewer_rounds(tmp_path: Path) -> None:
    told: list[str] = []
    short = replace(SMALL, name="many", rounds=1)
    path = tmp_path / "runs.jsonl"
    comparison = Comparison([Echo("a")], [short, SMALL], 2, 1, path, told.append)
    lines = comparison.run()
    runs = [(line["round"], line["scenario"]) for line in lines if "scenario" in line]
    assert runs == [(0, "many"), (0, "eight"), (1, "eight")] and comparison.is_whole()
    page = render(
        lines, [short, SMALL], {"machine": "m", "threads": 1, "date": "d", "command": "c"}
    )
    assert "## many: a few; 1 round\n" in page and "## eight: a few; 2 rounds\n" in page
    assert "| many | TTFT P95 ms | the best of the others | 1 | - | not measured |" in page
    assert [one.rounds for one in chosen(["mix:1", "one"], quick=True)] == [1, None]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    before, _ = compare(tmp_path, Echo("a"), rounds=1)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"peer": "a", "scena')  # it was cut short here
    after, told = compare(tmp_path, Echo("a"), rounds=1)
    count = sum("scenario" in line for line in before)
    assert sum("scenario" in line for line in after) == count == 1
    assert not any("starting" in line for line in told), "a server that has nothing to do"
    further, _ = compare(tmp_path, Echo("a"), rounds=2)
    assert [line["round"] for line in further if "scenario" in line] == [0, 1]


def test_who_cannot_be_had_does_not_stop_the_others(tmp_path: Path) -> None:
    lines, _ = compare(
        tmp_path, Echo("gone", missing="it is not built for this machine"),
        Echo("broken", words=("--die",)), Echo("a"), rounds=1,
    )  # fmt: skip
    lost = {line["peer"]: line["unavailable"] for line in lines if "unavailable" in line}
    assert lost["gone"] == "it is not built for this machine"
    assert "the server ended" in lost["broken"] and "IndexError" in lost["broken"]
    assert [line["peer"] for line in lines if "scenario" in line] == ["a"]
    page = render(lines, [SMALL], {"machine": "m", "threads": 1, "date": "d", "command": "c"})
    assert "not measured: it is not built" in page


def test_a_server_that_dies_is_told_and_tried_again(tmp_path: Path) -> None:
    # Two requests warm it as it starts, two before the run.
    lines, _ = compare(tmp_path, Echo("b", words=("--die", "6")), rounds=1)
    (run,) = [line for line in lines if "scenario" in line]
    assert run["summary"]["failed"] > 0 or "failed" in run
    lines, _ = compare(tmp_path, Echo("b", words=("--die", "3")), rounds=2)
    assert any("the server ended" in line.get("failed", "") for line in lines)
    page = render(lines, [SMALL], {"machine": "m", "threads": 1, "date": "d", "command": "c"})
    assert "| b |" in page


def test_a_server_that_is_frozen_uses_no_processor() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_for(lambda: machine.cpu_s([busy.pid]) > 0.05)
        machine.send(busy.pid, signal.SIGSTOP)
        wait_for(lambda: state_of(busy.pid) == "T")
        before = machine.cpu_s([busy.pid])
        meter = machine.Meter(busy.pid)
        used_s = os.times().user
        wait_for(lambda: sum(range(1000)) and os.times().user > used_s + 0.1)
        assert meter.stop().server == 0 and machine.cpu_s([busy.pid]) == before
        machine.send(busy.pid, signal.SIGCONT)
        wait_for(lambda: machine.cpu_s([busy.pid]) > before)
    finally:
        busy.kill()
        busy.wait()


def test_a_tree_has_all_that_descend() -> None:
    code = "import subprocess as s, sys; s.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: len(machine.tree(parent.pid)) == 2)
        assert machine.resident_bytes(machine.tree(parent.pid)) > 1 << 20
        assert parent.pid in machine.tree(os.getpid())
    finally:
        parent.communicate(b"\n")
    assert machine.tree(parent.pid) == [parent.pid], "they have ended"


@pytest.mark.skipif(not os.access("/proc/self/autogroup", os.W_OK), reason="no autogroups here")
def test_a_session_of_its_own_has_the_same_priority() -> None:
    parent = (  # a session too: one that began before autogroups were switched on has none to share
        "import os, pathlib, subprocess as s, sys, time\n"
        "from tokenix.bench.compare import machine\n"
        "child = s.Popen([sys.executable, '-c', 'input()'], stdin=s.PIPE, start_new_session=True)\n"
        "path = pathlib.Path(f'/proc/{child.pid}/autogroup')\n"
        "nice = lambda at: at.read_text().split()[-1]\n"
        "own = nice(pathlib.Path('/proc/self/autogroup'))\n"
        "path.write_text('7')\n"
        "assert nice(path) == '7' != own\n"
        "late_s = time.monotonic() + 60\n"
        "while nice(path) != own:\n"  # who is not root may set it ten times a second
        "    assert time.monotonic() < late_s\n"
        "    machine.share_priority(child.pid)\n"
        "child.communicate(b'')\n"
    )
    subprocess.run([sys.executable, "-c", parent], check=True, start_new_session=True, timeout=100)


def wait_for(true) -> None:
    late_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < late_s


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ---- the report ----


def run_line(peer: str, number: int, tok_s: float, ttft_ms: float, done: int = 4, others=0.0):
    summary = {
        "output_throughput": tok_s, "median_ttft_ms": ttft_ms, "p95_ttft_ms": 2 * ttft_ms,
        "median_tpot_ms": 10.0, "p95_tpot_ms": None, "completed": done, "num_prompts": 4,
    }  # fmt: skip
    usage = {"server": 1.9, "client": 0.1, "others": others}
    return {"peer": peer, "scenario": "eight", "round": number, "summary": summary, "usage": usage}


def test_ratios_are_to_the_best_that_served_everything() -> None:
    lines = [
        *(run_line("tokenix", n, tok_s, 50.0) for n, tok_s in enumerate((180.0, 200.0, 260.0))),
        *(run_line("a", n, 100.0, 75.0, others=0.3 if n else 0.0) for n in range(3)),
        *(run_line("b", n, 50.0, 100.0) for n in range(3)),
        *(run_line("fast", n, 900.0, 1.0, done=3) for n in range(3)),
        *(run_line("tokenix-noswap", n, 800.0, 2.0) for n in range(3)),
    ]
    page = render(lines, [SMALL], {"machine": "m", "threads": 2, "date": "d", "command": "c"})
    cells = [row.split("|") for row in page.splitlines() if "|" in row]
    rows = {row[1].strip(): row[2:] for row in cells}
    assert rows["tokenix"][0].strip() == "200 (180-260)"
    ratios = [cell.strip() for cell in rows["**ratio**"]]
    assert ratios[:4] == ["**2.00**", "**1.50**", "**1.50**", "**1.00**"]
    assert "| eight | output tok/s | the best of the others | 2 | 2.00 | yes |" in page
    assert rows["a"][-2].strip() == "0.30!!", "two rounds were disturbed"


def test_every_scenario_has_figures() -> None:
    assert {scenario.name for scenario in SCENARIOS} == {*FIGURES}
    assert sum(4 * 1064 for _ in range(1)) > TIGHT.kv_tokens, "the long ones do not fit"
    assert len({scenario.seed for scenario in SCENARIOS}) == len(SCENARIOS)
    for scenario in chosen([], quick=True):
        assert sum(group.requests for group in scenario.groups) <= 32
    with pytest.raises(ValueError, match="no scenario 'x'; there are prefill"):
        chosen(["x"], quick=False)


# ---- how peers are started ----


@pytest.mark.parametrize(
    ("shape", "pool"),
    [(AMPLE, ["-np", "32", "-c", "40960"]), (TIGHT, ["-np", "16", "-c", "3072", "-kvu"])],
)  # fmt: skip
def test_llama_has_the_same_memory(shape: Shape, pool: list[str], tmp_path: Path) -> None:
    llama = Llama(Cache(tmp_path), tmp_path / "x.gguf", "Q4_0")
    words = list(llama.serve(shape, Place(1, 2, tmp_path)).words)
    begin = words.index("-np")
    assert words[begin:] == pool


def test_this_server_can_do_without_a_host_tier() -> None:
    place = Place(1, 2, Path("x"))
    words = Itself(swaps=False).serve(TIGHT, place).words
    assert words[-2:] == ("--host-pages", "0") and words[words.index("--device-pages") + 1] == "192"
    assert "--host-pages" not in Itself().serve(TIGHT, place).words


def test_openvino_has_blocks_of_32() -> None:
    peer = OpenVino(Cache(Path("x")), Path("m.gguf"))
    assert peer.serve(TIGHT, Place(1, 2, Path("x"))).words[-3:] == ("96", "16", "2")


def test_a_command_is_shown_without_this_machine(tmp_path: Path) -> None:
    words = (f"{ROOT}/.venv/bin/python", f"{Path.home()}/x.gguf", "9")
    shown = Command(words, {"PYTHONPATH": "/lib", "THREADS": "2"}).shown()
    assert shown == "THREADS=2 .venv/bin/python ~/x.gguf 9"


def test_a_step_that_fails_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"build failed \(3\): no compiler; .*build.log"):
        Cache(tmp_path).step("build", ["sh", "-c", "echo no compiler; exit 3"])
    with pytest.raises(Unavailable, match="missing-program: No such file"):
        Cache(tmp_path).step("x", ["missing-program"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peers", "abacus"], "abacus"), (["--scenarios", "war"], "war"),
        (["--scenarios", "mix:0"], "mix:2"), (["--scenarios", "mix:few"], "mix:2"),
        (["--out", "missing/x.md"], "missing"), (["--rounds", "0"], "--rounds"),
    ],
)  # fmt: skip
def test_what_makes_no_sense(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "compare", *words]) == 2
    assert message in capsys.readouterr().err
