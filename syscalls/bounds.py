"""How much a request may bring to the tokenizer: what no context can hold is refused before it is
looked at, so that one caller's text costs the others little."""

import errno
from typing import TYPE_CHECKING

from tokenix.kernel.calls import error

if TYPE_CHECKING:
    from tokenix.models.image import ProgramImage

MAX_CHARACTERS_PER_TOKEN = 16
"""Of a text, for each token of the model's context. Prose and code have 3 to 6."""


def check_text(image: "ProgramImage", text: str) -> None:
    """E2BIG for a text that is too long to be worth tokenizing."""
    context = image.config.max_context_tokens
    most = context * MAX_CHARACTERS_PER_TOKEN
    if len(text) > most:
        raise error(
            errno.E2BIG,
            f"the text has {len(text)} characters; a context of {context} tokens takes at most "
            f"{most}; shorten it",
        ).as_os_error()


def check_count(image: "ProgramImage", count: int, what: str) -> None:
    """E2BIG for more tokens, or messages of a token or more, than the context has room for."""
    context = image.config.max_context_tokens
    if count > context:
        raise error(
            errno.E2BIG, f"{count} {what} are more than the context of {context} tokens; give less"
        ).as_os_error()
