"""Messages between the parts of the program."""

from textual.message import Message

from tokenix.tui.snapshot import Snapshot


class Looked(Message):
    """To the screen in front: there is a new look, and the model has taken it."""


class Pulled(Message):
    """To the app, from the thread that looks: a snapshot, or why there is none."""

    def __init__(self, found: Snapshot | Exception) -> None:
        super().__init__()
        self.found = found
