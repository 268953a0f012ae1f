"""Frames, an index and spaces, without a kernel."""

from tokenix.mm import audit
from tokenix.mm.frames import FrameTable
from tokenix.mm.ids import Pid
from tokenix.mm.page import Page
from tokenix.mm.prefix import PrefixIndex, root_key
from tokenix.mm.space import AddressSpace

PAGE_TOKENS = 4


class Pool:
    """A few frames and the spaces over them."""

    def __init__(self, frames: int = 8, cache: bool = True) -> None:
        self.index = PrefixIndex(cache)
        self.frames = FrameTable(frames, self.index.note)
        self.spaces: list[AddressSpace] = []
        self.pinned: list[Page] = []

    def space(self, tokens: tuple[int, ...] = (), tenant: str = "red") -> AddressSpace:
        """An active space that has computed `tokens`."""
        pid = Pid(len(self.spaces) + 1)
        space = AddressSpace(pid, PAGE_TOKENS, self.frames, self.index, root_key(tenant))
        self.spaces.append(space)
        space.activate()
        space.grow(space.pages_for(len(tokens)))
        space.advance(tokens, len(tokens))
        return space

    def check(self) -> None:
        audit.check(self.frames, self.index, self.spaces, self.pinned)
