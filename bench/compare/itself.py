"""This project's own server, as `tokenix serve` starts it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tokenix.bench.compare.peer import Command, Place, Shape

PAGE_TOKENS = 16
NOBODY_REFUSED = ("--sched.patience_factor", "1e9")
"""The others queue whoever comes, so this one does too. All else is the default."""


@dataclass(frozen=True, slots=True)
class Itself:
    """The default model, or a file, in the default formats."""

    model: str = "smollm2"
    swaps: bool = True
    """False: no host tier, so that all its KV is the budget; what is preempted is computed again,
    as others do it."""

    @property
    def name(self) -> str:
        return "tokenix" if self.swaps else "tokenix-noswap"

    def install(self) -> None:
        """It is there."""

    def describe(self) -> str:
        root = Path(__file__).resolve().parents[2]
        shown = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True, text=True, check=False,
        ).stdout.strip()  # fmt: skip
        tier = "with" if self.swaps else "without"
        return f"tokenix {shown or 'of an installation'}, Q4_1, f16 KV, {tier} a host tier"

    def serve(self, shape: Shape, place: Place) -> Command:
        words = (
            sys.executable, "-m", "tokenix.cli.main", "serve", self.model,
            "--device-pages", str(shape.kv_tokens // PAGE_TOKENS), "--threads", str(place.threads),
            "--http.port", str(place.port), "--socket", str(place.folder / "k.sock"),
            "--log.level", "warning", *NOBODY_REFUSED,
            *(() if self.swaps else ("--host-pages", "0")),
        )  # fmt: skip
        env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return Command(words, env, ready="/health/ready")
