"""What random worlds run on: machines drawn from a seed, of several kinds."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tokenix.drivers.sim import CostModel
from tokenix.drivers.sim.faults import Kind
from tokenix.kernel.params import Params
from tokenix.mm.prefix import POLICIES as PREFIX_POLICIES
from tokenix.sched.policies import POLICIES
from tokenix.sched.tunables import Tunables

FAULTS: dict[Kind, float] = {
    "fail_out": 0.15, "fail_in": 0.15, "corrupt_slot": 0.1, "lose_slot": 0.1,
    "delay_out": 0.1, "delay_in": 0.1, "hang_out": 0.05, "hang_in": 0.05,
    "device": 0.05, "row": 0.01,
}  # fmt: skip

FILE_FAULTS: dict[Kind, float] = {
    "fail_store": 0.15, "fail_fetch": 0.2, "corrupt_block": 0.1, "lose_block": 0.1,
    "delay_store": 0.1, "delay_fetch": 0.2, "hang_store": 0.1, "hang_fetch": 0.1,
}  # fmt: skip

IMAGE_FAULTS: dict[Kind, float] = {
    "fail_save": 0.2, "delay_save": 0.2, "hang_save": 0.1, "corrupt_image": 0.3,
    "fail_load": 0.2, "delay_load": 0.2, "hang_load": 0.1,
}  # fmt: skip

HASTY = Tunables(
    target_interactive_s=0.1, target_stream_s=0.1, target_batch_s=0.5, target_idle_s=1.0,
    max_wait_targets=1.0, batch_quantum_s=0.1, hysteresis_s=0.2, margin_s=0.05, leader_pauses=1,
)  # fmt: skip
"""Everything that only happens after a long wait happens soon."""

CRUEL: dict[Kind, float] = {
    "fail_in": 0.2, "delay_in": 0.3, "hang_in": 0.2, "delay_out": 0.2, "hang_out": 0.2,
    "device": 0.4,
}  # fmt: skip

EASY_TO_SINK = {
    "sink_low_share": 0.5,
    "sink_high_share": 0.5,
    "sink_lead_s": 0.1,
    "sink_held_s": 0.2,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a world runs on."""

    frames: int
    host_slots: int
    page_tokens: int
    policy: str
    eos_token: int | None
    horizon_s: float
    params: Params
    tunables: Tunables
    cost: CostModel
    fault_rates: dict[Kind, float]
    force: float
    """Chance of each ready process to be paused by force in each plan."""
    images: bool = False
    """Whether processes are suspended and resumed."""
    file_blocks: int = 0
    """Of a swap file that comes and goes; 0: there is none."""


def draw_machine(chance: random.Random, harsh: bool) -> Machine:
    """Small enough to be short of memory most of the time."""
    frames = chance.choice([3, 4, 5, 6, 8, 8, 10, 12, 16, 24, 40])
    slow = chance.choice([1.0, 1.0, 10.0])
    link_s = chance.choice([1e-5, 1e-4, 1e-3, 1e-2, 0.1])
    kinds = [kind for kind in FAULTS if chance.random() < 0.5] if harsh else []
    return Machine(
        frames=frames,
        host_slots=int(frames * chance.choice([0, 0.25, 0.5, 1, 2, 4])),
        page_tokens=chance.choice([1, 2, 3, 4, 4, 8]),
        policy=chance.choice(["progress", "progress", *POLICIES]),
        eos_token=chance.choice([None, 0]),
        horizon_s=chance.choice([0.2, 1.0, 3.0]) * slow,
        params=Params(
            pipe_tokens=chance.choice([1, 2, 7, 4096, 4096]),
            max_processes=chance.choice([5, 100, 100]),
            max_zombies=chance.choice([2, 5, 5]),
            prefix_cache=chance.random() < 0.6,
            prefix_policy=chance.choice(list(PREFIX_POLICIES)),
            attention_every=2,
            poison=True,
        ),
        tunables=chance.choice([Tunables(), Tunables(), HASTY]),
        cost=CostModel(
            base_s=4e-3 * slow,
            prefill_token_s=chance.choice([50e-6, 1e-3]),
            in_page_s=link_s,
            out_page_s=link_s,
            frame_s=chance.choice([5e-6, 5e-3]),
        ),
        fault_rates={kind: FAULTS[kind] for kind in kinds},
        force=chance.choice([0.0, 0.02, 0.1]) if harsh else 0.0,
    )


def draw_cruel_machine(chance: random.Random, harsh: bool) -> Machine:
    """Hardly any memory, haste, copies that are worth their time and fail, passes that fail: what
    is rare elsewhere is the rule here."""
    drawn = draw_machine(chance, harsh)
    frames = chance.choice([4, 5, 6, 8, 12])
    return replace(
        drawn,
        frames=frames,
        host_slots=int(frames * chance.choice([0, 0.5, 1, 2])),
        page_tokens=chance.choice([2, 4]),
        policy=chance.choice(["progress", "progress", "progress", "fcfs", "mlfq"]),
        tunables=HASTY,
        params=replace(drawn.params, pipe_tokens=4096, prefix_cache=chance.random() < 0.5),
        cost=replace(
            drawn.cost,
            prefill_token_s=chance.choice([1e-4, 0.01, 0.01]),
            in_page_s=chance.choice([1e-4, 1e-2]),
            out_page_s=chance.choice([1e-4, 0.1]),
        ),
        fault_rates={kind: rate for kind, rate in CRUEL.items() if chance.random() < 0.4},
    )


def draw_deep_machine(chance: random.Random, harsh: bool) -> Machine:
    """Few frames, fewer slots, a swap file that is easy to sink to; computing takes about as long
    as loading."""
    drawn = draw_machine(chance, harsh)
    frames, page_tokens = chance.choice([6, 8, 10, 14]), chance.choice([2, 3, 4])
    page_s = chance.choice([1e-3, 1e-2])
    fetch_s = page_s * chance.choice([0.3, 1.0, 3.0])
    rates = {kind: rate for kind, rate in FILE_FAULTS.items() if harsh and chance.random() < 0.3}
    return replace(
        drawn,
        frames=frames,
        host_slots=max(1, int(frames * chance.choice([0.3, 0.7, 1.5]))),
        page_tokens=page_tokens,
        policy=chance.choice(["progress", "progress", "fcfs", "mlfq", "qoe"]),
        tunables=chance.choice([Tunables(), HASTY]),
        params=replace(
            drawn.params, pipe_tokens=4096, prefix_cache=chance.random() < 0.7, **EASY_TO_SINK
        ),
        cost=replace(
            drawn.cost,
            prefill_token_s=page_s / page_tokens * chance.choice([0.7, 1.0, 1.5, 10.0]),
            in_page_s=page_s,
            out_page_s=page_s,
            store_page_s=fetch_s,
            fetch_page_s=fetch_s,
        ),
        fault_rates=rates,
        file_blocks=int(frames * chance.choice([0.5, 2, 4])),
    )


def with_swap_file(drawn: Machine, chance: random.Random, harsh: bool) -> Machine:
    """Half of the machines without one get one, mostly easy to sink to."""
    if drawn.file_blocks or not drawn.host_slots or chance.random() < 0.5:
        return drawn
    page_s = drawn.cost.in_page_s * chance.choice([1.0, 10.0])
    sinks = EASY_TO_SINK if chance.random() < 0.8 else {}
    rates = {kind: rate for kind, rate in FILE_FAULTS.items() if harsh and chance.random() < 0.4}
    return replace(
        drawn,
        file_blocks=1 + int(drawn.frames * chance.choice([0, 0.5, 2, 8])),
        params=replace(drawn.params, **sinks),
        cost=replace(drawn.cost, store_page_s=page_s, fetch_page_s=page_s),
        fault_rates={**drawn.fault_rates, **rates},
    )


def draw_sleepy_machine(chance: random.Random, harsh: bool) -> Machine:
    """Any machine, but processes go to images and come back, and idle ones get some; the disk is
    slow, or fails."""
    drawn = chance.choice([draw_machine, draw_deep_machine])(chance, harsh)
    rates = {kind: rate for kind, rate in IMAGE_FAULTS.items() if harsh and chance.random() < 0.4}
    return replace(
        drawn,
        images=True,
        params=replace(
            drawn.params,
            image_idle_s=chance.choice([None, 1e-3, 0.1]),
            image_io_s=chance.choice([0.05, 1.0]),
            max_image_bytes=chance.choice([30_000, 1 << 30, 1 << 30]),
        ),
        cost=replace(drawn.cost, disk_base_s=chance.choice([1e-4, 1e-2])),
        fault_rates={**drawn.fault_rates, **rates},
    )


KINDS: dict[str, Callable[[random.Random, bool], Machine]] = {
    "": draw_machine, "cruel": draw_cruel_machine, "deep": draw_deep_machine,
    "sleepy": draw_sleepy_machine,
}  # fmt: skip
