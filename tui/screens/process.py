"""One process: its life in time, where its pages are, what it has used, what happens to it."""

from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from tokenix.syscalls.types import PageMap, Pid, ProcessStat, TraceEvent
from tokenix.tui.model import events, maps, timeline, usage
from tokenix.tui.model.phrases import Pieces
from tokenix.tui.model.timeline import Span
from tokenix.tui.screens.acts import Acts, act_keys
from tokenix.tui.screens.page import Page, titled
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import View
from tokenix.tui.widgets.words import Words

Answer = TypeVar("Answer")

WINDOWS_S = (None, 60.0, 15.0)
"""How much of its life is shown; None: all of it."""
TRACED = 1000
"""Events that are remembered."""
TAIL_TOKENS = 256


class ProcessScreen(Page, Acts):
    """Asks for the pages and the events of its process, and for its output if that is shown."""

    DEFAULT_CSS = """
    ProcessScreen #who { height: 1; background: $surface; }
    ProcessScreen #life { height: 14; }
    ProcessScreen .columns { height: 1fr; }
    ProcessScreen #usage { height: 8; }
    ProcessScreen.small #life { height: 7; }
    ProcessScreen.small .columns { layout: vertical; }
    ProcessScreen.small #left { height: 8; }
    ProcessScreen.small #usage { height: 5; }
    ProcessScreen #output { display: none; }
    ProcessScreen.output #output { display: block; }
    ProcessScreen.small.output #trace { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "Back", id="process.back"),
        Binding("o", "output", "Output", id="process.output"),
        Binding("z", "window", "Span of time", id="process.window"),
        Binding("n", "beside(1)", "Next", id="process.next"),
        Binding("b", "beside(-1)", "Before", id="process.before"),
        *act_keys("process"),
    ]

    def __init__(self, pid: Pid) -> None:
        super().__init__()
        self._window = 0
        self._time_s = 0.0
        self._open(pid)

    def _open(self, pid: Pid) -> None:
        self.pid = pid
        self._process: ProcessStat | None = None
        """As it was when it was last seen."""
        self._events: list[TraceEvent] = []
        self._pages: PageMap | OSError | None = None
        self._output = ""
        self._no_events = ""
        """Why there are none."""

    def body(self) -> ComposeResult:
        yield Words(id="who")
        yield titled(Words(id="life"), "Life: its reader's lead, and what it did")
        with Horizontal(classes="columns"):
            with Vertical(id="left"):
                yield titled(Words(id="usage"), "Used")
                yield titled(Words(id="pages"), "Pages")
            with Vertical(id="right"):
                yield titled(Words(id="trace"), "What happened to it")
                yield titled(Words(id="output"), "The end of its output")

    @property
    def chosen(self) -> ProcessStat | None:
        return self._process

    # ---- looks ----

    def show(self, look: Snapshot) -> None:
        if look.time_s < self._time_s:  # back in a recording, or another machine
            self._events.clear()
        self._time_s = look.time_s
        found = next((each for each in look.processes if each.pid == self.pid), None)
        if found is not None:
            self._process = found
        process = self._process
        if process is None:
            gone = [(f" there is no process {self.pid} any more", "warning!")]
            self._words("who").show(lambda width, height: [gone])
            return
        who = usage.who(process)
        if found is None:
            who = [*who, ("  gone", "warning!")]
        self._words("who").show(lambda width, height: [who])
        page_bytes = look.figures.get("frames.page_bytes", 0.0)
        self._words("usage").show(lambda width, height: usage.usage(process, page_bytes))
        self._show_life(process, look.time_s)
        self._show_pages()
        self._show_events()
        self._words("output").show(lambda width, height: usage.wrapped(self._output, width, height))

    def _words(self, name: str) -> Words:
        return self.query_one(f"#{name}", Words)

    def _show_life(self, process: ProcessStat, now_s: float) -> None:
        samples = self.top.tracks.of(self.pid)
        spans = self._spans(process, now_s)
        length_s = WINDOWS_S[self._window]
        start_s = spans[0].start_s if spans else now_s - 1.0
        if length_s is not None:
            start_s = now_s - length_s
        title = "its whole life" if length_s is None else f"the last {length_s:g} s"
        life = self._words("life")
        life.border_subtitle = title

        def draw(width: int, height: int) -> list[Pieces]:
            window = (start_s, max(now_s, start_s + 1.0))
            words = [*usage.lead_words(process), ("   ", "text"), *timeline.shares(spans)]
            return [words, *timeline.life(spans, samples, window, width, height - 1)]

        life.show(draw)

    def _spans(self, process: ProcessStat, now_s: float) -> list[Span]:
        if self._events:
            return timeline.spans_of_events(self._events, now_s - process.age_s, now_s)
        return timeline.spans_of_samples(self.top.tracks.of(self.pid), now_s)

    def _show_pages(self) -> None:
        words, pages = self._words("pages"), self._pages
        if isinstance(pages, PageMap):
            computed = f"{pages.computed_tokens} computed"
            words.border_subtitle = f"{pages.total} pages of {pages.page_tokens} tokens, {computed}"
            codes = pages.codes
            words.show(lambda width, height: maps.grid(codes, maps.PAGE, width, height))
        elif pages is not None:
            why = pages.strerror or str(pages)
            words.show(lambda width, height: usage.wrapped(why, width, height))

    def _show_events(self) -> None:
        some, why = self._events, self._no_events

        def draw(width: int, height: int) -> list[Pieces]:
            if not some:
                return [[(why, "muted")]]
            return [events.line(event, with_pid=False) for event in some[-height:]]

        self._words("trace").show(draw)

    def _show_output(self) -> None:
        text = self._output
        self._words("output").show(lambda width, height: usage.wrapped(text, width, height))

    # ---- questions ----

    def question(self) -> None:
        pid = self.pid
        since = self._events[-1].seq if self._events else 0
        self._ask("pages", lambda view: view.maps(pid), self._take_pages)
        self._ask("trace", lambda view: view.trace(pid, since, TRACED), self._take_events)
        if self.has_class("output"):
            self._ask(
                "output",
                lambda view: view.detokenize(view.tail(pid, TAIL_TOKENS)),
                self._take_output,
            )

    def _ask(
        self,
        what: str,
        work: Callable[[View], Answer],
        then: Callable[[Answer | OSError], None],
    ) -> None:
        """As `inquire`; an answer about the process that was shown before is dropped."""
        pid = self.pid

        def take(found: Answer | OSError) -> None:
            if pid == self.pid:
                then(found)

        self.inquire(f"{what} of {pid}", work, take)

    def _take_pages(self, found: PageMap | OSError) -> None:
        self._pages = found
        self._show_pages()

    def _take_events(self, found: tuple[TraceEvent, ...] | OSError) -> None:
        if isinstance(found, OSError):
            self._no_events = found.strerror or str(found)
        else:
            newest = self._events[-1].seq if self._events else 0
            self._events += [event for event in found if event.seq > newest]
            del self._events[:-TRACED]
        self._show_events()

    def _take_output(self, found: str | OSError) -> None:
        self._output = found if isinstance(found, str) else (found.strerror or str(found))
        self._show_output()

    # ---- keys ----

    def action_output(self) -> None:
        """Show what it writes, or hide it."""
        self.toggle_class("output")
        self._output = ""
        self._show()

    def action_window(self) -> None:
        self._window = (self._window + 1) % len(WINDOWS_S)
        self._show()

    def action_beside(self, steps: int) -> None:
        """The process after it in the table, or before it."""
        pids = [line.process.pid for line in self.top.listing.lines]
        if pids:
            at = pids.index(self.pid) + steps if self.pid in pids else 0
            self._open(pids[at % len(pids)])
            self._show()
