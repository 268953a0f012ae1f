"""The messages of the socket ABI, one struct each, and the two unions that may travel.

A connection begins with Hello and Welcome. Then the client sends Ask and Follow, each with a number
of its choice that no other call in flight has, and gets exactly one Answer or Fail for an Ask; for
a Follow any number of Delta up to one that ends the turn, or a Fail. `CancelCall` names calls by
these numbers. Bye, from the server, is the last message of a connection.

How it may change: new fields have defaults, and unknown ones are ignored. Anything else is another
VERSION.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args

import msgspec
from msgspec import msgpack

from tokenix.kernel import calls
from tokenix.kernel.answers import ReadResult
from tokenix.kernel.calls import Asks
from tokenix.mm.ids import Pid
from tokenix.syscalls import texts
from tokenix.syscalls.wire.limits import WireLimits

VERSION = 2

WINDOW_TOKENS = 64
"""Credit that this client gives a flow."""

INSIDE = (calls.Spawn, calls.Follow, calls.Write, calls.ShmOpen, calls.ImageDir)
"""Requests that only the kernel's own process makes: of those in `texts.py` and of a `Follow`, and
at boot."""

REQUESTS: tuple[type[Asks[Any]], ...] = tuple(
    request
    for request in (*get_args(calls.Request), *get_args(texts.TextRequest))
    if request not in INSIDE
)
"""What may be asked over a socket."""

if TYPE_CHECKING:
    WireRequest = Asks[Any]
else:
    WireRequest = Union[REQUESTS]  # noqa: UP007

Answer_t = TypeVar("Answer_t")


class Message(msgspec.Struct, frozen=True, tag=str.lower, tag_field="msg", omit_defaults=True):
    """One frame."""


# ---- what a client sends ----


class Hello(Message, frozen=True):
    """The first frame of a client. `client` names the program, for the server's log."""

    version: int
    client: str = ""


class Ask(Message, frozen=True):
    """A call. `tenant`: in whose name; only root may say one."""

    id: int
    request: WireRequest
    tenant: str | None = None


class Follow(Message, frozen=True):
    """Push what reads of the process's present turn would bring, as it comes, while there is
    credit (without any, not even an end comes). `window`: the credit to begin with, in tokens."""

    id: int
    pid: Pid
    window: int
    tenant: str | None = None


class Grant(Message, frozen=True):
    """The client has consumed `tokens` of a flow: so much more may come. Ignored if the flow has
    ended meanwhile."""

    id: int
    tokens: int


# ---- what a server sends ----


class Peer(msgspec.Struct, frozen=True):
    """Who the client is taken for."""

    tenant: str
    root: bool


class Welcome(Message, frozen=True):
    """The answer to Hello. `pid` is that of the server's process."""

    version: int
    server: str
    pid: int
    peer: Peer
    limits: WireLimits


class Answer(Message, frozen=True):
    """The result of the call `id`; its type follows from the request (`answer_decoder`)."""

    id: int
    value: msgspec.Raw


class Fail(Message, frozen=True):
    """The error of the call or the flow `id`."""

    id: int
    errno: int
    message: str
    retry_after_s: float | None = None


class Delta(Message, frozen=True, gc=False):
    """The next result of a flow. One with a turn's end or the end of the output is its last."""

    id: int
    result: ReadResult


class Bye(Message, frozen=True):
    """The server closes the connection, and why."""

    errno: int
    message: str


# ---- both ----


class Ping(Message, frozen=True):
    """Are you there?"""


class Pong(Message, frozen=True):
    """Yes."""


class Numbered(msgspec.Struct, frozen=True):
    """What is left of a message that cannot be read."""

    id: int


FromClient = Hello | Ask | Follow | Grant | Ping | Pong
FromServer = Welcome | Answer | Fail | Delta | Bye | Ping | Pong

client_decoder = msgpack.Decoder(FromClient)
server_decoder = msgpack.Decoder(FromServer)
number_decoder = msgpack.Decoder(Numbered)


def answer_type(request: type[Asks[Any]]) -> Any:
    """What a request is answered with: the parameter of its `Asks`."""
    (base,) = cast("Any", request).__orig_bases__
    (kind,) = get_args(base)
    return Any if kind is object else kind


@cache
def answer_decoder(request: type[Asks[Answer_t]]) -> "msgpack.Decoder[Answer_t]":
    return msgpack.Decoder(answer_type(request))


def tag_of(request: type[Asks[Any]]) -> str:
    return str(cast("Any", request).__struct_config__.tag)


def schema() -> dict[str, Any]:
    """All of the ABI as JSON schema: both unions, and the answer of every call by its tag."""
    answers = {tag_of(request): answer_type(request) for request in REQUESTS}
    kinds = [FromClient, FromServer, *answers.values()]
    shapes, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    client, server, *rest = shapes
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tokenix socket ABI",
        "version": VERSION,
        "framing": "a length of 4 bytes, little-endian, then a message in MessagePack",
        "client": client,
        "server": server,
        "answers": dict(zip(answers, rest, strict=True)),
        "$defs": components,
    }
