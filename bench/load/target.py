"""What a load is played against: something that answers one turn of a session after another."""

from collections.abc import Callable
from typing import Protocol

from tokenix.bench.load.record import Record
from tokenix.bench.load.sessions import Session


class Dialogue(Protocol):
    """One session, as its server sees it."""

    def prepare(self, turn: int) -> None:
        """Make the request of the turn, before it is due: nothing is computed when it is sent."""
        ...

    async def ask(self, record: Record, came: Callable[[], None]) -> None:
        """Send the prepared request and read the answer to its end, into the record; `came` is
        called for each piece. Everything that goes wrong is in the record."""
        ...

    async def close(self) -> None:
        """The session is over."""
        ...


class Target(Protocol):
    """A server, or a kernel."""

    @property
    def model(self) -> str: ...

    def open(self, session: Session, origin_s: float) -> Dialogue:
        """`origin_s`: the start of the load on the monotonic clock."""
        ...

    async def close(self) -> None: ...
