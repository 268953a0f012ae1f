"""What tokens stand for, asked over the system calls."""

import errno
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import pytest

from tokenix.models.tokenizer import Tokenizer
from tokenix.syscalls.bounds import MAX_CHARACTERS_PER_TOKEN
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


def test_what_no_context_can_hold_is_refused_before_it_is_tokenized(
    k: Syscalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = k.machine.image.config.max_context_tokens
    text = "x" * (context * MAX_CHARACTERS_PER_TOKEN + 1)
    many, messages = [1] * (context + 1), [{"role": "user", "content": ""}] * (context + 1)
    pid = k.spawn("Hello", keep_open=True)
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "encode", None)
        for prompt in (text, many, messages, [{"role": "user", "content": text}]):
            for call in (k.spawn, k.tokenize, partial(k.shm_open, "long")):
                with pytest.raises(OSError, match="context") as wrong:
                    call(prompt)
                assert wrong.value.errno == errno.E2BIG
        for data in (text, many):
            for raw in (True, False):
                with pytest.raises(OSError, match="context") as wrong:
                    k.write(pid, data, raw=raw)
                assert wrong.value.errno == errno.E2BIG
        for back in (k.detokenize, k.token_bytes):
            with pytest.raises(OSError, match="context") as wrong:
                back(many)
            assert wrong.value.errno == errno.E2BIG


def test_what_is_nested_too_deeply_makes_no_sense(k: Syscalls) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    many: tuple[dict[str, Any], ...] = (
        {"grammar": {"regex": deep}}, {"tools": {"x": deep}}, {"stop": {"x": deep}},
    )  # fmt: skip
    for options in many:
        with pytest.raises(OSError) as wrong:
            k.spawn("Hello", **options)
        assert wrong.value.errno == errno.EINVAL, wrong.value


def test_other_threads_run_while_text_is_tokenized(k: Syscalls) -> None:
    """The longest text that is allowed takes many switch intervals of the interpreter."""
    text = "x " * (k.machine.image.config.max_context_tokens * MAX_CHARACTERS_PER_TOKEN // 2)
    k.tokenize("ready", raw=True)
    turns, done = 0, Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(k.tokenize, text, raw=True).add_done_callback(lambda _: done.set())
        while not done.wait(0.001):
            turns += 1
    assert turns > 3
