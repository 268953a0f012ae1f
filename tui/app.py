"""The program: it pulls looks from a source, keeps the model, and shows screens."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import App, ScreenStackError, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from tokenix.cli.table import seconds
from tokenix.syscalls.types import Pid
from tokenix.tui.asking import Puller, ask
from tokenix.tui.messages import Looked, Pulled
from tokenix.tui.model.history import History
from tokenix.tui.model.listing import Listing
from tokenix.tui.model.tracks import Tracks
from tokenix.tui.replay import Replay
from tokenix.tui.screens.dialogs import Palette
from tokenix.tui.screens.help import Help, lines_of
from tokenix.tui.screens.log import LogScreen
from tokenix.tui.screens.main import MainScreen
from tokenix.tui.screens.memory import MemoryScreen
from tokenix.tui.screens.process import ProcessScreen
from tokenix.tui.screens.scheduler import SchedulerScreen
from tokenix.tui.settings import Settings
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.source import Source, View
from tokenix.tui.themes import DARK, LIGHT, PLAIN
from tokenix.tui.widgets.drawn import Piece
from tokenix.tui.widgets.headline import Headline

Answer = TypeVar("Answer")

REFRESHES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between looks that the keys step through."""

SILENT_S = 2.0
"""A machine that has not answered for so long is said to be silent."""

SPEEDS = (1 / 16, 64.0)
"""Least and greatest of a recording."""


class TopApp(App[None]):
    """`tokenix top`. It ends by itself only with an error of ours: the machine may come back."""

    TITLE = "tokenix top"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "processes": MainScreen,
        "memory": MemoryScreen,
        "scheduler": SchedulerScreen,
        "log": LogScreen,
    }
    """The views, in the order of their keys 1, 2, ..."""
    DEFAULT_MODE = "processes"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(at), f"view('{name}')", name.capitalize(), show=False, id=f"view.{name}")
            for at, name in enumerate(MODES, start=1)
        ),
        Binding("question_mark,f1", "help", "Help", id="app.help"),
        Binding("ctrl+s", "picture", "Save a picture (SVG)", show=False, id="app.picture"),
        Binding("q,f10", "quit", "Quit", id="app.quit"),
        Binding("plus,equals_sign", "faster(-1)", "Look more often", show=False, id="app.faster"),
        Binding("minus", "faster(1)", "Look less often", show=False, id="app.slower"),
        Binding("left_square_bracket", "skip(-5)", "Back 5 s", show=False, id="app.back"),
        Binding("right_square_bracket", "skip(5)", "On 5 s", show=False, id="app.on"),
        Binding("left_curly_bracket", "speed(0.5)", "Half the speed", show=False, id="app.half"),
        Binding("right_curly_bracket", "speed(2)", "Twice the speed", show=False, id="app.twice"),
    ]

    def __init__(self, source: Source, settings: Settings) -> None:
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.failure: Exception | None = None
        """An error of ours that has ended the program."""
        self.source = source
        self.settings = settings
        self.history = History()
        self.tracks = Tracks()
        self.snapshot: Snapshot | None = None
        """The newest look that is shown."""
        self.frozen = False
        self.listing = Listing(self.history, sorted_by=settings.sort, prompts=settings.prompts)
        self._trouble = ""
        self._acting: threading.Thread | None = None
        """What was done to the machine last."""
        self.playback = source if isinstance(source, Replay) else None
        self._puller = Puller(source, settings.refresh, self._deliver)

    def on_mount(self) -> None:
        self.theme = PLAIN if self.no_color else self.settings.theme
        self.set_keymap(dict(self.settings.keys))
        self._puller.start()
        self.set_interval(SILENT_S / 2, self._notice_silence)

    def on_unmount(self) -> None:
        self._puller.stop()
        self.source.close()

    def _fatal_error(self) -> None:
        """An error of ours ends the program. Textual's own report is left out, as it shows what
        variables hold, and that may be prompts."""
        self.failure = self._exception
        self._close_messages_no_wait()

    @classmethod
    def action_names(cls) -> set[str]:
        """What keys can be given to, by the names of the key map."""
        owners = [cls, ProcessScreen, *cls.MODES.values()]
        return {
            binding.id
            for owner in owners
            for binding in Binding.make_bindings(getattr(owner, "BINDINGS", ()))
            if binding.id is not None
        }

    # ---- looks ----

    def _deliver(self, found: Snapshot | Exception) -> None:
        self.post_message(Pulled(found))

    @on(Pulled)
    def _pulled(self, message: Pulled) -> None:
        found = message.found
        if isinstance(found, OSError):
            self._trouble = found.strerror or str(found)
        elif isinstance(found, Exception):
            raise found
        else:
            self._trouble = ""
            self.history.take(found)
            self.tracks.take(found.time_s, found.processes)
            if not self.frozen:
                self.snapshot = found
        self._tell()
        self._puller.taken()

    def _tell(self) -> None:
        """The screen in front that there is something new, and what can be seen below a dialog."""
        for screen in self._in_sight():
            screen.post_message(Looked())

    def _notice_silence(self) -> None:
        if self._puller.silent_s >= SILENT_S:
            for screen in self._in_sight():
                for headline in screen.query(Headline):
                    headline.show(*self.headline())

    def _in_sight(self) -> list[Screen[Any]]:
        """Dialogs, and the screen below them; while the program begins or ends there is none."""
        found: list[Screen[Any]] = []
        with contextlib.suppress(ScreenStackError):
            for screen in reversed(self.screen_stack):
                found.append(screen)
                if not isinstance(screen, ModalScreen):
                    break
        return found

    def headline(self) -> tuple[list[Piece], list[Piece], list[Piece]]:
        """What the first line says: left, the views, right."""
        left: list[Piece] = [(" tokenix top ", "text!")]
        look = self.snapshot
        if look is not None:
            policy = str(look.controls.get("policy", ""))
            left += [
                (f" {look.machine}", "primary!"), (f"  {policy}", "muted"),
                (f"  up {seconds(look.time_s)}", "muted"),
            ]  # fmt: skip
        views: list[Piece] = []
        for at, name in enumerate(self.MODES, start=1):
            role = "primary!" if name == self.current_mode else "muted"
            views += [(f"{at} ", "muted"), (f"{name}  ", role)]
        return left, views, self._condition()

    def _condition(self) -> list[Piece]:
        """Whether what is shown is now."""
        if self.playback is not None:
            if self._trouble:
                return [(f"{self._trouble} ", "error!")]
            return _playing(self.playback, self.frozen)
        silent_s = self._puller.silent_s
        if silent_s >= SILENT_S:
            return [("no answer ", "error!"), (f"for {silent_s:.0f} s ", "text")]
        if self._trouble:
            return [("trying again", "error!"), (f": {self._trouble} ", "muted")]
        word: Piece = ("frozen ", "warning!") if self.frozen else ("live ", "success!")
        return [word, (f"{self._puller.every_s:g} s ", "muted")]

    # ---- what screens ask for ----

    def ask(
        self,
        work: Callable[[View], Answer],
        then: Callable[[Answer], object],
        failed: Callable[[OSError], object] | None = None,
        after: threading.Thread | None = None,
    ) -> threading.Thread:
        """Do `work` in a thread, then `then` with its answer here; an error is shown, if nobody
        takes it. `after` an earlier question has ended."""

        def show(problem: OSError) -> None:
            self.notify(problem.strerror or str(problem), severity="error")

        return ask(
            self.source, work, lambda answer: self.call_later(then, answer),
            lambda problem: self.call_later(failed or show, problem), after,
        )  # fmt: skip

    def may_act(self) -> bool:
        """Whether something can be done to the machine; says so if not."""
        if not self.source.can_act:
            self.notify("a recording cannot be acted on", severity="warning")
        return self.source.can_act

    def act(self, done: str, work: Callable[[View], object]) -> None:
        """Do something to the machine; say that it is `done`, or why not."""

        def then(_: object) -> None:
            self.notify(done, timeout=2)
            self._puller.hurry()

        if self.may_act():
            self._acting = self.ask(work, then, after=self._acting)

    def open_process(self, pid: Pid) -> None:
        """The screen of one process."""
        self.push_screen(ProcessScreen(pid))

    # ---- keys ----

    def action_view(self, name: str) -> None:
        """One of the views instead of what is there."""
        if isinstance(self.screen, ModalScreen):
            return
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.switch_mode(name)

    def action_help(self) -> None:
        if not isinstance(self.screen, ModalScreen):
            self.push_screen(Help(self.screen))

    def action_picture(self) -> None:
        try:
            path = self.save_screenshot(time.strftime("tokenix-top-%Y%m%d-%H%M%S.svg"))
        except OSError as problem:
            self.notify(f"no picture: {problem.strerror or problem}", severity="error")
        else:
            self.notify(f"saved {path}")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """For the palette: all that a key does here."""
        yield SystemCommand("Theme", "Change the colours", self.action_change_theme)
        for line in lines_of(screen):
            yield SystemCommand(line.words, f"Key: {line.keys}", partial(self._press, line.key))

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    async def _press(self, key: str) -> None:
        self.simulate_key(key)

    def action_freeze(self) -> None:
        self.frozen = not self.frozen
        if self.playback is not None:
            self.playback.hold(self.frozen)
        self._tell()

    def action_faster(self, steps: int) -> None:
        at = REFRESHES.index(min(REFRESHES, key=lambda s: abs(s - self._puller.every_s)))
        self._puller.every_s = REFRESHES[min(len(REFRESHES) - 1, max(0, at + steps))]
        self._puller.hurry()

    def action_skip(self, seconds: int) -> None:
        """In a recording."""
        if self.playback is not None:
            self.playback.skip(seconds)
            self._puller.hurry()

    def action_speed(self, times: float) -> None:
        """Of a recording."""
        if self.playback is not None:
            low, high = SPEEDS
            self.playback.play(min(high, max(low, self.playback.speed * times)))


def _playing(playback: Replay, held: bool) -> list[Piece]:
    position = f"{playback.position_s:.0f}/{playback.length_s:.0f} s "
    word: Piece = ("held ", "warning!") if held else ("replay ", "accent!")
    return [word, (f"{playback.speed:g}x ", "text"), (position, "muted")]
