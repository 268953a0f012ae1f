"""The last line: what keys do here."""

from collections.abc import Iterable, Sequence

from textual import events
from textual.screen import Screen

from tokenix.tui.model import phrases
from tokenix.tui.model.phrases import Hint
from tokenix.tui.widgets.drawn import Drawn, Piece


class Foot(Drawn):
    """Keys that are worth a hint, those of the program last; a click presses one."""

    DEFAULT_CSS = "Foot { height: 1; dock: bottom; background: $panel; }"

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, _: Screen[object]) -> None:
        self.redraw()

    def draw(self, width: int, height: int) -> Iterable[Sequence[Piece]]:
        pieces: list[Piece] = []
        end = 0
        for at, hint in self._placed(width):
            pieces += [
                (" " * (at - end), "text"), (hint.shown, "primary!"), (f" {hint.words}", "text"),
            ]  # fmt: skip
            end = at + hint.cells
        return [pieces]

    def _placed(self, width: int) -> list[tuple[int, Hint]]:
        """Those for which there is room, and where each begins."""
        found: dict[str, Hint] = {}
        last: dict[str, Hint] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show:
                mine = last if (binding.id or "").startswith("app.") else found
                shown = self.app.get_key_display(binding)
                mine.setdefault(binding.action, Hint(binding.key, shown, binding.description))
        return phrases.hints([*found.values()], [*last.values()], width)

    def on_click(self, event: events.Click) -> None:
        for at, hint in self._placed(self.size.width):
            if at <= event.x < at + hint.cells:
                event.stop()
                self.app.simulate_key(hint.key)
