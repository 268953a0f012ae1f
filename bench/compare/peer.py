"""What is compared: servers that are installed, started, measured and stopped alike."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
LOG_LINES = 3
"""Of a failed step's log, for the message."""


class Unavailable(Exception):
    """A peer cannot be had on this machine; says why in one line."""


@dataclass(frozen=True, slots=True)
class Command:
    """How a server is started. It listens on 127.0.0.1."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    """A GET of it answers 200 once the server serves."""
    start_s: float = 120.0
    """In which it does."""

    def shown(self) -> str:
        """As it is typed in this folder, by whoever is at home here."""
        settings = [f"{name}={value}" for name, value in self.env.items() if name != "PYTHONPATH"]
        text = " ".join([*settings, *self.words])
        return text.replace(f"{ROOT}/", "").replace(f"{Path.home()}/", "~/")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a server has to hold."""

    kv_tokens: int
    """Tokens of KV, all requests together."""
    requests: int
    """At once, at most."""
    context: int
    """Tokens of the longest one."""
    ample: bool
    """Nothing has to share: servers that reserve memory for each request can do so."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs."""

    port: int
    threads: int
    folder: Path
    """For what it writes while it runs."""


class Peer(Protocol):
    """One server, with one format of weights."""

    @property
    def name(self) -> str: ...

    def install(self) -> None:
        """Whatever is missing. Unavailable."""
        ...

    def describe(self) -> str:
        """Version, weights, format of keys and values. Once installed."""
        ...

    def serve(self, shape: Shape, place: Place) -> Command: ...


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder of one peer: sources, an environment, models. It is kept between runs."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def make_venv(self, *packages: str, marker: str) -> None:
        """An environment of its own, with packages. `marker` names the lot: another one, anew."""
        if not self.python.exists():
            self.step("venv", [sys.executable, "-m", "venv", str(self.folder / "venv")])
        done = self.folder / f"{marker}.installed"
        if not done.exists():
            self.step(marker, [str(self.python), "-m", "pip", "install", "-q", *packages])
            done.touch()

    def step(self, name: str, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run a command, its output in NAME.log. Unavailable if it fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            try:
                code = subprocess.run(
                    words, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder, env=env,
                    stdin=subprocess.DEVNULL, check=False,
                ).returncode  # fmt: skip
            except OSError as why:
                raise Unavailable(f"{words[0]}: {why.strerror}") from None
        if code != 0:
            last = log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
            raise Unavailable(f"{name} failed ({code}): {' | '.join(last)}; all of it in {log}")


def free_name(path: Path) -> Path:
    """Where to write what becomes `path` when it is whole."""
    return path.with_name(path.name + ".part")
