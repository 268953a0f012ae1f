"""Three processes on four frames, and every order in which calls and the ends of commands can meet.

Each script says how many interleavings there are at least, so that nobody makes them fewer unseen.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from tokenix.drivers.sim.fences import Queue
from tokenix.kernel.calls import Fork, Kill, Signal, Spawn, Swapoff
from tokenix.kernel.memory import Memory
from tokenix.kernel.params import Params
from tokenix.mm.frames import FrameTable
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Reader
from tokenix.tests.sim.draws import HASTY
from tokenix.tests.sim.interleave import Script, explore

SLOW = Reader(tokens_per_s=0.5)
"""Reads so slowly that its stream may be paused after one token."""

STOP, CONT, KILL = (lambda pid, signal=signal: Kill(Pid(pid), signal) for signal in (
    Signal.STOP, Signal.CONT, Signal.KILL
))  # fmt: skip

SHORT = tuple(Spawn(prompt, max_tokens=2, reader=SLOW) for prompt in ((1, 2), (3, 4, 5), (6,)))
BRIEF = msgspec.structs.replace(SHORT[1], max_tokens=1)
GROWING = tuple(Spawn((first,), max_tokens=4, reader=SLOW) for first in (1, 2, 3))
"""Together they need more than twice the frames there are."""

SINKING = Script(
    (Spawn((1, 2), max_tokens=4, reader=SLOW),),
    ((STOP(1), CONT(1)),),
    file_blocks=4,
    host_slots=2,
    params=Params(poison=True, sink_held_s=0.0, sink_low_share=0.5, sink_high_share=0.5),
)

SCRIPTS: dict[str, tuple[int, Script]] = {
    "one comes while another is stopped twice": (
        10_000,
        Script(
            (Spawn((1, 2), max_tokens=4, reader=SLOW),),
            ((STOP(1), CONT(1), STOP(1), CONT(1)), (BRIEF,)),
        ),
    ),
    "stop, go on, kill": (1_500, Script(SHORT, ((STOP(1), CONT(1)), (KILL(2),)))),
    "two are stopped, no host tier": (
        500, Script(SHORT, ((STOP(1), CONT(1)), (STOP(2), CONT(2))), host_slots=0),
    ),
    "copies fail": (
        500,
        Script(SHORT, ((STOP(1), CONT(1)),), fails=(Queue.OUT, Queue.IN), faults=1),
    ),
    "copies are late": (1_500, Script(SHORT, ((STOP(1), CONT(1)),), lates=1)),
    "passes fail": (400, Script(SHORT, fails=(Queue.COMPUTE,), faults=3)),
    "all grow": (150, Script(GROWING, tunables=HASTY)),
    "all grow, one slot": (
        300, Script(GROWING, ((STOP(1), CONT(1)),), host_slots=1, tunables=HASTY),
    ),
    "fork, and kill the parent": (
        150, Script(SHORT[1:], ((Fork(Pid(1)), KILL(1)),)),
    ),
    "full pipes": (
        150, Script(SHORT, ((STOP(3), CONT(3)),), params=Params(poison=True, pipe_tokens=1)),
    ),
    "without the prefix cache": (
        200,
        Script(SHORT, ((STOP(1), CONT(1)),), params=Params(poison=True, prefix_cache=False)),
    ),
    "one sinks, and stores fail": (400, replace(SINKING, fails=(Queue.STORE,), faults=1)),
    "one sinks, and the file is taken away": (
        4_000, replace(SINKING, callers=((STOP(1), CONT(1)), (Swapoff(),))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_interleaving_ends_well(name: str) -> None:
    least, script = SCRIPTS[name]
    found = explore(script)
    assert found.ways >= least, f"{found}: too little happens in it"


@pytest.mark.parametrize("name", ["all grow", "full pipes", "fork, and kill the parent"])
def test_no_two_states_are_taken_for_one(name: str) -> None:
    """Without remembering states there are as many ways, each played to its end."""
    script = SCRIPTS[name][1]
    assert explore(script, remember=False).ways == explore(script).ways


def damage_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameTable, "pin", lambda frames, pfn: None)
    monkeypatch.setattr(FrameTable, "unpin", lambda frames, pfn: None)


def damage_stale_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "settle_in", lambda memory, process: None)


def damage_lost_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "lose", lambda memory, page: [])


@pytest.mark.parametrize(
    ("script", "damage"),
    [
        (SCRIPTS["copies are late"][1], damage_pins),
        (SCRIPTS["copies fail"][1], damage_lost_pages),
        (
            replace(
                SCRIPTS["one comes while another is stopped twice"][1],
                callers=((STOP(1), CONT(1), STOP(1), CONT(1)), (SHORT[1],)),
            ),
            damage_stale_copies,
        ),
    ],
)
def test_a_broken_kernel_is_found(
    script: Script, damage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the moves that lead there are told."""
    damage(monkeypatch)
    with pytest.raises(AssertionError) as found:
        explore(script)
    assert any(note.startswith("after [(") for note in found.value.__notes__)
