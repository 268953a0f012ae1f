"""Keys in order with a weight each, and sums of the weights below a key."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

BLOCK = 128
"""Entries of a block; twice as many split it. A change costs one block and the list of blocks."""

Key = TypeVar("Key", bound=tuple[float, ...])


class SortedSums(Generic[Key]):
    """Unique keys. `below` adds up whole blocks and part of one."""

    def __init__(self) -> None:
        self._keys: list[list[Key]] = []
        self._weights: list[list[int]] = []
        self._totals: list[int] = []
        self._lasts: list[Key] = []

    def __len__(self) -> int:
        return sum(map(len, self._keys))

    def __iter__(self) -> Iterator[Key]:
        """All keys in order."""
        for block in self._keys:
            yield from block

    def iter_from(self, key: Key) -> Iterator[Key]:
        """The keys that are not below `key`, in order."""
        first = bisect_left(self._lasts, key)
        if first < len(self._keys):
            block = self._keys[first]
            yield from block[bisect_left(block, key) :]
        for block in self._keys[first + 1 :]:
            yield from block

    def below(self, key: Key) -> int:
        """Sum of the weights of all keys below `key`."""
        at = bisect_left(self._lasts, key)
        whole = sum(self._totals[:at])
        if at == len(self._keys):
            return whole
        return whole + sum(self._weights[at][: bisect_left(self._keys[at], key)])

    def add(self, key: Key, weight: int) -> None:
        """Insert `key`, which is not there."""
        if not self._keys:
            self._keys, self._weights = [[key]], [[weight]]
            self._totals, self._lasts = [weight], [key]
            return
        at = min(bisect_left(self._lasts, key), len(self._keys) - 1)
        block = self._keys[at]
        place = bisect_left(block, key)
        assert place == len(block) or block[place] != key, "keys are unique"
        block.insert(place, key)
        self._weights[at].insert(place, weight)
        self._totals[at] += weight
        self._lasts[at] = block[-1]
        if len(block) >= 2 * BLOCK:
            self._split(at)

    def remove(self, key: Key) -> None:
        """Take out `key`, which is there."""
        at = bisect_left(self._lasts, key)
        block = self._keys[at]
        place = bisect_left(block, key)
        assert block[place] == key, "only what is there is removed"
        del block[place]
        self._totals[at] -= self._weights[at].pop(place)
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._keys[at], self._weights[at], self._totals[at], self._lasts[at]

    def _split(self, at: int) -> None:
        keys, weights = self._keys[at], self._weights[at]
        self._keys[at : at + 1] = [keys[:BLOCK], keys[BLOCK:]]
        self._weights[at : at + 1] = [weights[:BLOCK], weights[BLOCK:]]
        self._totals[at : at + 1] = [sum(weights[:BLOCK]), sum(weights[BLOCK:])]
        self._lasts[at : at + 1] = [keys[BLOCK - 1], keys[-1]]
