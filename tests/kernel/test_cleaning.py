"""When full pages are copied ahead of need: at once where a copy costs a pass nothing, else when no
pass runs or frames run short."""

from dataclasses import replace
from typing import cast

import pytest

from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.ops import Command, Completion, CopyOut, Forward, ForwardDone
from tokenix.drivers.sim import SimDevice
from tokenix.kernel.params import Params
from tokenix.tests.sim.machine import SimMachine

PAGES = 8
"""Full ones of the process here."""


class Shared(SimDevice):
    """Copies take the time of its passes, as on a CPU."""

    running = False
    copies_beside = 0
    """Pages whose copy was asked for while a pass ran."""

    def info(self) -> DeviceInfo:
        return replace(super().info(), copies_compute=True)

    def submit(self, command: Command, now_s: float) -> None:
        if isinstance(command, Forward):
            self.running = True
        elif isinstance(command, CopyOut) and self.running:
            self.copies_beside += len(command.pages)
        super().submit(command, now_s)

    def poll(self, now_s: float) -> list[Completion]:
        found = super().poll(now_s)
        self.running = self.running and not any(isinstance(one, ForwardDone) for one in found)
        return found


@pytest.mark.parametrize(
    ("frames", "share", "beside"), [(64, 0.25, False), (11, 0.25, True), (64, 1.0, True)]
)
def test_copies_that_cost_passes_wait_until_frames_are_short(
    frames: int, share: float, beside: bool
) -> None:
    params = Params(clean_early_share=share, poison=True)
    machine = SimMachine(frames, 64, params=params, make_device=Shared, page_tokens=4)
    machine.spawn(tuple(range(4 * PAGES)), 8)
    machine.run()
    assert bool(cast("Shared", machine.device).copies_beside) == beside
    host = machine.kernel.memory.copies.host
    assert host.total - host.free_places >= PAGES, "when no pass runs, all become clean"
