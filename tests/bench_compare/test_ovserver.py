"""The thin server around OpenVINO, with a pipeline that is made up: a step, a token of each."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenix.bench.compare.openvino import SERVER
from tokenix.bench.compare.server import free_port
from tokenix.bench.load.clients import Clients
from tokenix.bench.load.run import Options, run
from tokenix.tests.bench_load.stubs import answers, until

OPENVINO = """
def Tensor(array):
    return array
"""
GENAI = """
import pathlib
import time


class GenerationStatus:
    RUNNING, FINISHED, CANCEL = range(3)


class GenerationConfig:
    pass


class SchedulerConfig:
    pass


class Output:
    def __init__(self, ids):
        self.generated_ids = ids


class Handle:
    def __init__(self, config):
        assert config.ignore_eos and not config.do_sample
        self.left, self.ready, self.status = config.max_new_tokens, [], GenerationStatus.RUNNING

    def can_read(self):
        return bool(self.ready)

    def read(self):
        ids, self.ready = self.ready, []
        return {0: Output(ids)}

    def get_status(self):
        return self.status

    def cancel(self):
        self.status = GenerationStatus.CANCEL


class ContinuousBatchingPipeline:
    def __init__(self, model, scheduler, device, options):
        assert (scheduler.num_kv_blocks, scheduler.max_num_seqs) == (96, 4)
        assert options == {"INFERENCE_NUM_THREADS": 2}
        self.steps, self.handles = pathlib.Path(model), []

    def add_request(self, number, ids, config):
        assert ids.shape[0] == 1 and str(ids.dtype) == "int64"
        self.handles.append(Handle(config))
        return self.handles[-1]

    def step(self):
        time.sleep(0.002)
        self.handles = [one for one in self.handles if one.status == GenerationStatus.RUNNING]
        for one in self.handles:
            one.ready.append(7)
            one.left -= 1
            if one.left == 0:
                one.status = GenerationStatus.FINISHED
        with self.steps.open("a") as file:
            print(len(self.handles), file=file)
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "openvino.py").write_text(OPENVINO)
    (tmp_path / "openvino_genai.py").write_text(GENAI)
    port = free_port()
    words = [sys.executable, "-P", str(SERVER), str(tmp_path / "steps"), str(port), "96", "4", "2"]
    running = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    try:
        until(lambda: answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()


def test_tokens_come_as_they_are_made(served: str) -> None:
    report = run(Options((Clients(requests=6, concurrency=3, output_tokens=20),), url=served))
    assert report.summary["completed"] == 6
    assert report.summary["total_output_tokens"] == 120
    assert report.summary["total_input_tokens"] == 6 * 128
    assert all(len(record.times_s) == 20 for record in report.played.records)


def test_who_hangs_up_is_not_computed_further(served: str, tmp_path: Path) -> None:
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 10_000_000}).encode()
    with socket.create_connection(("127.0.0.1", int(served.rpartition(":")[2])), 30) as peer:
        head = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        peer.sendall(head + body)
        assert b"200 OK" in peer.recv(4096)
    quick = Options((Clients(requests=1, output_tokens=3),), url=served)

    def alone() -> bool:
        assert run(quick).summary["completed"] == 1
        return (tmp_path / "steps").read_text().split()[-1] == "1"

    until(alone)
