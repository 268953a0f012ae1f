"""Text to tokens and back, over the `tokenizers` library.

Decoding is done here, from the bytes of each token, so that the incremental detokenizer
(`models.text`) and the whole-text one are the same function of the same bytes.
"""

import json
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from tokenizers import Tokenizer as Library

from tokenix.models.image_error import EINVAL, ENOEXEC, image_error

SPACE_MARK = "\u2581"
"""What SentencePiece writes for a space."""


class TokenStyle(Enum):
    """How the text of a token stands for bytes."""

    BYTE_LEVEL = "byte level"
    """Each character is one byte, in GPT-2's printable alphabet."""
    SENTENCEPIECE = "sentencepiece"
    """Characters are themselves, a space is written as a mark, <0xE2> is a single byte."""


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 is itself, other bytes are moved above U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


_BYTES = byte_alphabet()


class Tokenizer:
    """A vocabulary and its rules. Shared by all processes and threads; never changes.

    `vocab_tokens` is one more than the largest token id; `eos_tokens` end a generation;
    `special_ids` render as nothing.
    """

    def __init__(
        self, library: Library, *, bos_token: int | None, eos_tokens: Sequence[int]
    ) -> None:
        """Take over `library`. OSError ENOEXEC if its decoder is of no known style."""
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._literal: Library | None = None
        self.style, self.strips_space = _style(library)
        added = library.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self._added = {token: entry.content for token, entry in added.items()}
        self.bos_token = bos_token
        self.eos_tokens = tuple(eos_tokens)
        largest = max(library.get_vocab(with_added_tokens=True).values(), default=-1)
        self.vocab_tokens = largest + 1
        self._token_bytes: dict[int, bytes] = {}
        self.special_names = any_of({self._added[token] for token in self.special_ids})
        """Finds names of special tokens in a text."""

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """The tokens of `text`.

        `add_special` adds what the model expects around a text (begin of sequence).
        `parse_special` reads the names of special tokens in the text as these tokens; pass False
        for text from people, or they can write an end of turn. Lone surrogates become U+FFFD.
        Other threads run meanwhile: of the library's calls only those for batches let go of the
        interpreter.
        """
        return self.encode_all([text], add_special, parse_special)[0]

    def encode_all(
        self, texts: Sequence[str], add_special: bool = False, parse_special: bool = True
    ) -> list[list[int]]:
        """The tokens of each of several texts, as `encode`."""
        library = self._library if parse_special else self._literal_library()
        found = library.encode_batch_fast(
            list(map(_unicode, texts)), add_special_tokens=add_special
        )
        return [made.ids for made in found]

    def decode(self, tokens: Iterable[int], skip_special: bool = True) -> str:
        """The text of `tokens`; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""
        joined = b"".join(
            self.token_bytes(token)
            if skip_special
            else self.token_name(token).encode()
            if token in self.special_ids
            else self.token_bytes(token)
            for token in tokens
        )
        text = joined.decode("utf-8", "replace")
        return text[1:] if self.strips_space and text.startswith(" ") else text

    def token_bytes(self, token: int) -> bytes:
        """The raw bytes that `token` stands for; b"" for special and unknown tokens."""
        known = self._token_bytes.get(token)
        if known is None:
            known = self._token_bytes[token] = self._bytes_of(token)
        return known

    def token_name(self, token: int) -> str:
        """How the vocabulary writes `token` (special ones too); "" for an unknown id."""
        if token < 0:
            return ""
        return self._library.id_to_token(token) or ""

    def token_id(self, name: str) -> int | None:
        """The id of the token that the vocabulary writes as `name`."""
        return self._library.token_to_id(name)

    def _bytes_of(self, token: int) -> bytes:
        if token in self.special_ids:
            return b""
        added = self._added.get(token)
        name = self.token_name(token) if added is None else added
        if self.style is TokenStyle.SENTENCEPIECE:
            if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
                try:
                    return bytes([int(name[3:5], 16)])
                except ValueError:
                    pass
            return name.replace(SPACE_MARK, " ").encode()
        if added is None and all(char in _BYTES for char in name):
            return bytes([_BYTES[char] for char in name])
        return name.encode()

    def _literal_library(self) -> Library:
        """A second copy that reads special tokens as plain text: the switch is per library object
        and would race between threads."""
        if self._literal is None:
            literal = Library.from_str(self._library.to_str())
            literal.encode_special_tokens = True
            self._literal = literal
        return self._literal


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Finds any of `names`, of those that begin at one place the longest; nothing if there are
    none. Beginnings are shared, so that a thousand names are looked for as fast as a few."""

    def branch(rests: set[str]) -> str:
        tails: dict[str, set[str]] = {}
        for rest in rests - {""}:
            tails.setdefault(rest[0], set()).add(rest[1:])
        ways = [re.escape(first) + branch(tails[first]) for first in sorted(tails)]
        if not ways:
            return ""
        joined = ways[0] if len(ways) == 1 else "|".join(ways)
        return f"(?:{joined})?" if "" in rests else f"(?:{joined})"

    return re.compile(branch(set(names) - {""}) or "(?!)")


def _unicode(text: str) -> str:
    """`text` without lone surrogates, which have no UTF-8."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def tokenizer_from_json(
    where: str, text: str, bos: str | None, eos: str | None, eos_tokens: Sequence[int]
) -> Tokenizer:
    """A tokenizer from the text of a tokenizer.json.

    `bos` and `eos` are the token names of tokenizer_config.json; `eos_tokens` are further ids that
    end a generation. Errors: OSError EINVAL if the text is no tokenizer, ENOEXEC for its style.
    """
    try:
        library = Library.from_str(text)
    except Exception as error:
        raise image_error(EINVAL, f"{where}: not a readable tokenizer: {error}") from None
    bos_token = library.token_to_id(bos) if bos is not None else None
    ends = list(eos_tokens)
    if eos is not None and (token := library.token_to_id(eos)) is not None and token not in ends:
        ends.append(token)
    try:
        return Tokenizer(library, bos_token=bos_token, eos_tokens=ends)
    except OSError as error:
        raise image_error(error.errno or EINVAL, f"{where}: {error.strerror}") from None


def _style(library: Library) -> tuple[TokenStyle, bool]:
    """The style of the library's decoder, and whether it drops one leading space of a text."""
    parts = _decoder_parts(library)
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return TokenStyle.BYTE_LEVEL, False
    for part in parts:
        if part.get("type") == "Metaspace" and part.get("replacement") != SPACE_MARK:
            raise image_error(ENOEXEC, "the tokenizer writes spaces in an unknown way")
    if kinds & {"ByteFallback", "Metaspace"}:
        strips = any(
            (part.get("type") == "Strip" and part.get("start", 0) > 0)
            or (part.get("type") == "Metaspace" and part.get("prepend_scheme") != "never")
            for part in parts
        )
        return TokenStyle.SENTENCEPIECE, strips
    names = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
    raise image_error(
        ENOEXEC,
        f"the tokenizer's decoder ({names}) is not supported; supported: byte-level BPE, "
        "SentencePiece",
    )


def _decoder_parts(library: Library) -> list[dict[str, Any]]:
    """The library's decoder as the flat list of its JSON steps."""
    decoder = library.decoder
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    flat, queue = [], [state]
    while queue:
        part = queue.pop(0)
        queue[:0] = part.get("decoders", [])
        flat.append(part)
    return flat
