"""The reclaim daemon: frames are freed ahead of need, between two watermarks."""

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
