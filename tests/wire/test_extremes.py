"""Numbers and names at the ends of what the ABI carries, in every field of every call: each is
answered or refused, and the kernel goes on. Its answers in process are the same."""

import math
import signal
from collections.abc import Iterator
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

import tokenix
from tokenix.kernel import calls
from tokenix.kernel.calls import Asks
from tokenix.mm.ids import Pid
from tokenix.syscalls import texts
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.wire import abi
from tokenix.tests.wire import golden
from tokenix.tests.wire.raw import Raw

INTS: Final = (0, -1, 1, 1 << 31, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
FLOATS: Final = (0.0, -0.0, 5e-324, 1e11, 1e308, -1e308, math.inf, -math.inf, math.nan)
STRINGS: Final = ("", "\0", "..", "/", "x" * 5000, "\u202e\U0010ffff", "%s{0}")
OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "max_tokens": INTS, "min_tokens": INTS, "nice": INTS, "max_pages": INTS, "seed": INTS,
    "top_k": INTS, "logprobs": INTS, "deadline_s": FLOATS, "tokens_per_s": FLOATS,
    "temperature": FLOATS, "top_p": FLOATS, "min_p": FLOATS, "repetition_penalty": FLOATS,
    "presence_penalty": FLOATS, "frequency_penalty": FLOATS, "name": STRINGS, "qos": STRINGS,
    "reader": STRINGS, "stop": STRINGS, "stop_tokens": tuple([n] for n in INTS),
    "logit_bias": tuple({str(n): f} for n in INTS for f in FLOATS),
}  # fmt: skip
NEVER: Final = (texts.SpawnText, calls.Swapoff, calls.CancelCall)
"""Tried on their own, or with nothing in them that could be extreme."""


def extremes(request: type) -> Iterator[tuple[str, Any]]:
    """(field, value) of all that is tried."""
    for name, hint in get_type_hints(request).items():
        kinds = set(get_args(hint)) or {hint} if get_origin(hint) is not tuple else {hint}
        kinds = {int if kind is Pid else kind for kind in kinds}
        for kind in sorted(kinds, key=repr):
            if kind is int:
                yield from ((name, value) for value in INTS)
            elif kind is float:
                yield from ((name, value) for value in FLOATS)
            elif kind is str:
                yield from ((name, value) for value in STRINGS)
            elif get_origin(kind) is tuple and set(get_args(kind)) & {int, Pid}:
                yield from ((name, (value,)) for value in INTS)


EXAMPLES: Final[dict[type, Asks[Any]]] = {
    type(request): request for request in golden.REQUESTS.values() if not isinstance(request, NEVER)
}


@pytest.fixture
def pid(stage: Syscalls) -> Iterator[Pid]:
    """It outlives what it is sent: another is there when one has ended."""
    pid = stage.spawn([1, 2, 3], max_tokens=64, keep_open=True, ignore_eos=True)
    yield pid
    for process in stage.ps():
        stage.kill(process.pid, tokenix.SIGKILL)
        stage.wait(process.pid)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_every_field_may_be_extreme(path: str, stage: Syscalls, pid: Pid, kind: type) -> None:
    here = {name: value for name, value in (("pid", pid), ("block", False)) if hasattr(kind, name)}
    request = msgspec.structs.replace(EXAMPLES[kind], **here)
    with Raw(path) as client:
        for name, value in extremes(kind):
            answer = client.call(msgspec.structs.replace(request, **{name: value}))
            if isinstance(answer, abi.Fail):
                assert answer.errno > 0 and "Traceback" not in answer.message, (name, value)
                assert answer.message.isprintable() and len(answer.message) < 6000, (name, value)
            assert stage.vmstat()["calls"] > 0, f"{name}={value!r}"


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_a_spawn_may_be_extreme(path: str, stage: Syscalls, option: str) -> None:
    with Raw(path) as client:
        for value in OPTIONS[option]:
            given = {"max_tokens": 4, option: value}
            answer = client.call(texts.SpawnText([1, 2, 3], given))
            if isinstance(answer, abi.Fail):
                assert answer.message.isprintable() and answer.errno > 0, value
            else:
                client.call(calls.Kill(answer, calls.Signal.KILL))
                client.call(calls.Wait(answer))
            assert stage.vmstat()["calls"] > 0, f"{option}={value!r}"


def test_deadlines_beyond_what_a_clock_can_wait_for_are_never(stage: Syscalls) -> None:
    """A lock waits for at most `threading.TIMEOUT_MAX` seconds."""
    pid = stage.spawn([1, 2, 3], max_tokens=4, keep_open=True, deadline_s=1e300)
    while not stage.read(pid).turn_ended:
        pass
    stage.setrlimit(pid, deadline_s=1e308)
    assert stage.stat(pid).pid == pid
    stage.kill(pid, signal.SIGKILL)
    stage.wait(pid)


def test_unions_are_looked_at_too() -> None:
    """What is optional is tried with its values, or this file proves nothing about it."""
    tried = {(kind, name) for kind in EXAMPLES for name, _ in extremes(kind)}
    assert (calls.Trace, "pid") in tried and (calls.Trace, "since") in tried
    assert (calls.SetRlimit, "deadline_s") in tried and (calls.Wait, "pid") in tried
    assert get_origin(get_type_hints(calls.Wait)["pid"]) is Union
