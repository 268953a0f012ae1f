"""What prompts say: token ids of exact number, or common words of about that number.

The same seed gives the same prompts. Blocks with equal ids have equal tokens, everything else is
unique to its turn, so that a prefix cache finds what the load shares and nothing more.
"""

import random
from functools import lru_cache
from typing import TypeVar

from tokenix.bench.load.sessions import Session

FIRST_ID = 300
"""Below it vocabularies have bytes and special tokens."""

COMMON = """
the of and to in is you that it he was for on are as with his they at be this have from or one had
by word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look
two more write go see number no way could people my than first water been call who its now find
long down day did get come made may part over new sound take only little work know place year live
me back give most very after thing our just name good sentence man think say great where help
through much before line right too mean old any same tell boy follow came want show also around
form three small set put end does another well large must big even such because turn here why ask
went men read need land different home us move try kind hand picture again change off play spell
air away animal house point page
"""
WORDS = COMMON.split()
"""Each is one token, with the space before it, in most vocabularies."""

CACHED_BLOCKS = 4096

Token = TypeVar("Token", int, str)


class Content:
    """Makes prompts. `vocabulary`: ids are drawn from FIRST_ID up to it (of a tiny one, from its
    upper half)."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._seed = seed
        self._ids = range(min(FIRST_ID, vocabulary // 2), vocabulary)
        self._block_ids = lru_cache(CACHED_BLOCKS)(self._draw_block_ids)

    def ids(self, session: Session, turn: int) -> list[int]:
        """The new token ids of a turn: as many as it says, behind the prefix in the first."""
        made: list[int] = []
        wanted = session.turns[turn].input_tokens
        if turn == 0:
            for block in session.blocks:
                made += self._block_ids(session.clients.name, block, session.block_tokens)
            made, wanted = self._fit(session, made, wanted)
        return made + self._unique(session, turn).choices(self._ids, k=wanted)

    def text(self, session: Session, turn: int) -> str:
        """About as many tokens of words."""
        head: list[str] = []
        wanted = session.turns[turn].input_tokens
        if turn == 0:
            for block in session.blocks:
                chance = self._block_chance(session.clients.name, block)
                head += chance.choices(WORDS, k=session.block_tokens)
            head, wanted = self._fit(session, head, wanted)
        return " ".join(head + self._unique(session, turn).choices(WORDS, k=wanted))

    def _fit(self, session: Session, head: list[Token], wanted: int) -> tuple[list[Token], int]:
        """A trace's blocks are part of its prompt's length, a group's prefix comes before it."""
        if session.clients.trace is None:
            return head, wanted
        # At least one token of a prompt is its own.
        return head[: wanted - 1], wanted - min(len(head), wanted - 1)

    def _draw_block_ids(self, group: str, block: int, tokens: int) -> list[int]:
        return self._block_chance(group, block).choices(self._ids, k=tokens)

    def _block_chance(self, group: str, block: int) -> random.Random:
        return random.Random(f"{self._seed}/{group}/block/{block}")

    def _unique(self, session: Session, turn: int) -> random.Random:
        return random.Random(f"{self._seed}/{session.name}/{turn}")
