"""Nonsense for the socket, from a seed: random bytes, frames that are cut, torn, too long, of
another version, with bits flipped; messages of the right form with wild contents; clients that stop
midway.

    python -m tokenix.tests.wire.fuzz --inputs 100000

An input is what is written at once. Whatever comes, the server goes on to serve others at once,
tells no client of its insides, and at the end nothing is left: no process, call, connection,
descriptor.
"""

import argparse
import gc
import logging
import os
import random
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import msgpack

import tokenix
from tokenix.kernel import calls
from tokenix.kernel.calls import Principal
from tokenix.syscalls import texts
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire import abi
from tokenix.syscalls.wire.framing import Frames
from tokenix.syscalls.wire.limits import WireLimits
from tokenix.syscalls.wire.server import Server, serve
from tokenix.tests.wire import golden
from tokenix.tests.wire.raw import framed, until

HELLO = framed(msgpack.encode(abi.Hello(abi.VERSION)))
SAMPLES = [
    msgpack.encode(message)
    for message in golden.examples().values()
    if isinstance(message, abi.FromClient)
]
PROMPT_S = 10.0
"""A good client gets its answer within so long, on a busy machine too."""
SEND_S = 0.2
"""A server that reads no more from this client is left after so long."""
HEAR_S = 0.002
CHECK_EVERY = 500
LIMITS = WireLimits(
    connections=64, calls=200, frame_bytes=1 << 16, call_bytes=1 << 18, hello_s=1, frame_s=1
)


class Attacker:
    """A client without manners. Connects again whenever it was thrown out."""

    def __init__(self, path: str, draw: random.Random) -> None:
        self._path = path
        self._draw = draw
        self._socket: socket.socket | None = None
        self._frames = Frames(1 << 30)
        self._number = 0
        self.refused = 0
        """Times it was told why, or thrown out."""

    def attack(self) -> None:
        """One input."""
        client = self._connected()
        kind = self._draw.choice(KINDS)
        try:
            client.sendall(kind(self))
        except (BrokenPipeError, ConnectionResetError, BlockingIOError, TimeoutError):
            self.hang_up()
            return
        self._listen(client)
        if self._draw.random() < 0.02:
            self.hang_up()

    def hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._frames = Frames(1 << 30)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(SEND_S)
            self._socket.connect(self._path)
            if self._draw.random() < 0.8:
                self._socket.sendall(HELLO)
        return self._socket

    def _listen(self, client: socket.socket) -> None:
        """Take what comes soon, so that most inputs meet a server that still listens."""
        client.settimeout(HEAR_S)
        try:
            data = client.recv(1 << 16)
        except TimeoutError:
            client.settimeout(SEND_S)
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.refused += 1
            self.hang_up()
            return
        client.settimeout(SEND_S)
        for frame in self._frames.feed(data):
            message = abi.server_decoder.decode(frame)
            if isinstance(message, abi.Bye | abi.Fail):
                self.refused += 1
                assert "Traceback" not in message.message, message
                assert message.message.isprintable(), message
                assert message.errno > 0

    # ---- kinds of inputs ----

    def noise(self) -> bytes:
        return self._draw.randbytes(self._draw.randint(1, 200))

    def framed_noise(self) -> bytes:
        return framed(self._draw.randbytes(self._draw.randint(0, 300)))

    def too_long(self) -> bytes:
        size = self._draw.choice([1 << 16 | 1, 1 << 20, 1 << 31, (1 << 32) - 1])
        return size.to_bytes(4, "little") + self.noise()

    def torn(self) -> bytes:
        frame = framed(self._draw.choice(SAMPLES))
        return frame[: self._draw.randrange(len(frame))]

    def flipped(self) -> bytes:
        frame = bytearray(framed(self._draw.choice(SAMPLES)))
        for _ in range(self._draw.randint(1, 4)):
            at = self._draw.randrange(0 if self._draw.random() < 0.1 else 4, len(frame))
            frame[at] ^= 1 << self._draw.randrange(8)
        return bytes(frame)

    def another_version(self) -> bytes:
        return framed(msgpack.encode(abi.Hello(self._draw.choice([0, -1, 2, 1 << 60]))))

    def wild(self) -> bytes:
        """MessagePack of any kind, sometimes with the marks of a message."""
        value = self._value(4)
        if self._draw.random() < 0.7:
            tags = ["hello", "ask", "follow", "grant", "ping", "pong", "welcome", "bye", "x"]
            value = {"msg": self._draw.choice(tags), "id": self._value(0), "request": value}
        return framed(msgpack.encode(value))

    def calls(self) -> bytes:
        """Calls of the right form, pipelined."""
        out = b""
        for _ in range(self._draw.randint(1, 5)):
            self._number += 1
            out += framed(msgpack.encode(self._call()))
        return out

    def stutter(self) -> bytes:
        """A good frame, and the beginning of another."""
        return framed(msgpack.encode(abi.Ping())) + self.torn()

    def _call(self) -> abi.FromClient:
        draw, pid = self._draw, self._draw.randint(-1, 2000)
        number = self._draw.choice([self._number, self._draw.randint(-2, 500)])
        if draw.random() < 0.2:
            return abi.Follow(number, pid, draw.choice([1, 16, 0, -1, 1 << 50]))
        if draw.random() < 0.1:
            return abi.Grant(number, draw.choice([1, 16, 0, -1, 1 << 50]))
        options = {"max_tokens": draw.randint(-1, 40), "keep_open": draw.random() < 0.2}
        request = draw.choice(
            [
                texts.SpawnText([draw.randint(-1, 5000)] * draw.randint(0, 9), options),
                texts.SpawnText([1, 2, 3], options),
                texts.SpawnText(self._value(2), {**options, "stop": self._value(1)}),
                texts.WriteText(pid, self._value(1)),
                texts.Tokenize(self._value(1), {"raw": self._value(1)}),
                texts.Detokenize((1, draw.randint(-5, 5000))),
                calls.Read(pid, draw.randint(-1, 9), draw.random() < 0.5),
                calls.Wait(draw.choice([None, pid])),
                calls.Kill(pid, draw.choice(list(calls.Signal))),
                calls.Fork(pid, draw.randint(-1, 70), tuple(range(draw.randint(0, 3)))),
                calls.Nice(pid, draw.randint(-30, 30)),
                calls.SetRlimit(pid, draw.randint(-5, 50), None, draw.choice([None, -1.0, 1e300])),
                calls.Stat(pid),
                calls.Maps(pid, draw.randint(-5, 50)),
                calls.Tail(pid, draw.randint(-5, 50)),
                calls.Framemap(draw.choice(["frames", "host", "disk", ""]), draw.randint(-5, 9999)),
                calls.Prefixes(draw.randint(-5, 50)),
                calls.Plan(),
                calls.Ps(draw.randint(-5, 50), draw.choice([None, -1, 0, 9]), (pid,)),
                calls.Trace(pid, draw.randint(-5, 50), draw.randint(-5, 50)),
                calls.CancelCall(draw.randint(-1, 500)),
                calls.Sysctl(draw.choice(["", "x", "sched.max_running"])),
                calls.Suspend(pid, draw.choice(["a", "../a", "", "x" * 999])),
                calls.Resume(draw.choice(["a", "../a"])),
                calls.ShmUnlink("a"),
                texts.ShmText("a", [1] * draw.randint(0, 40)),
            ]
        )
        return abi.Ask(number, request, draw.choice([None, None, None, "other", ""]))

    def _value(self, depth: int) -> Any:
        draw = self._draw
        kind = draw.randint(0, 9 if depth else 7)
        match kind:
            case 0:
                return None
            case 1:
                return draw.random() < 0.5
            case 2:
                return draw.randint(-(1 << 63), (1 << 64) - 1)
            case 3:
                return draw.randint(-2, 300)
            case 4:
                return draw.choice([0.5, float("nan"), float("inf"), -0.0])
            case 5 | 6:
                return draw.choice(["", "hello", "\0", "é" * 20, "{{ x }}"])
            case 7:
                return draw.randbytes(draw.randint(0, 9))
            case 8:
                return [self._value(depth - 1) for _ in range(draw.randint(0, 4))]
            case _:
                return {self._value(0): self._value(depth - 1) for _ in range(draw.randint(0, 3))}


KINDS: list[Callable[[Attacker], bytes]] = [
    Attacker.noise, Attacker.framed_noise, Attacker.too_long, Attacker.torn, Attacker.flipped,
    Attacker.flipped, Attacker.another_version, Attacker.wild, Attacker.wild, Attacker.calls,
    Attacker.calls, Attacker.calls, Attacker.stutter,
]  # fmt: skip


class Errors(logging.Handler):
    """Keeps what is logged as an error: the server's own faults."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@contextmanager
def watched_log() -> Iterator[Errors]:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        yield errors
    finally:
        logging.getLogger().removeHandler(errors)


def fuzz(
    machine: Syscalls, server: Server, seed: int, inputs: int, attackers: int = 8
) -> dict[str, float]:
    """Attack `server`; AssertionError says what went wrong. Figures of the run."""
    draw = random.Random(seed)
    bad = [Attacker(server.path, draw) for _ in range(attackers)]
    worst_s = 0.0
    with watched_log() as errors, tokenix.connect(server.path) as good:
        good.ps()
        files, began_s = count_files(), time.monotonic()
        for number in range(inputs):
            draw.choice(bad).attack()
            if number % CHECK_EVERY == 0:
                asked_s = time.monotonic()
                assert good.vmstat()
                worst_s = max(worst_s, time.monotonic() - asked_s)
                assert worst_s < PROMPT_S, f"others waited {worst_s:.1f} s, input {number}"
                assert not errors.records, f"input {number}: {errors.records[0]}"
        took_s = time.monotonic() - began_s
        for attacker in bad:
            attacker.hang_up()
        until(lambda: server.statistics().connections == 1, "connections are left")
        until(lambda: not machine.ps(), "processes are left")
        until(lambda: count_files() <= files, "descriptors are left")
        left = server.statistics()
        assert (left.calls, left.flows, left.processes, left.unsent_bytes) == (0, 0, 0, 0), left
        assert server.held_bytes == 0, "bytes of frames are left"
    assert not errors.records, errors.records[0]
    refused = sum(attacker.refused for attacker in bad)
    return {"inputs": inputs, "refused": refused, "seconds": took_s, "slowest_answer_s": worst_s}


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tenant = Principal("fuzz")
    with (
        tempfile.TemporaryDirectory() as directory,
        rehearse(step_s=0.001) as machine,
        serve(machine.port, f"{directory}/k.sock", LIMITS, recognise=lambda _: tenant) as server,  # type: ignore[arg-type]
    ):
        first = fuzz(machine, server, options.seed, max(1, options.inputs // 5))
        before = resident_bytes()
        second = fuzz(machine, server, options.seed + 1, options.inputs - int(first["inputs"]))
        grown = resident_bytes() - before
        print(first, second, f"{grown / 2**20:.1f} MiB more resident", os.getpid())  # noqa: T201
        assert grown < 64 << 20, "memory is left"


if __name__ == "__main__":
    main()
