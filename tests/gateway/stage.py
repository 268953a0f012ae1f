"""A daemon for tests, without a model's weights: a kernel in a process of its own on the simulated
device, with the tokenizer and the template of the real model, and the gateway in front of it.

    with Stage(folder) as stage:
        Wire(stage.port).send("GET", "/v1/models", Authorization=f"Bearer {TENANT_KEY}")
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tokenix
from tokenix.gateway.keys import hash_key
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import MODEL, PATIENCE_S, Wire, until

TENANT_KEY, ROOT_KEY, METRICS_KEY = "tkx-of-a-tenant", "tkx-of-root", "tkx-of-metrics"
SECRET = "what-only-the-environment-holds"
LIMITS = {"header_s": 2.0, "body_s": 2.0, "keep_alive_s": 3.0}
"""So that what hangs is soon let go."""
CONTEXT_TOKENS = 512
START_S = 240.0
"""Within which both serve, on a busy machine too."""


def play(path: str) -> None:
    """Be the kernel: serve at `path` until standard input ends."""
    from tokenix.drivers.sim.costs import CostModel
    from tokenix.drivers.sim.device import SimDevice
    from tokenix.drivers.sim.realtime import RealTimeDevice
    from tokenix.kernel.boot import Machine, make_kernel
    from tokenix.kernel.loop import Pump
    from tokenix.kernel.params import Params
    from tokenix.models.registry import load_image
    from tokenix.sched.tunables import Tunables, retune
    from tokenix.syscalls.port import LocalPort
    from tokenix.syscalls.wire.server import serve

    image = load_image(MODEL)
    cost = CostModel(base_s=2e-4, prefill_token_s=1e-6, decode_row_s=0, kv_token_s=0)
    device = RealTimeDevice(SimDevice(
        frames=2048, host_slots=2048, page_tokens=16, vocab=image.config.vocab_tokens,
        eos_token=image.config.eos_tokens[0], cost=cost, max_context_tokens=CONTEXT_TOKENS,
    ))  # fmt: skip
    patient = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
    kernel = make_kernel(
        device, "progress", Params(default_max_tokens=8), retune(Tunables(), patient),
        image.config.eos_tokens,
    )  # fmt: skip
    with (
        Syscalls(LocalPort(Machine(image, kernel, Pump(kernel, device)))) as k,
        serve(k.port, path),  # type: ignore[arg-type]
    ):
        sys.stdin.read()


@dataclass(frozen=True, slots=True)
class Size:
    """What a process holds of its machine."""

    files: int
    threads: int
    resident_bytes: int

    @classmethod
    def of(cls, pid: int) -> "Size":
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return cls(
            len(list(Path(f"/proc/{pid}/fd").iterdir())),
            len(list(Path(f"/proc/{pid}/task").iterdir())),
            pages * os.sysconf("SC_PAGE_SIZE"),
        )


class Stage:
    """Both processes, from the beginning to the end of a `with`."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "k.sock")
        self._logs = {name: folder / f"{name}.log" for name in ("kernel", "gateway")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = 0

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            self.port = listener.getsockname()[1]
            self._start("kernel", "tokenix.tests.gateway.stage", [self.path])
            kernel = self._start("gateway", "tokenix.gateway", [], listener.fileno()).stdin
            assert kernel is not None
            kernel.write(json.dumps(self._config(listener.fileno())).encode())
            kernel.close()
        until(self._ready, START_S)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(PATIENCE_S)
            if process.stdin is not None:
                process.stdin.close()

    def calls(self) -> Syscalls:
        """The kernel, as its operator has it."""
        return tokenix.connect(self.path)

    def sizes(self) -> dict[str, Size]:
        """Of both processes. AssertionError if one of them is gone."""
        for name, process in self.processes.items():
            assert process.poll() is None, f"the {name} has ended: {self.log(name)[-2000:]}"
        return {name: Size.of(process.pid) for name, process in self.processes.items()}

    def log(self, name: str) -> str:
        return self._logs[name].read_text(encoding="utf-8", errors="replace")

    def _start(
        self, name: str, module: str, words: list[str], *files: int
    ) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "SECRET": SECRET,
        }  # fmt: skip
        with self._logs[name].open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, *words], stdin=subprocess.PIPE, stdout=log,
                stderr=log, env=environment, pass_fds=files,
            )  # fmt: skip
        return self.processes[name]

    def _config(self, listener: int) -> dict[str, Any]:
        roles = {TENANT_KEY: "tenant", ROOT_KEY: "root", METRICS_KEY: "metrics"}
        keys = [
            {"sha256": hash_key(secret), "tenant": role, "role": role}
            for secret, role in roles.items()
        ]
        return {
            "socket": self.path, "fd": listener, "keys": keys, "limits": LIMITS,
            "log_level": "warning", "parent": os.getpid(),
        }  # fmt: skip

    def _ready(self) -> bool:
        self.sizes()
        with Wire(self.port) as wire, contextlib.suppress(TimeoutError):
            wire.socket.settimeout(1.0)
            wire.send("GET", "/health/ready").body()
            return wire.status == 200
        return False


if __name__ == "__main__":
    play(sys.argv[1])
