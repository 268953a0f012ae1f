"""What can be done to a process: signals, nice. Screens that show one have these keys."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from textual.binding import Binding
from textual.screen import Screen

from tokenix.syscalls.types import Pid, ProcessStat, Signal
from tokenix.tui.screens.dialogs import Choice, Confirm

if TYPE_CHECKING:
    from tokenix.tui.app import TopApp

SIGNALS = (
    (Signal.TERM, "ends it; what it has written can still be read"),
    (Signal.KILL, "ends it at once"),
    (Signal.STOP, "stops it; its frames are free for others"),
    (Signal.CONT, "goes on with it"),
)
DESTROYS = (Signal.TERM, Signal.KILL)
WISH_S = 1.5
"""For so long the next key counts from the nice value that the last one has asked for: looks do not
show it at once."""


def act_keys(group: str) -> list[Binding]:
    """The keys of `Acts`; `group` names them in the key map."""
    return [
        Binding("f9,k", "signal", "Signal", id=f"{group}.signal"),
        Binding("f7", "nice(-1)", "Nice-", id=f"{group}.favour"),
        Binding("f8", "nice(1)", "Nice+", id=f"{group}.yield"),
        Binding("s", "send(19)", "Stop", show=False, id=f"{group}.stop"),
        Binding("c", "send(18)", "Continue", show=False, id=f"{group}.continue"),
    ]


class Acts(Screen[None]):
    """Acts on the process that is chosen."""

    def __init__(self) -> None:
        super().__init__()
        self._wishes: dict[Pid, tuple[int, float]] = {}
        """Nice values that were asked for, and until when that counts."""

    @property
    def top(self) -> "TopApp":
        return cast("TopApp", self.app)

    @property
    def chosen(self) -> ProcessStat | None:
        """The process that the keys act on."""
        raise AssertionError("a screen with acts has a process to act on")

    def action_signal(self) -> None:
        def ask(process: ProcessStat) -> None:
            options = [(s.name, f"{s.value:>2} {s.name:<5} {words}") for s, words in SIGNALS]

            def chosen(name: str | None) -> None:
                if name is not None:
                    self._send(process, Signal[name])

            self.app.push_screen(Choice(f"Signal to process {process.pid}", options), chosen)

        self._act_on_chosen(ask)

    def action_send(self, number: int) -> None:
        self._act_on_chosen(lambda process: self._send(process, Signal(number)))

    def action_nice(self, steps: int) -> None:
        def renice(process: ProcessStat) -> None:
            pid, now_s = process.pid, time.monotonic()
            wish, until_s = self._wishes.get(pid, (0, 0.0))
            value = min(19, max(-20, (wish if now_s < until_s else process.nice) + steps))
            self._wishes[pid] = value, now_s + WISH_S
            self.top.act(f"{pid} has nice {value}", lambda view: view.nice(pid, value))

        self._act_on_chosen(renice)

    def _send(self, process: ProcessStat, signal: Signal) -> None:
        def send() -> None:
            self.top.act(f"{signal.name} was sent to {pid}", lambda view: view.kill(pid, signal))

        def answered(sure: bool | None) -> None:
            if sure:
                send()

        pid = process.pid
        if signal not in DESTROYS:
            send()
            return
        what = f"End process {pid} of {process.tenant} ({process.output_tokens} tokens written)?"
        self.app.push_screen(Confirm(what), answered)

    def _act_on_chosen(self, do: Callable[[ProcessStat], None]) -> None:
        process = self.chosen
        if not self.top.may_act():
            return
        if process is None:
            self.notify("no process is chosen", severity="warning", timeout=2)
        else:
            do(process)
