"""Counters of the whole kernel since boot. Written by kernel/core.py."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    calls: int = 0
    spawned: int = 0
    refused: int = 0
    steps: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    plan_misses: int = 0
    """Parts of plans that memory could not back; they are planned again."""
    copies_failed: int = 0
    device_faults: int = 0
    exits: dict[str, int] = field(default_factory=dict)
