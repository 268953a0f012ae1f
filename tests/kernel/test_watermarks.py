"""The reclaim daemon: frames are freed ahead of need, between two watermarks."""

from tokenix.kernel.calls import Vmstat
from tokenix.kernel.params import Params
from tokenix.mm.frames import FrameState
from tokenix.tests.sim.machine import SimMachine


def cached_and_free(params: Params) -> tuple[int, int]:
    """A pool that finished processes have filled with findable pages; then one more step."""
    machine = SimMachine(40, 0, params=params)
    for number in range(6):
        machine.spawn(tuple(range(number, number + 24)), 2)
        machine.run()
    frames = machine.kernel.memory.frames
    return frames.count(FrameState.CACHED), frames.count(FrameState.FREE)


def test_the_daemon_keeps_frames_free() -> None:
    marks = Params(reclaim_low_share=0.2, reclaim_high_share=0.3)
    cached, free = cached_and_free(marks)
    assert free >= 8 and cached + free == 40, (cached, free)


def test_without_watermarks_the_cache_takes_what_it_can() -> None:
    cached, free = cached_and_free(Params(reclaim_low_share=0.0, reclaim_high_share=0.0))
    assert free < 8 and cached + free == 40, (cached, free)


def test_the_daemons_are_told_of() -> None:
    """Marks are those of the parameters, and what the daemons did is counted."""
    machine = SimMachine(40, 40, params=Params(poison=True))
    for salt in range(6):
        machine.spawn(tuple((token * 3 + salt) % 250 for token in range(60)), 6)
        machine.finish()
    figures = machine.call(Vmstat())
    marks = machine.kernel.memory.watermarks
    assert (figures["reclaim.low"], figures["reclaim.high"]) == (marks.low, marks.high)
    assert figures["sink.low"] == 0.1 * 40 and figures["sink.high"] == 0.2 * 40
    assert 0 <= figures["sink.free"] <= figures["host.total"] and figures["sink.pages"] == 0
    assert figures["reclaim.pages"] > 0, "six prompts did not fit side by side"
    assert figures["writebehind.stranded"] == 0 and figures["writebehind.queue"] >= 0
    assert not any(figures[f"swap.flight_{lane}"] for lane in ("in", "out", "store", "fetch"))
