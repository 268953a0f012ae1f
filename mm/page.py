"""A page: PAGE_TOKENS tokens of KV, wherever its bytes are just now.

    frame  --leaving-->  host slot  --storing-->  block of the swap file
           <--loading--             <--rising---

Address spaces share Page objects, so that one load or one write-behind serves every process that
maps the page. Who may write a field:

    pfn                           mm/frames.py
    mapped, active, recounts      mm/space.py
    key, parent, use              mm/prefix.py
    booked                        mm/quota.py
    all others                    kernel/copies.py, as copies between the tiers begin and complete
"""

from dataclasses import dataclass, field

from tokenix.mm.evict import Known
from tokenix.mm.ids import Block, Pfn, Slot, Ticket


@dataclass(slots=True, eq=False)
class Recount:
    """Tells an address space that one of its pages has changed since they were counted."""

    due: bool = True


@dataclass(slots=True, eq=False)
class Page:
    """In at least one tier while anybody maps or can find it. In a lower tier too: it is clean."""

    tenant: str = ""
    """Whose it is. Constant."""
    pfn: Pfn | None = None
    slot: Slot | None = None
    generation: int = 0
    """Names the copy in `slot`; a slot that was reused since holds another generation."""
    block: Block | None = None
    block_generation: int = 0
    key: bytes | None = None
    """Content name of a full page in the prefix index, None while private."""
    parent: bytes = b""
    """Key of the page before it, while it can be found."""
    use: "Known[Page] | None" = None
    """What is known of its use while it can be found."""
    booked: tuple[bool, bool, bool] = (False, False, False)
    """In which tiers its tenant's count has it: frames, host, disk."""
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
    storing: Ticket | None = None
    """The copy that is reading its slot on the way to the swap file."""
    rising: Ticket | None = None
    """The copy that is reading its block on the way to the host tier."""
    failed_stores: int = 0
    """Of what is in `slot`."""

    @property
    def clean(self) -> bool:
        """Whether dropping the frame loses nothing."""
        return self.slot is not None or self.block is not None

    @property
    def deep(self) -> bool:
        """Whether it is in the swap file only."""
        return self.pfn is None and self.slot is None

    @property
    def findable(self) -> bool:
        """Whether it is kept for its content although nobody maps it: none of it is on its way."""
        return self.key is not None and self.loading is None and self.rising is None
