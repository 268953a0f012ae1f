"""Requests that need the model's tokenizer or chat template: text where the kernel takes tokens.

They are the other half of the table of system calls (`kernel/calls.py`). `resolve` makes the
kernel's requests of them, or answers those that need no kernel; it may take milliseconds for a long
text and is never run on the kernel's thread.
"""

import errno
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import field

from tokenix.kernel.calls import Asks, Request, ShmOpen, error
from tokenix.mm.ids import Pid
from tokenix.syscalls import requests
from tokenix.syscalls.bounds import check_count

if TYPE_CHECKING:
    from tokenix.kernel.boot import Machine
    from tokenix.syscalls.requests import SpawnOptions


class ModelInfo(msgspec.Struct, frozen=True):
    """The model that is served, and the pool that it is served from."""

    name: str
    fingerprint: str
    """Names the content of its files."""
    format: str
    context_tokens: int
    vocab_tokens: int
    eos_tokens: tuple[int, ...]
    has_chat: bool
    """Whether it has a chat template."""
    knows_tools: bool
    """Whether that tells the model of tools."""
    default_sampling: dict[str, float | int]
    """The publisher's settings; they are not applied unless a caller does."""
    size_bytes: int
    page_tokens: int
    device_pages: int
    kv_dtype: str
    policy: str


class SpawnText(Asks[Pid], frozen=True, tag="spawn"):
    """`Spawn`, from text, tokens or messages and the options of `requests.SpawnOptions`."""

    prompt: Any
    options: dict[str, Any] = field(default_factory=dict)


class WriteText(Asks[int], frozen=True, tag="write"):
    """`Write`, from text or tokens."""

    pid: Pid
    data: Any = ""
    eof: bool = False
    raw: bool = False


class ShmText(Asks[int], frozen=True, tag="shmopen"):
    """`ShmOpen`, from text, tokens or messages."""

    name: str
    text: Any
    raw: bool = True


class Tokenize(Asks[tuple[int, ...]], frozen=True):
    """The tokens that `spawn` would make of a prompt. EINVAL, E2BIG."""

    prompt: Any
    options: dict[str, Any] = field(default_factory=dict)
    """Of SpawnOptions, those that shape a prompt: raw, tools, template."""


class Detokenize(Asks[str], frozen=True):
    """The text of tokens. EINVAL, E2BIG."""

    tokens: tuple[int, ...]
    special: bool = False
    """Write special tokens by their names; otherwise they are nothing."""


class TokenBytes(Asks[tuple[bytes, ...]], frozen=True):
    """What each token stands for: bytes, that need not be whole characters; b"" for special ones.
    EINVAL, E2BIG."""

    tokens: tuple[int, ...]


class GetModel(Asks[ModelInfo], frozen=True, tag="model"):
    """What is served."""


TextRequest = (
    SpawnText | WriteText | ShmText | Tokenize | Detokenize | TokenBytes | GetModel
)  # fmt: skip


class Answered(msgspec.Struct, frozen=True):
    """A request that needed no kernel."""

    value: Any


def resolve(machine: "Machine", request: TextRequest) -> Request | Answered:
    """The kernel's request, or the answer. OSError EINVAL for what makes no sense, E2BIG for what
    the context has no room for."""
    try:
        return _resolve(machine, request)
    except RecursionError:
        raise error(errno.EINVAL, "the request is nested too deeply").as_os_error() from None


def _resolve(machine: "Machine", request: TextRequest) -> Request | Answered:
    image = machine.image
    match request:
        case SpawnText(prompt, options):
            return requests.make_spawn(image, prompt, cast("SpawnOptions", options))
        case WriteText(pid, data, eof, raw):
            return requests.make_write(image, pid, data, eof, raw)
        case ShmText(name, text, raw):
            return ShmOpen(name, requests.encode(image, text, raw))
        case Tokenize(prompt, options):
            return Answered(requests.encode_prompt(image, prompt, options))
        case Detokenize(tokens, special):
            check_vocabulary(machine, tokens)
            return Answered(image.tokenizer.decode(tokens, skip_special=not special))
        case TokenBytes(tokens):
            check_vocabulary(machine, tokens)
            return Answered(tuple(map(image.tokenizer.token_bytes, tokens)))
        case GetModel():
            return Answered(_model(machine))


def check_vocabulary(machine: "Machine", tokens: tuple[int, ...]) -> None:
    """EINVAL for what is no token of the model, E2BIG for more than its context has room for."""
    check_count(machine.image, len(tokens), "tokens")
    vocab = machine.kernel.info.vocab_tokens
    for token in tokens:
        if not 0 <= token < vocab:
            message = f"token {token} is not in the vocabulary (0 to {vocab - 1})"
            raise error(errno.EINVAL, message).as_os_error()


def _model(machine: "Machine") -> ModelInfo:
    image, info = machine.image, machine.kernel.info
    return ModelInfo(
        name=image.name,
        fingerprint=image.fingerprint,
        format=image.format,
        context_tokens=info.max_context_tokens,
        vocab_tokens=info.vocab_tokens,
        eos_tokens=image.config.eos_tokens,
        has_chat=image.chat is not None,
        knows_tools=image.chat is not None and image.chat.knows_tools,
        default_sampling=image.default_sampling,
        size_bytes=image.size_bytes,
        page_tokens=info.page_tokens,
        device_pages=info.frames,
        kv_dtype=machine.kernel.images.kv_dtype,
        policy=machine.kernel.scheduler.policy.name,
    )
