"""Plays the scenarios against all servers in turn, and writes down every run as a line of JSON.

    servers of one shape are started once; then, for each round and scenario:

    A  thaw, warm up, play, freeze  |  B  thaw, warm up, ...  |  C ...      next round: B C A

Who is not measured is frozen (SIGSTOP), so that nothing of it is in the way. A run that is in the
file is not repeated: what was interrupted goes on where it was.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenix.bench.compare.machine import Meter
from tokenix.bench.compare.peer import Peer, Shape, Unavailable
from tokenix.bench.compare.scenarios import Scenario
from tokenix.bench.compare.server import Server
from tokenix.bench.load.clients import Clients
from tokenix.bench.load.run import Options, run

WARM_FIRST = Clients(requests=2, concurrency=2, input_tokens=160, output_tokens=8)
"""Played when a server has started, so that kernels are compiled and memory is touched, and before
each run."""

Tell = Callable[[str], None]


@dataclass(slots=True)
class Comparison:
    """What is compared, and where it is written down."""

    peers: Sequence[Peer]
    scenarios: Sequence[Scenario]
    rounds: int
    threads: int
    lines: Path
    tell: Tell
    done: set[tuple[str, str, int]] = field(default_factory=set)
    """(peer, scenario, round) that are in the file."""

    def is_whole(self) -> bool:
        """Whether every run has been made."""
        return all(
            self._has_all(peer, scenario) for peer in self.peers for scenario in self.scenarios
        )

    def _has_all(self, peer: Peer, scenario: Scenario) -> bool:
        return all(
            (peer.name, scenario.name, number) in self.done
            for number in range(self._rounds_of(scenario))
        )

    def _rounds_of(self, scenario: Scenario) -> int:
        return min(self.rounds, scenario.rounds or self.rounds)

    def run(self) -> list[dict[str, Any]]:
        """All runs, old and new. OSError if the file cannot be written."""
        self.done = {_key(line) for line in read_lines(self.lines) if "summary" in line}
        _end_last_line(self.lines)
        peers = self.install()
        shapes = dict.fromkeys(scenario.shape for scenario in self.scenarios)
        for shape in shapes:
            self._play_shape(shape, peers)
        return read_lines(self.lines)

    def install(self) -> list[Peer]:
        """Those that can be had."""
        had = []
        for peer in self.peers:
            self.tell(f"{peer.name}: installing what is missing")
            try:
                peer.install()
                self._write({"peer": peer.name, "about": peer.describe()})
                had.append(peer)
            except Unavailable as why:
                self.tell(f"{peer.name}: {why}")
                self._write({"peer": peer.name, "unavailable": str(why)})
        return had

    def _play_shape(self, shape: Shape, peers: Sequence[Peer]) -> None:
        scenarios = [one for one in self.scenarios if one.shape == shape]
        wanted = [peer for peer in peers if not all(self._has_all(peer, one) for one in scenarios)]
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tokenix-")))
            servers = list(self._start(wanted, shape, folder, stack))
            for number in range(self.rounds):
                turned = number % len(servers) if servers else 0
                for scenario in scenarios:
                    if number >= self._rounds_of(scenario):
                        continue
                    for server in servers[turned:] + servers[:turned]:
                        if (server.peer.name, scenario.name, number) not in self.done:
                            self._play(server, scenario, number)

    def _start(
        self, peers: Sequence[Peer], shape: Shape, folder: Path, stack: contextlib.ExitStack
    ) -> Iterator[Server]:
        for peer in peers:
            self.tell(f"{peer.name}: starting with {shape.kv_tokens} tokens of KV")
            try:
                server = Server(peer, shape, self.threads, folder / peer.name)
                stack.callback(server.end)
                run(Options((WARM_FIRST,), url=server.url, seed=99))
                server.freeze()
            except (Unavailable, OSError, ValueError) as why:
                self.tell(f"{peer.name}: {why}")
                self._write({"peer": peer.name, "unavailable": str(why)})
                continue
            self._write({
                "peer": peer.name, "started_s": server.start_s, "kv_tokens": shape.kv_tokens,
                "command": server.command.shown(),
                "resident_bytes": server.resident_bytes(),
            })  # fmt: skip
            yield server

    def _play(self, server: Server, scenario: Scenario, number: int) -> None:
        name = server.peer.name
        line: dict[str, Any] = {"peer": name, "scenario": scenario.name, "round": number}
        try:
            server.thaw()
            # Prompts that no server has seen before, the same for all.
            seed = scenario.seed + number
            run(Options((WARM_FIRST,), url=server.url, seed=-seed))
            meter = Meter(server.pid)
            options = Options(scenario.groups, url=server.url, seed=seed)
            line["summary"] = run(options).summary
            line["usage"] = asdict(meter.stop())
            self.done.add(_key(line))
            self.tell(f"{scenario.name} {number + 1} of {self.rounds}  {name}: {_brief(line)}")
        except (Unavailable, OSError, ValueError) as why:
            line["failed"] = str(why) if server.alive() else f"the server ended: {server.why()}"
            self.tell(f"{scenario.name} {number + 1} of {self.rounds}  {name}: {line['failed']}")
        finally:
            server.freeze()
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What is written down; a line that was cut short by an end is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _end_last_line(path: Path) -> None:
    """What comes next begins a line, also behind one that was cut short."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")


def _key(line: dict[str, Any]) -> tuple[str, str, int]:
    return line["peer"], line.get("scenario", ""), line.get("round", -1)


def _brief(line: dict[str, Any]) -> str:
    summary, usage = line["summary"], line["usage"]
    ttft = summary["p95_ttft_ms"]
    return (
        f"{summary['output_throughput']:.0f} tok/s, TTFT P95 "
        f"{'-' if ttft is None else f'{ttft:.0f} ms'}, {summary['completed']} of "
        f"{summary['num_prompts']}, others {usage['others']:.2f} cores"
    )
