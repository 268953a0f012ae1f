"""The loads that all servers get: greedy, ignoring the end of text, token ids of exact lengths."""

import zlib
from dataclasses import dataclass, replace

from tokenix.bench.compare.peer import Shape
from tokenix.bench.load.clients import Clients

AMPLE = Shape(kv_tokens=40_960, requests=32, context=1280, ample=True)
TIGHT = Shape(kv_tokens=3_072, requests=16, context=1280, ample=False)
"""The four long streams of the mix need 4,256 tokens at their end."""

MIX = (
    Clients(name="long", requests=4, input_tokens=64, output_tokens=1000),
    Clients(name="short", requests=30, rate=1.5, start_s=2.0, input_tokens=64, output_tokens=32),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, and what its servers have to hold."""

    name: str
    title: str
    shape: Shape
    groups: tuple[Clients, ...]
    rounds: int | None = None
    """At most; None: as many as the others."""

    @property
    def seed(self) -> int:
        """Of its first round. No two scenarios have a prompt in common."""
        return zlib.crc32(self.name.encode()) & 0xFFFFFF00


def _closed(concurrency: int, requests: int, prompt: int, output: int) -> tuple[Clients, ...]:
    return (
        Clients(concurrency=concurrency, requests=requests, input_tokens=prompt,
                output_tokens=output),
    )  # fmt: skip


SCENARIOS = (
    Scenario("prefill", "512 in, 4 out, one at a time", AMPLE, _closed(1, 4, 512, 4)),
    Scenario("one", "128 in, 128 out, one at a time", AMPLE, _closed(1, 3, 128, 128)),
    Scenario("eight", "128 in, 128 out, 8 at a time", AMPLE, _closed(8, 16, 128, 128)),
    Scenario("many", "128 in, 128 out, 32 at a time", AMPLE, _closed(32, 64, 128, 128)),
    Scenario(
        "mix", "4 long streams, then 30 short requests at 1.5/s; memory for all of them", AMPLE, MIX
    ),
    Scenario(
        "overload", "the same with 3,072 tokens of KV, where the long ones need 4,256", TIGHT, MIX
    ),
)

QUICK = {"prefill": 2, "one": 1, "eight": 8, "many": 32, "mix": 4, "overload": 4}
"""Requests of each group, at most, with `--quick`: whether all works, no figures."""


def chosen(names: list[str], quick: bool) -> list[Scenario]:
    """By name, or NAME:ROUNDS; none: all. ValueError."""
    picked = [_named(name) for name in names] or list(SCENARIOS)
    return [_shortened(scenario) if quick else scenario for scenario in picked]


def _named(text: str) -> Scenario:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    name, colon, rounds = text.partition(":")
    if name not in known:
        raise ValueError(f"no scenario {name!r}; there are {', '.join(known)}")
    if not colon:
        return known[name]
    if not rounds.isdecimal() or int(rounds) == 0:
        raise ValueError(f"{text}: give a number of rounds, as in {name}:2")
    return replace(known[name], rounds=int(rounds))


def _shortened(scenario: Scenario) -> Scenario:
    from msgspec import structs

    groups = tuple(
        structs.replace(
            group, requests=min(group.requests or 1, QUICK[scenario.name]),
            output_tokens=min(int(group.output_tokens), 64),
        )
        for group in scenario.groups
    )  # fmt: skip
    return replace(scenario, title=f"{scenario.title} (shortened)", groups=groups)
