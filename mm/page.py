"""A page: PAGE_TOKENS tokens of KV, wherever its bytes are just now.

Address spaces share Page objects, so that one load or one write-behind serves every process that
maps the page. Who may write a field:

    pfn                           mm/frames.py
    mapped, active, recounts      mm/space.py
    key                           mm/prefix.py
    slot, generation,
    loading, leaving              kernel/copies.py, as copies to and from the host tier complete
"""

from dataclasses import dataclass, field

from tokenix.mm.ids import Pfn, Slot, Ticket


@dataclass(slots=True, eq=False)
class Recount:
    """Tells an address space that one of its pages has changed since they were counted."""

    due: bool = True


@dataclass(slots=True, eq=False)
class Page:
    """At least one of: resident (pfn), in the host tier (slot). Both: the page is clean."""

    pfn: Pfn | None = None
    slot: Slot | None = None
    generation: int = 0
    """Names the copy in `slot`; a slot that was reused since holds another generation."""
    key: bytes | None = None
    """Content name of a full page in the prefix index, None while private."""
    mapped: int = 0
    """Address spaces whose table holds this page (a named segment is one too)."""
    active: int = 0
    """Those among `mapped` that need it resident (not paused)."""
    recounts: list[Recount] = field(default_factory=list)
    """Of the spaces that map it."""

    loading: Ticket | None = None
    """The copy that is filling its frame: nobody may read it yet."""
    leaving: Ticket | None = None
    """The copy that is reading its frame on the way to the host tier."""

    @property
    def clean(self) -> bool:
        """Whether dropping the frame loses nothing."""
        return self.slot is not None
