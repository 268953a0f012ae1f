"""A machine in this process to look at: the production kernel on a simulated device, in real time,
with a load that shows what the kernel is for. It needs no model."""

from collections.abc import Sequence

import msgspec

from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.types import Pid
from tokenix.tui import demoload
from tokenix.tui.look import Looker
from tokenix.tui.model.narrator import Narrator
from tokenix.tui.snapshot import Snapshot

OPENING = (
    f"Each line is a request: {demoload.STREAMS} are written at {1 / demoload.STEP_S:.0f} tokens/s "
    f"and read at {demoload.READ_PER_S:.0f}.",
    "LEAD is text that is written but not yet read. Who has seconds of it can be paused unseen.",
)
PIPE_TOKENS = 1 << 30
"""Nobody takes the output: readers are those that the kernel imagines."""


class Demo:
    """Keeps `tui.source.Source`."""

    can_act = True

    def __init__(self) -> None:
        self._calls = rehearse(
            pages=demoload.PAGES, host_pages=demoload.HOST_PAGES, step_s=demoload.STEP_S,
            pipe_tokens=PIPE_TOKENS,
        )  # fmt: skip
        self._load = demoload.Load(self._calls)
        self._looker = Looker("demonstration")
        self._narrator = Narrator(OPENING)
        self._heard = 0
        """Number of the last event."""

    def pull(self) -> Snapshot:
        found = self._looker.look(self._calls)
        events = self._calls.trace(since=self._heard)
        if events:
            self._heard = events[-1].seq
        return msgspec.structs.replace(found, notes=self._narrator.listen(events, found))

    def watch(self, pids: Sequence[Pid]) -> None:
        self._looker.watch(pids)

    def view(self) -> Syscalls:
        return self._calls

    def close(self) -> None:
        self._load.close()
        self._calls.close()
