"""A device that takes two passes at a time: the second is planned while the first runs, and goes on
with tokens that nobody has seen yet. Whatever those turn out to be, the output is the same."""

from collections.abc import Callable
from typing import Any

import pytest

from tokenix.drivers.ops import Forward
from tokenix.drivers.sampling import SamplingParams
from tokenix.drivers.sim import Fault, FaultPlan, expected_tokens
from tokenix.kernel import core, launch
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import (
    Fork,
    ImageDir,
    Kill,
    Resume,
    SetRlimit,
    Signal,
    Spawn,
    Suspend,
    Write,
)
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.kernel.state import Hold, State
from tokenix.mm.frames import FrameState, FrameTable
from tokenix.mm.ids import Pid
from tokenix.tests.sim.machine import SimMachine
from tokenix.tests.wheel import Wheel

PROMPT = (5, 6, 7, 8, 9)


class Ahead(SimMachine):
    """Looks at what is submitted."""

    def __init__(self, frames: int = 40, **options: Any) -> None:
        super().__init__(frames, 40, depth=2, **options)
        self.forwards: list[Forward] = []
        submit = self.device.submit

        def watched(command: Any, now_s: float) -> None:
            if isinstance(command, Forward):
                self.forwards.append(command)
            submit(command, now_s)

        self.device.submit = watched  # type: ignore[method-assign]

    def count_drawn_by(self) -> int:
        """Rows that ran a token which the host did not know."""
        rows = [row for forward in self.forwards for row in forward.all_rows()]
        return sum(row.tokens[0] < 0 for row in rows)

    def speak(self, pid: Pid, tokens: int) -> Process:
        """Until it has said so many, and is in two passes."""
        process = self.process(pid)
        while process.output_tokens < tokens or not self.is_twice(pid):
            assert self.advance()
        return process

    def is_twice(self, pid: Pid) -> bool:
        flights = self.kernel.flights
        return len(flights) == 2 and all(pid in flight.places for flight in flights)


def test_streams_run_without_a_gap() -> None:
    """While one pass runs there is another one behind it, as long as anybody has tokens to go; each
    token but the first and the last ones is run before the host has seen it."""
    machine = Ahead()
    pids = [machine.spawn((*PROMPT, number), 20) for number in range(3)]
    while machine.kernel.processes:
        assert machine.advance()
        to_go = [20 - process.output_tokens for process in machine.kernel.processes.values()]
        assert len(machine.kernel.flights) == 2 or max(to_go, default=0) <= 1
    assert machine.count_drawn_by() >= 3 * 18
    machine.finish()
    assert all(len(machine.output[pid]) == 20 for pid in pids)


def test_a_prompt_in_pieces_and_a_newcomer_go_ahead_too() -> None:
    machine = Ahead()
    first = machine.spawn(PROMPT, 24)
    machine.speak(first, 3)
    second = machine.spawn(tuple(range(60)), 12)
    while machine.process(second).output_tokens < 2:
        assert machine.advance()
        assert len(machine.kernel.flights) == 2, "nobody had to wait for the device to come to rest"
    machine.finish()


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": Wheel(256, 3, 1 << 20, None)},
        {"sampling": SamplingParams(logprobs=1)},
        {"sampling": SamplingParams(logit_bias=((3, 1.0),))},
        {"sampling": SamplingParams(frequency_penalty=0.5)},
        {"min_tokens": 12, "stop_tokens": (3,)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_the_host_must_see_is_waited_for(options: dict[str, Any]) -> None:
    """And nobody is overtaken by others."""
    machine = Ahead()
    machine.spawn(PROMPT, 12)
    pid = machine.call(Spawn(PROMPT, max_tokens=12, **options))
    machine.follow(pid)
    while pid in machine.kernel.processes:
        assert machine.advance()
        flights = machine.kernel.flights
        assert len(flights) < 2 or pid not in flights[0].places
    assert len(machine.output[pid]) == 12
    machine.finish()


@pytest.mark.parametrize("early", [True, False], ids=["input-waits", "input-comes-later"])
def test_a_row_behind_the_last_token_is_thrown_away(early: bool) -> None:
    """A stop token ends a turn, and the next pass goes on with it. That is not said, and the next
    turn says what it would have said."""
    said = expected_tokens(PROMPT, 5)
    stop = said[-1]
    words = next(w for w in range(256) if stop in expected_tokens([*PROMPT, *said, 40, w], 12))
    more = expected_tokens([*PROMPT, *said, 40, words], 12)
    del more[more.index(stop) + 1 :]
    machine = Ahead()
    pid = machine.call(Spawn(PROMPT, max_tokens=50, stop_tokens=(stop,), keep_open=True))
    machine.follow(pid)
    process = machine.speak(pid, 3)
    if early:
        machine.call(Write(pid, (40, words)))
    while process.last_turn is None:
        assert machine.advance()
    assert process.state is State.RUNNING and process.length == 10 + 2 * early
    if not early:
        assert process.hold is Hold.INPUT
        machine.call(Write(pid, (40, words)))
    machine.run(until_s=60.0)
    assert machine.output[pid] == [*said, *more]
    machine.call(Kill(pid, Signal.KILL))
    machine.run()


def stop_and_go(machine: Ahead, pid: Pid) -> None:
    length = machine.process(pid).length
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=machine.now_s + 1.0)
    process = machine.process(pid)
    assert process.state is State.SWAPPED and process.length == length + 2
    machine.call(Kill(pid, Signal.CONT))


def fork(machine: Ahead, pid: Pid) -> None:
    """A child goes on from what the host knows."""
    (child,) = machine.call(Fork(pid))
    machine.asked[child] = machine.asked[pid]
    parent = machine.process(pid)
    machine.output[child] = parent.tokens[parent.prompt_tokens :]
    machine.follow(child)


def shorten(machine: Ahead, pid: Pid) -> None:
    """The token that is being drawn is the last one: the next is not said."""
    said = machine.process(pid).output_tokens
    machine.call(SetRlimit(pid, max_tokens=said + 1))
    machine.run()
    assert len(machine.output[pid]) == said + 1
    assert machine.ended[pid].reason is ExitReason.LENGTH
    machine.check_output(pid, complete=False)
    del machine.asked[pid]


def kill(machine: Ahead, pid: Pid) -> None:
    """What it writes to is free when the second pass has retired, not before."""
    space, table = machine.process(pid).space, machine.kernel.memory.frames
    pfn = space.pages[space.computed // space.page_tokens].pfn
    assert pfn is not None
    last = machine.kernel.flights[-1].ticket
    machine.call(Kill(pid, Signal.KILL))
    while any(flight.ticket == last for flight in machine.kernel.flights):
        assert table.state(pfn) is FrameState.IN_TRANSFER
        machine.advance()
    machine.run()
    machine.check_output(pid, complete=False)


def suspend(machine: Ahead, pid: Pid) -> None:
    """All that was drawn is in the image."""
    machine.start(ImageDir("images"))
    machine.run(until_s=machine.now_s + 0.01)
    made = machine.start(Suspend(pid, "one"))
    machine.run(until_s=machine.now_s + 1.0)
    assert machine.replies[made].error is None
    machine.start(Resume("one"), then=lambda reply: adopt(machine, reply.value, pid))
    machine.run(until_s=machine.now_s + 1.0)
    del machine.asked[pid]


def adopt(machine: Ahead, again: Pid, pid: Pid) -> None:
    """Its output goes on with what was read of it."""
    machine.asked[again], machine.output[again] = machine.asked[pid], machine.output[pid]
    machine.follow(again)


@pytest.mark.parametrize("what", [stop_and_go, fork, shorten, kill, suspend])
def test_calls_meet_a_process_in_two_passes(what: Callable[[Ahead, Pid], None]) -> None:
    machine = Ahead()
    pid, other = machine.spawn(PROMPT, 30), machine.spawn((1, 2, 3), 30)
    machine.speak(pid, 6)
    what(machine, pid)
    machine.finish()
    machine.check_output(other)


def test_a_pass_that_fails_takes_the_next_one_with_it() -> None:
    """Both are run again; only one failure counts."""
    for kind in ("device", "row"):
        machine = Ahead(faults=FaultPlan(named=(Fault(kind, nth=6),)))
        pids = [machine.spawn((*PROMPT, number), 20) for number in range(2)]
        most = 0
        while machine.kernel.processes:
            assert machine.advance()
            most = max([most, *(p.faults for p in machine.kernel.processes.values())])
        assert most == (kind == "device")
        assert all(
            (machine.ended[pid].reason is ExitReason.ERROR) == (kind == "row") for pid in pids
        )
        machine.finish()


def test_short_of_frames_the_device_comes_to_rest() -> None:
    """Cached pages may be taken only then: a stream that needs one is not left behind."""
    machine = Ahead(frames=12, params=Params(reclaim_low_share=0.0, reclaim_high_share=0.0))
    for number in range(3):
        machine.spawn((100 + number, *range(9)), 2)
        machine.run()
    frames = machine.kernel.memory.frames
    assert frames.count(FrameState.CACHED) >= 6
    pids = [machine.spawn((50 + number, 3), 20) for number in range(2)]
    ahead = []
    while machine.kernel.processes:
        assert machine.advance()
        lengths = [machine.process(pid).output_tokens for pid in pids]
        ahead.append(abs(lengths[0] - lengths[1]))
    assert max(ahead) <= 2
    assert machine.count_drawn_by() > 20
    machine.finish()


def test_the_time_of_a_pass_begins_when_the_one_before_ends() -> None:
    """Not when it is launched: rates would be learnt too low by half."""
    rates = []
    for depth in (1, 2):
        machine = SimMachine(40, 40, depth=depth)
        machine.spawn(PROMPT, 40)
        machine.finish()
        rates.append(machine.kernel.scheduler.rates.step_s)
    assert rates[0] == pytest.approx(rates[1])


# ---- faults put in on purpose ----


def lift_all(table: FrameTable) -> None:
    """What waits for the second pass is free when the first one has retired."""
    for pfn in [pfn for fence in table._fences for pfn in fence]:
        del table._fenced[pfn]
        table._settle(pfn)
    table._fences.popleft()
    for fence in table._fences:
        fence.clear()


def ends_a_turn() -> None:
    test_a_row_behind_the_last_token_is_thrown_away(early=False)


def is_killed() -> None:
    test_calls_meet_a_process_in_two_passes(kill)


def is_stopped() -> None:
    test_calls_meet_a_process_in_two_passes(stop_and_go)


def fills_its_pipe() -> None:
    machine = Ahead(params=Params(pipe_tokens=7))
    machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=1.0)


@pytest.mark.parametrize(
    ("where", "name", "broken", "story"),
    [
        (core, "still_wanted", lambda process, end, drawn: drawn, ends_a_turn),
        (core, "is_void", lambda *_: False, test_a_pass_that_fails_takes_the_next_one_with_it),
        (FrameTable, "lift_fence", lift_all, is_killed),
        (launch, "drawn_by", lambda row: 7, test_streams_run_without_a_gap),
        (launch, "drawn_by", lambda row: -1, test_streams_run_without_a_gap),
        (launch, "count_to_go", lambda *_: 1 << 20, fills_its_pipe),
        (core.Kernel, "_land", lambda self, one: self.move(one, State.READY), is_stopped),
        (core.Kernel, "_keep_running", lambda *_: None, fills_its_pipe),
    ],
    ids=[
        "a token behind the last one is said", "a row behind one that failed counts",
        "frames do not wait for the second pass", "the host's token is run",
        "the token of another row is run", "nobody looks at bounds",
        "it is let go between two passes", "so are streams in full swing",
    ],
)  # fmt: skip
def test_what_keeps_it_right_is_needed(
    where: object,
    name: str,
    broken: Callable[..., object],
    story: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError):
        story()
