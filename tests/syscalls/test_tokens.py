"""What tokens stand for, asked over the system calls."""

import pytest

from tokenix.syscalls.inproc import Syscalls


def test_tokens_are_bytes_that_join_to_their_text(k: Syscalls) -> None:
    text = "Grüße, 世界 🙂"
    tokens = k.tokenize(text, raw=True)
    pieces = k.token_bytes(tokens)
    assert len(pieces) == len(tokens)
    assert b"".join(pieces).decode().endswith(text)


def test_special_tokens_are_nothing_or_their_names(k: Syscalls) -> None:
    tokens = k.tokenize("Hi")
    assert "<|im_start|>user\nHi<|im_end|>" in k.detokenize(tokens, special=True)
    assert "<|" not in k.detokenize(tokens)
    assert b"" in k.token_bytes(tokens)


def test_what_is_no_token_is_refused(k: Syscalls) -> None:
    vocab = k.model().vocab_tokens
    for tokens in ([vocab], [-1]):
        with pytest.raises(OSError, match="not in the vocabulary"):
            k.token_bytes(tokens)


def test_a_template_without_tools_is_known(k: Syscalls) -> None:
    assert not k.model().knows_tools
