"""Named segments: prefixes whose KV is pinned, so that every prompt that begins so starts warm.

shm_open(name, tokens) -> a process without output computes the KV -> its full pages are pinned
"""

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import error
from tokenix.mm.ids import Pid
from tokenix.mm.page import Page
from tokenix.mm.space import AddressSpace

if TYPE_CHECKING:
    from tokenix.kernel.lifecycle import Lifecycle
    from tokenix.kernel.process import Process


@dataclass(slots=True)
class Segment:
    name: str
    tenant: str
    call_id: int
    """The shm_open that waits for it."""
    pid: Pid
    want_pages: int
    space: AddressSpace | None = None
    """Keeps its pages once they are computed."""


class Segments:
    """All named segments, by (tenant, name)."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], Segment] = {}

    def find(self, tenant: str, name: str) -> Segment | None:
        return self._by_name.get((tenant, name))

    def add(self, segment: Segment) -> None:
        self._by_name[segment.tenant, segment.name] = segment

    def count_pages(self, tenant: str | None = None) -> int:
        """Pages pinned, and to be pinned, by all segments, or those of one tenant."""
        return sum(
            segment.want_pages
            for segment in self._by_name.values()
            if tenant is None or segment.tenant == tenant
        )

    def pinned_pages(self) -> list[Page]:
        spaces = [segment.space for segment in self._by_name.values() if segment.space is not None]
        return [page for space in spaces for page in space.pages]

    def computed(self, kernel: "Lifecycle", process: "Process") -> None:
        """The KV of the segment's tokens is there: pin its full pages and answer the caller."""
        segment = self._of(process)
        if segment is None:
            return
        segment.space = kernel.memory.pin_segment(process)
        kernel.reply(segment.call_id, segment.space.computed)

    def ended(self, kernel: "Lifecycle", process: "Process") -> None:
        """Its process is gone: without pages, the segment has failed."""
        segment = self._of(process)
        if segment is not None and segment.space is None:
            del self._by_name[segment.tenant, segment.name]
            why = process.exit_error or "its computation was ended"
            kernel.reply(
                segment.call_id,
                error(errno.EIO, f"segment {segment.name!r} could not be computed: {why}"),
            )

    def unlink(self, kernel: "Lifecycle", tenant: str, name: str) -> None:
        segment = self._by_name.pop((tenant, name), None)
        if segment is None:
            raise error(errno.ENOENT, f"no segment is named {name!r}")
        if segment.space is not None:
            kernel.memory.unpin_segment(segment.space)
        process = kernel.processes.get(segment.pid)
        if process is not None:
            self._by_name[tenant, name] = segment
            kernel.exit(process, ExitReason.KILLED, "it was unlinked")

    def _of(self, process: "Process") -> Segment | None:
        name = process.segment
        return None if name is None else self._by_name.get((process.tenant, name))
