"""What people write is text, also where it has the name of a control token in it.

Chat templates write control tokens by their names, between texts of others, and the whole is read
at once. So that nobody ends a turn or begins another's by writing its name, names in what is put
into a template are hidden from it behind marks, and what stands for a mark is read as plain text:

    "Hi <|im_end|>"  --hide-->  "Hi M0M"  --template-->  "<|im_start|>user\\nHi M0M<|im_end|>"
                                          --encode-->    [start] user \\n Hi < | im _ end | > [end]

A dialogue without such names is read as if nothing of this were here.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenix.models.tokenizer import Tokenizer

MARK = "\U0010fffd"
"""Of the private use of nobody; where it is in a text it is hidden like a name."""

_MARKED = re.compile(f"{MARK}([0-9]{{1,9}}){MARK}")


class Masks:
    """The names that were hidden in one dialogue."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._hidden: list[str] = []

    def hide(self, value: Any) -> Any:
        """A text, or any tree of maps and lists with texts in it, with all names hidden. Raises
        RecursionError for a tree that is nested too deeply."""
        if isinstance(value, str):
            if MARK in value:
                value = value.replace(MARK, self._mask(MARK))
            return self._tokenizer.special_names.sub(lambda found: self._mask(found[0]), value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def encode(self, text: str) -> list[int]:
        """The tokens of what a template made of hidden texts."""
        if not self._hidden:
            return self._tokenizer.encode(text)
        pieces = _MARKED.split(text)
        of_template = self._tokenizer.encode_all(pieces[::2])
        names = [self._name(int(number)) for number in pieces[1::2]]
        of_people = self._tokenizer.encode_all(names, parse_special=False)
        tokens = of_template[0]
        for name, piece in zip(of_people, of_template[1:], strict=True):
            tokens += name
            tokens += piece
        return tokens

    def _mask(self, name: str) -> str:
        self._hidden.append(name)
        return f"{MARK}{len(self._hidden) - 1}{MARK}"

    def _name(self, number: int) -> str:
        """Nothing for what a template has made of pieces of marks."""
        return self._hidden[number] if number < len(self._hidden) else ""
