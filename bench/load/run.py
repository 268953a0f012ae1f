"""One run of the generator: options in, records and a summary out."""

import asyncio
import os
import resource
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from tokenix.bench.load.clients import Clients
from tokenix.bench.load.content import Content
from tokenix.bench.load.openai import Asking, OpenAITarget
from tokenix.bench.load.player import Ended, Played, Player, Watch, warm
from tokenix.bench.load.sessions import Part, Session, make_parts
from tokenix.bench.load.socket import SocketTarget
from tokenix.bench.load.summary import Wants, summarize
from tokenix.bench.load.target import Target
from tokenix.syscalls import aio

T = TypeVar("T")
VOCABULARY = 30_000
"""Ids below it are in the vocabulary of any recent model."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is played, and against what."""

    groups: tuple[Clients, ...] = (Clients(),)
    seed: int = 1
    url: str = "http://127.0.0.1:8000"
    socket: Path | None = None
    """A kernel's socket, in place of the URL."""
    model: str = ""
    api_key: str = ""
    asking: Asking = field(default_factory=Asking)
    vocabulary: int = VOCABULARY
    warmup: int = 0
    """Requests that are sent before and not counted."""
    wants: Wants = field(default_factory=Wants)


@dataclass(frozen=True, slots=True)
class Report:
    """What a run has brought."""

    summary: dict[str, Any]
    played: Played
    parts: tuple[Part, ...]


def run(
    options: Options, watch: Watch | None = None, ended: Ended | None = None,
    stoppable: bool = False,
) -> Report:  # fmt: skip
    """Play the load. OSError if the server cannot be reached, ValueError for a load or an address
    that makes no sense. If `stoppable`, SIGINT and SIGTERM end it with a report of what ended
    before."""
    check(options)
    _allow_many_connections()
    return in_loop(lambda: play(options, watch, ended, stoppable))


def in_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a loop of uvloop, whose protocols cost a third of asyncio's own.

    What a handler of SIGTERM raises would be lost in it, as asyncio's is told of signals by a
    socket: here the signal cancels the coroutine, and the handler runs when the loop has ended,
    unless the coroutine has a result all the same.
    """
    import uvloop

    if threading.current_thread() is not threading.main_thread():
        return uvloop.run(make())
    terminated = returned = False

    async def until_terminated() -> T:
        task = asyncio.current_task()
        assert task is not None

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await make()

    handler = signal.getsignal(signal.SIGTERM)
    try:
        result = uvloop.run(until_terminated())
        returned = True
        return result
    finally:
        signal.signal(signal.SIGTERM, handler)
        if terminated and not returned:
            os.kill(os.getpid(), signal.SIGTERM)


def _allow_many_connections() -> None:
    """As many open files as this process may have; shells often allow 1,024 unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check(options: Options) -> None:
    """What can be known before anything is sent. ValueError."""
    for clients in options.groups:
        several = clients.spread("turns").high > 1
        if several and options.socket is None and options.asking.prompt == "ids":
            raise ValueError(
                "sessions of several turns need text (--prompt text, or --api chat): the ids of "
                "answers are not told by servers"
            )
    if options.asking.api == "chat" and options.asking.prompt == "ids":
        raise ValueError("a chat has text, not token ids: use --prompt text with --api chat")


async def play(
    options: Options, watch: Watch | None = None, ended: Ended | None = None,
    stoppable: bool = False,
) -> Report:  # fmt: skip
    """As `run`, in a loop that runs."""
    parts = make_parts(options.groups, options.seed)
    target = await _reach(options)
    try:
        if options.warmup:
            await warm(target, _warm_sessions(options))
        played = await Player(target, parts, watch, ended).play(stoppable)
    finally:
        await target.close()
    if not played.records:
        raise ValueError("nothing was sent in the time that there was")
    where = options.url if options.socket is None else str(options.socket)
    names = {
        "backend": "openai" if options.socket is None else "tokenix-socket",
        "model_id": target.model, "endpoint": where, "api": options.asking.api,
        "seed": options.seed,
    }  # fmt: skip
    return Report(summarize(played, parts, options.wants, names), played, parts)


async def _reach(options: Options) -> Target:
    if options.socket is not None:
        k = await aio.connect(options.socket)
        model = await k.model()
        content = Content(options.seed, min(options.vocabulary, model.vocab_tokens))
        return SocketTarget(k, model.name, content, options.asking)
    content = Content(options.seed, options.vocabulary)
    target = OpenAITarget(options.url, content, options.asking, options.model, options.api_key)
    await target.find_model()
    return target


def _warm_sessions(options: Options) -> Iterable[Session]:
    """Of the first group, with other prompts than those that are counted."""
    parts = make_parts(options.groups[:1], options.seed + 1_000_003)
    return islice(parts[0].sessions, options.warmup)
