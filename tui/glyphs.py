"""For terminals and files whose encoding has no bars and frames: each of those characters becomes
one of ASCII that does as well, of the same width, so that what is drawn keeps its shape.
"""

import codecs
import unicodedata
from io import TextIOWrapper
from typing import Final

ERRORS: Final = "tokenix.glyphs"
"""Name of the way of encoding, for `errors=`."""

ALIKE: Final = {
    char: stand_in
    for stand_in, chars in {
        " ": "\u2800",
        "#": "█▇▉▊",
        "%": "▓",
        ":": "▒",
        ",": "░",
        ".": "·▏▎",
        "&": "▚",
        "o": "▄",
        "=": "▆▅▋▌▍",
        "-": "─━═╌╴╶╸╺▃▔",
        "_": "▁▂",
        "|": "│┃║▐▕",
        "+": "╭╮╰╯┌┐┘├┤┬┴┼",
        "`": "└",
        "^": "▲↑",
        "v": "▼↓",
        ">": "→⏎",
        "~": "…",
    }.items()
    for char in chars
}
"""Character -> what it becomes."""
DOTS: Final = " ..::++##"
"""For braille, by the number of its dots."""


def stand_in(char: str) -> str:
    """As wide as `char`; a question mark for what is not of ours."""
    code = ord(char)
    if 0x2800 <= code < 0x2900:
        return DOTS[(code & 0xFF).bit_count()]
    wide = unicodedata.east_asian_width(char) in "WF"
    return ALIKE.get(char, "??" if wide else "?")


def encode_errors(problem: UnicodeError) -> tuple[str, int]:
    """A handler as `codecs.register_error` wants it."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    lacking = problem.object[problem.start : problem.end]
    return "".join(map(stand_in, lacking)), problem.end


codecs.register_error(ERRORS, encode_errors)


def fall_back(stream: object) -> None:
    """Let a stream write what its encoding lacks in this way."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors=ERRORS)


def fitted(text: str, encoding: str | None) -> str:
    """A text as such a stream would show it."""
    name = encoding or "ascii"
    return text.encode(name, ERRORS).decode(name)
