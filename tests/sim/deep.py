"""Stories in three tiers: a tiny machine with a swap file, and processes that have sunk to it."""

from typing import Any

from tokenix.drivers.sim import CostModel, Fault, FaultPlan
from tokenix.kernel.calls import Kill, Signal, Swapon
from tokenix.kernel.event import Reply
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.state import State
from tokenix.kernel.tiers import no_donors
from tokenix.mm.ids import Pid
from tokenix.mm.reclaim import reclaim
from tokenix.swap.transfers import Lane, Transfer
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(50, 63))
"""Three full pages and a token."""

WORTH_LOADING = CostModel(prefill_token_s=0.01, store_page_s=1e-3, fetch_page_s=1e-3)
"""Whatever is in a lower tier is loaded sooner than computed."""


def deep_machine(
    *faults: Fault,
    frames: int = 12,
    slots: int = 16,
    blocks: int = 32,
    policy: str = "progress",
    cost: CostModel = WORTH_LOADING,
    params: dict[str, Any] | None = None,
    **device: Any,
) -> SimMachine:
    """Whose processes sink as soon as they are stopped. `blocks`: of the swap file; 0: none yet."""
    sinks: dict[str, Any] = {"sink_held_s": 0.0, "sink_low_share": 0.4, "sink_high_share": 0.5}
    machine = SimMachine(
        frames, slots, policy, Params(poison=True, **{**sinks, **(params or {})}),
        faults=FaultPlan(0, {}, faults), cost=cost, **device,
    )  # fmt: skip
    if blocks:
        assert answer(machine, swapon(machine, blocks)).error is None
    return machine


def swapon(machine: SimMachine, blocks: int) -> int:
    return machine.start(Swapon("/", blocks * machine.kernel.info.frame_bytes))


def answer(machine: SimMachine, call_id: int, limit_s: float = 1e3) -> Reply:
    """Let time pass until the call is answered."""
    limit_s += machine.now_s
    while call_id not in machine.replies:
        assert machine.now_s < limit_s, "it is not answered in time"
        assert machine.advance(limit_s), "it is never answered"
    return machine.replies[call_id]


def until(machine: SimMachine, pid: Pid, state: State) -> Process:
    """Let time pass until the process is in that state."""
    process = machine.process(pid)
    while process.state is not state:
        assert machine.advance(), f"it stays {process.state.value}"
    return process


def speak(machine: SimMachine, pid: Pid, tokens: int) -> None:
    """Let it say so many."""
    while len(machine.output[pid]) < tokens:
        assert machine.advance(), "it says no more"


def signal(machine: SimMachine, pid: Pid, which: Signal) -> None:
    machine.call(Kill(pid, which))


def stop(machine: SimMachine, pid: Pid, rest_s: float = 5.0) -> Process:
    """Stop it, and let all copies come to rest."""
    signal(machine, pid, Signal.STOP)
    until(machine, pid, State.SWAPPED)
    machine.run(until_s=machine.now_s + rest_s)
    return machine.process(pid)


def take_all(machine: SimMachine) -> None:
    """Somebody wants all frames and slots that can be had."""
    memory = machine.kernel.memory
    reclaim(memory.frames, memory.index, memory.frames.total, memory.latest_first())
    memory.make_slots(memory.copies.host.total, no_donors)


def sink(machine: SimMachine, pid: Pid) -> Process:
    """Stop it until it is in the swap file and nowhere else."""
    process = stop(machine, pid)
    take_all(machine)
    assert process.space.deep == process.space.mapped > 0
    return process


def sunk(machine: SimMachine, first: int, tokens: int = 12) -> Pid:
    """A process that says `tokens` tokens; it has said two when it sinks to the file."""
    pid = machine.spawn(tuple(range(first, first + 9)), tokens)
    speak(machine, pid, 2)
    sink(machine, pid)
    return pid


def on_lane(machine: SimMachine, *lanes: Lane) -> list[Transfer]:
    """Copies that have not ended, given up or not."""
    return machine.kernel.memory.copies.transfers.peek_on(*lanes)


def moved(machine: SimMachine, lane: Lane) -> int:
    """Pages that were sent on the lane so far."""
    return machine.kernel.memory.copies.stats.pages[lane]
