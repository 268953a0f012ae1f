"""Address space: the pages of one process, in order. Page `v` holds tokens v*P .. v*P + P - 1.

    pages      [ shared, full ][ own, full ][ own, partly written ][ growth ]
    tokens      0 .. computed-1 have KV        ^ computed             not written yet

A page that is full is never written again, so it may be shared; the page at `computed` has one
writer. An *active* space needs all its pages resident; a paused one keeps them only as long as
nobody else wants the frames.

While a head is computed again and the tail is loaded at the same time, there is a gap:

    pages      [ computed again ][ not yet  ][ loaded, or being loaded ][ growth ]
    tokens      0 .. computed-1  ^ computed  ^ gap * P                  ^ end

When `computed` reaches the gap, it is `end`, and the gap is closed.
"""

from collections.abc import Sequence

from tokenix.mm.frames import FrameTable
from tokenix.mm.ids import Pid
from tokenix.mm.page import Page, Recount
from tokenix.mm.prefix import PrefixIndex, chain_key


class AddressSpace:
    """Only mm/ and kernel/memory.py change an address space; everybody may look."""

    def __init__(
        self,
        pid: Pid,
        page_tokens: int,
        frames: FrameTable,
        index: PrefixIndex,
        root: bytes,
        tenant: str = "",
    ) -> None:
        self.pid = pid
        self.tenant = tenant
        self.page_tokens = page_tokens
        self.pages: list[Page] = []
        self.computed = 0
        """Tokens whose KV is in `pages`."""
        self.gap = 0
        """The page from which on KV is there although it is not before it; 0: there is no gap."""
        self._end = 0
        self.active = False
        """Whether every page must be resident. A new space is paused: it has nothing yet."""
        self.keys: list[bytes] = []
        """Chain keys of the sequence's full pages, as far as they were needed."""
        self._frames = frames
        self._index = index
        self._root = root
        self._recount = Recount()
        self._counts = (0, 0, 0, 0, 0, 0)

    # ---- look only ----

    @property
    def end(self) -> int:
        """Tokens up to which `pages` hold KV, but for a gap."""
        return self._end if self.gap else self.computed

    @property
    def ahead(self) -> int:
        """Tokens behind the gap, whose KV need not be computed."""
        return self._end - self.gap * self.page_tokens if self.gap else 0

    @property
    def mapped(self) -> int:
        """Pages in the table."""
        return len(self.pages)

    @property
    def missing(self) -> int:
        """Mapped pages that are not on the device."""
        return self._count()[0]

    @property
    def exclusive(self) -> int:
        """Resident pages that only this space keeps there: frames gained when it is paused."""
        return self._count()[1]

    @property
    def exclusive_dirty(self) -> int:
        """Those of `exclusive` that have no copy in a lower tier yet."""
        return self._count()[2]

    @property
    def idle_resident(self) -> int:
        """Resident pages that no running process needs (of a paused space)."""
        return self._count()[3]

    @property
    def deep(self) -> int:
        """Mapped pages that are in the swap file only."""
        return self._count()[4]

    @property
    def clean(self) -> int:
        """Mapped pages with a copy in a lower tier."""
        return self._count()[5]

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    def _count(self) -> tuple[int, int, int, int, int, int]:
        if self._recount.due:
            missing = exclusive = dirty = idle = deep = clean = 0
            mine = 1 if self.active else 0
            for page in self.pages:
                below = page.slot is not None or page.block is not None
                clean += 1 if below else 0
                if page.pfn is None:
                    missing += 1
                    deep += 1 if page.slot is None else 0
                elif page.active == mine:
                    exclusive += mine
                    idle += 1 - mine
                    dirty += 0 if below else mine
            self._counts = (missing, exclusive, dirty, idle, deep, clean)
            self._recount.due = False
        return self._counts

    # ---- changes ----

    def extend_keys(self, tokens: Sequence[int], full_pages: int) -> None:
        """Compute the chain keys of the first `full_pages` pages of `tokens`."""
        step = self.page_tokens
        for vpn in range(len(self.keys), full_pages):
            parent = self.keys[-1] if self.keys else self._root
            self.keys.append(chain_key(parent, tokens[vpn * step : (vpn + 1) * step]))

    def extend_known_keys(self, tokens: Sequence[int], full_pages: int) -> None:
        """The same, but not behind a page that cannot be found: nothing behind it can be, and
        hashing a long prompt takes milliseconds."""
        while len(self.keys) < full_pages and (not self.keys or self._index.knows(self.keys[-1])):
            self.extend_keys(tokens, len(self.keys) + 1)

    def attach(self, pages: Sequence[Page]) -> None:
        """Map full pages behind what is mapped; they count as computed."""
        assert self.computed == self.mapped * self.page_tokens, "only behind full pages"
        for page in pages:
            self._map(page)
        self.computed = self.mapped * self.page_tokens

    def grow(self, count: int) -> None:
        """Map `count` fresh pages. The caller has made sure that as many frames are free."""
        assert self.active, "a paused space does not grow"
        for _ in range(count):
            page = Page(self.tenant, mapped=1, active=1, recounts=[self._recount])
            self._frames.take(page)
            self.pages.append(page)

    def open_gap(self, first: int, gap: int) -> list[Page]:
        """The pages `first` .. `gap` - 1 are computed again, while those behind are loaded: fresh
        ones with frames, of which as many are free, take their place. Returns those that are gone,
        as `truncate` does."""
        assert self.active and not self.gap, "it is being brought in"
        assert first < gap <= self.computed // self.page_tokens, "whole pages, and something behind"
        dropped = self.pages[first:gap]
        fresh = [Page(self.tenant, mapped=1, active=1, recounts=[self._recount]) for _ in dropped]
        self.pages[first:gap] = fresh
        gone = [page for page in dropped if self._unmap(page)]
        for page in fresh:
            self._frames.take(page)
        self.gap, self._end, self.computed = gap, self.computed, first * self.page_tokens
        self._recount.due = True
        return gone

    def advance(self, tokens: Sequence[int], computed: int) -> Sequence[Page]:
        """KV of `tokens[:computed]` is now written: name the pages that have become full, and
        return them. A gap that is filled is closed."""
        step = self.page_tokens
        assert self.computed <= computed <= (self.gap or self.mapped) * step, (
            "computed grows in bounds"
        )
        first, full = self.computed // step, computed // step
        self.computed = computed
        if self.gap and full == self.gap:
            self.gap, self.computed = 0, self._end
        if full == first:
            return ()
        self.extend_keys(tokens, full)
        for vpn in range(first, full):
            self.name_page(vpn, tokens)
        return self.pages[first:full]

    def parent_key(self, vpn: int) -> bytes:
        """What names all that is before page `vpn`; its pages are full and their keys known."""
        return self.keys[vpn - 1] if vpn else self._root

    def name_page(self, vpn: int, tokens: Sequence[int]) -> None:
        """Page `vpn` is full and its key is known: it can be found from now on."""
        if self.pages[vpn].key is None:
            mine = tokens[vpn * self.page_tokens : (vpn + 1) * self.page_tokens]
            self._index.insert(self.pages[vpn], self.keys[vpn], self.parent_key(vpn), mine)

    def adopt(self, tokens: int) -> Page:
        """The page at `computed` gets the KV of its first `tokens` tokens by a copy; returns it."""
        assert self.active and self.computed % self.page_tokens == 0 and not self.gap
        page = self.pages[self.computed // self.page_tokens]
        self.computed += tokens
        return page

    def advance_one(self) -> None:
        """KV of one more token is written, and its page is not full yet."""
        self.computed += 1

    def attach_tail(self, page: Page, computed: int) -> None:
        """Map a partly written page behind full ones (a paused space)."""
        assert not self.active and self.computed == self.mapped * self.page_tokens < computed
        assert computed < self.computed + self.page_tokens, "a full page is attached"
        self._map(page)
        self.computed = computed

    def share_full_pages(self, child: "AddressSpace", tokens: int) -> None:
        """Map the full pages of the first `tokens` tokens, which are computed, into `child` (fork);
        the partial tail is the caller's business."""
        assert tokens <= self.computed, "what is shared is there"
        full = tokens // self.page_tokens
        child.keys = self.keys[:full]
        for page in self.pages[:full]:
            child._map(page)
        child.computed = full * self.page_tokens

    def append_tail(self, computed: int) -> Page:
        """Map one fresh page for the copied tail of a forked parent (a paused space, one frame)."""
        assert not self.active and self.computed == self.mapped * self.page_tokens
        page = Page(self.tenant, mapped=1, recounts=[self._recount])
        self._frames.take(page)
        self.pages.append(page)
        self.computed = computed
        return page

    def pause(self) -> None:
        """The process does not run for a while: its pages need not stay on the device."""
        assert self.active, "pause follows activate"
        self.active = False
        for page in self.pages:
            page.active -= 1
            self._frames.note(page)

    def activate(self) -> None:
        """All pages must be resident, or get their frames before the process runs."""
        assert not self.active, "activate follows pause"
        self.active = True
        for page in self.pages:
            page.active += 1
            self._frames.note(page)

    def truncate(self, full_pages: int) -> list[Page]:
        """Unmap all but the first `full_pages` pages; the KV behind must be computed again.

        Returns the pages that are gone: nobody maps them, and they are not kept for their content.
        Their copies in the lower tiers are the caller's to free.
        """
        dropped = self.pages[full_pages:]
        del self.pages[full_pages:]
        if self.gap >= full_pages:
            self.gap = 0
        self.computed = min(self.computed, full_pages * self.page_tokens)
        self._end = min(self._end, full_pages * self.page_tokens)
        gone = []
        for page in reversed(dropped):
            if self._unmap(page):
                gone.append(page)
        self._recount.due = True
        return gone

    def _map(self, page: Page) -> None:
        page.mapped += 1
        page.active += 1 if self.active else 0
        page.recounts.append(self._recount)
        self.pages.append(page)
        self._frames.note(page)

    def _unmap(self, page: Page) -> bool:
        """True if the page is gone."""
        page.mapped -= 1
        page.recounts.remove(self._recount)
        page.active -= 1 if self.active else 0
        assert page.mapped >= page.active >= 0, "counts follow the maps"
        if page.mapped > 0 or page.findable:
            self._frames.note(page)
            return False
        self._index.forget(page)
        if page.pfn is not None:
            self._frames.release(page)
        return True
