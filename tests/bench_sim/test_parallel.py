"""Runs over several processes that end before their time."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tokenix.bench.parallel import run_all
from tokenix.tests.bench_sim.worlds import make_setup, make_trace

LIBRARY = Path(__file__).resolve().parents[2] / ".lib"

KILLED = """
import multiprocessing, os, signal
from tokenix.bench.parallel import run_all
from tokenix.tests.bench_sim.worlds import make_setup, make_trace

def die(index, share):
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    run_all(make_trace(count=20000), [make_setup()] * 2, processes=2, progress=die)
"""


STARTING = """
from tokenix.bench.parallel import run_all
from tokenix.tests.bench_sim.worlds import make_setup, make_trace

if __name__ == "__main__":
    trace = make_trace(count=40000)
    print("begin", flush=True)
    try:
        run_all(trace, [make_setup()] * 2, processes=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_while_workers_start_is_quiet(tmp_path: Path) -> None:
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    with subprocess.Popen(
        [sys.executable, str(script)], env={"PYTHONPATH": str(LIBRARY)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        assert started.stdout.readline() == "begin\n"
        time.sleep(0.2)  # the workers take longer to import what they run
        os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=30)
    assert (out, err) == ("interrupted\n", "")


def test_an_interruption_while_workers_start_waits_for_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, calls = ProcessPoolExecutor.submit, []

    def interrupted(pool: ProcessPoolExecutor, *job: Any) -> Any:
        calls.append(job)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return submit(pool, *job)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_all(make_trace(count=40_000), [make_setup()] * 2, processes=2)
    assert time.monotonic() - started_s < 15, "the run itself takes minutes"
    give_up_s = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < give_up_s:
        time.sleep(0.02)
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_leave_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(LIBRARY)}, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    pids = [int(word) for word in done.stdout.split()]
    assert pids
    give_up_s = time.monotonic() + 10
    while any(map(_runs, pids)) and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
