"""What callers may do to the system calls: pass anything, interrupt and cancel at any moment, keep
an event loop busy. Nothing is lost, nothing hangs, and nobody else notices."""

import asyncio
import errno
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from msgspec.structs import replace

import tokenix
from tokenix.kernel.answers import Output, ReadResult
from tokenix.mm.ids import Pid
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import SpawnOptions

LONG: SpawnOptions = {"max_tokens": 60, "ignore_eos": True}


@pytest.fixture
def pid(k: Syscalls) -> Iterator[Pid]:
    pid = k.spawn("Count from one to fifty.", **LONG)
    yield pid
    k.kill(pid, tokenix.SIGKILL)
    k.wait(pid)


@pytest.fixture(scope="module")
def expected(k: Syscalls) -> list[int]:
    pid = k.spawn("Count from one to fifty.", **LONG)
    tokens: list[int] = []
    while True:
        result = k.read(pid)
        tokens += tokens_of(result.outputs)
        if result.eof:
            k.wait(pid)
            return tokens


def tokens_of(outputs: tuple[Output, ...]) -> list[int]:
    return [output.token for output in outputs]


# ---- anything may be passed ----

JUNK = (None, "x", b"x", 1.5, math.nan, math.inf, [1], {}, object())
FIELDS: list[tuple[str, Callable[[Syscalls, Pid, object], object]]] = [
    ("pid of read", lambda k, pid, v: k.read(v)),
    ("pid of kill", lambda k, pid, v: k.kill(v)),
    ("pid of stat", lambda k, pid, v: k.stat(v)),
    ("pid of fork", lambda k, pid, v: k.fork(v)),
    ("pid of nice", lambda k, pid, v: k.nice(v, 1)),
    ("pid of write", lambda k, pid, v: k.write(v, "x")),
    ("pid of trace", lambda k, pid, v: k.trace("x" if v is None else v)),
    ("pid of wait", lambda k, pid, v: k.wait("x" if v is None else v)),
    ("pid of setrlimit", lambda k, pid, v: k.setrlimit(v, max_tokens=4)),
    ("nice", lambda k, pid, v: k.nice(pid, v)),
    ("signal", lambda k, pid, v: k.kill(pid, v)),
    ("children", lambda k, pid, v: k.fork(pid, v)),
    ("a seed", lambda k, pid, v: k.fork(pid, 1, [v])),
    ("max_tokens of read", lambda k, pid, v: k.read(pid, v)),
    ("since", lambda k, pid, v: k.trace(pid, v)),
    ("limit", lambda k, pid, v: k.trace(pid, 0, v)),
    ("logit_bias", lambda k, pid, v: k.spawn("a", logit_bias={1: v} if v == {} else v)),
    ("a bias", lambda k, pid, v: k.spawn("a", logit_bias={1: "x" if v == 1.5 else v})),
    ("a stop string", lambda k, pid, v: k.spawn("a", stop=[3 if v == "x" else v])),
    ("a stop token", lambda k, pid, v: k.spawn("a", stop_tokens=[v])),
    ("qos", lambda k, pid, v: k.spawn("a", qos=v)),
    ("a token of the prompt", lambda k, pid, v: k.spawn([1, 3.5 if v == {} else v])),
    ("a token of the input", lambda k, pid, v: k.write(pid, [v])),
    ("a token of the segment", lambda k, pid, v: k.shm_open("s", [3.5 if v == {} else v])),
]  # fmt: skip
SINGLE: list[tuple[str, Callable[[Syscalls, Pid], object]]] = [
    ("a prompt of bytes", lambda k, pid: k.spawn(b"Hello")),
    ("no prompt", lambda k, pid: k.spawn(None)),
    ("a number as prompt", lambda k, pid: k.spawn(3)),
    ("one message without a list", lambda k, pid: k.spawn({"role": "user", "content": "x"})),
    ("a number as input", lambda k, pid: k.write(pid, 3)),
    ("one seed without a list", lambda k, pid: k.fork(pid, 1, 3)),
    ("a stop token without a list", lambda k, pid: k.spawn("a", stop_tokens=3)),
    ("stop=None", lambda k, pid: k.spawn("a", stop=None)),
    ("a name that is no string", lambda k, pid: k.shm_open(3, "abc")),
    ("the limits of a process", lambda k, pid: k.setrlimit(pid, max_tokens="9")),
    ("a deadline that is no number", lambda k, pid: k.setrlimit(pid, deadline_s=math.nan)),
    ("a variable's value", lambda k, pid: k.sysctl("sched.max_running", [1])),
    ("a timeout that is no number", lambda k, pid: k.read(pid, timeout_s=math.nan)),
    ("a tenant that is no name", lambda k, pid: k.as_tenant(5).spawn("a")),
    ("a tenant without a name", lambda k, pid: k.as_tenant("")),
    ("a stop token that is none", lambda k, pid: k.spawn("a", stop_tokens=[-7])),
    ("more tokens at least than at most", lambda k, pid: k.spawn("a", min_tokens=10**30)),
    ("a number beyond floats", lambda k, pid: k.spawn("a", temperature=10**400)),
]  # fmt: skip


@pytest.mark.parametrize("call", [c for _, c in FIELDS], ids=[name for name, _ in FIELDS])
def test_values_of_a_wrong_type_are_invalid(
    k: Syscalls, pid: Pid, call: Callable[[Syscalls, Pid, object], object]
) -> None:
    for value in JUNK:
        with pytest.raises(OSError) as caught:
            call(k, pid, value)
        assert caught.value.errno == errno.EINVAL, value
    assert k.stat(pid).pid == pid, "the kernel goes on"


@pytest.mark.parametrize("call", [c for _, c in SINGLE], ids=[name for name, _ in SINGLE])
def test_what_makes_no_sense_is_invalid(
    k: Syscalls, pid: Pid, call: Callable[[Syscalls, Pid], object]
) -> None:
    with pytest.raises(OSError) as caught:
        call(k, pid)
    assert caught.value.errno == errno.EINVAL
    assert k.stat(pid).pid == pid, "the kernel goes on"


def test_a_call_that_is_refused_changes_nothing(k: Syscalls) -> None:
    pid = k.spawn("One word.", max_tokens=2, ignore_eos=True, keep_open=True)
    with pytest.raises(OSError, match="deadline_s must be positive"):
        k.setrlimit(pid, max_tokens=3, deadline_s=-1)
    k.write(pid, "Another.")
    turns = [len(tokens_of(result.outputs)) for result in (read_turn(k, pid), read_turn(k, pid))]
    assert turns == [2, 2]
    with pytest.raises(OSError) as caught:
        k.setrlimit(pid, max_tokens=10**9)
    assert caught.value.errno == errno.E2BIG, "a bound without room is refused, not the next write"
    k.kill(pid, tokenix.SIGKILL)
    k.wait(pid)


def read_turn(k: Syscalls, pid: Pid) -> ReadResult:
    """All of one turn."""
    outputs: tuple[Output, ...] = ()
    while True:
        result = k.read(pid)
        outputs += result.outputs
        if result.turn_ended is not None:
            return replace(result, outputs=outputs)


# ---- a thread may be interrupted ----


class Interruption(Exception):
    """What the handler of a signal raises, as Python's own does for Ctrl-C."""


@pytest.fixture
def interruptions() -> Iterator[None]:
    """A signal every few milliseconds. It interrupts whoever waits for the kernel."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        waits = frame is not None and frame.f_code.co_name == "wait"
        if waits and sys.exc_info()[0] is None:
            raise Interruption

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.usefixtures("interruptions")
def test_an_interrupted_read_loses_nothing(k: Syscalls, expected: list[int]) -> None:
    pid = interrupted_often(lambda: k.spawn("Count from one to fifty.", **LONG))
    tokens: list[int] = []
    seen = 0
    eof = False
    while not eof:
        try:
            result = k.read(pid)
        except Interruption:
            seen += 1
        else:
            tokens += tokens_of(result.outputs)
            eof = result.eof
    assert tokens == expected
    assert seen, "interruptions reach the caller"
    assert interrupted_often(lambda: k.wait(pid)).pid == pid


def interrupted_often(call: Callable[[], "object"]) -> "object":
    while True:
        try:
            return call()
        except Interruption:
            continue


@pytest.mark.usefixtures("interruptions")
def test_calls_that_never_block_can_be_interrupted(k: Syscalls) -> None:
    with pytest.raises(Interruption):
        while True:
            k.ps()


@pytest.mark.usefixtures("interruptions")
def test_an_interrupted_spawn_leaves_no_process(k: Syscalls) -> None:
    before = {stat.pid for stat in interrupted_often(k.ps)}
    with pytest.raises(Interruption):
        while True:
            pid = k.spawn("a", **LONG)
            before.add(pid)
    assert {stat.pid for stat in interrupted_often(k.ps)} <= before
    for pid in before:
        interrupted_often(lambda pid=pid: k.kill(pid, tokenix.SIGKILL))
        interrupted_often(lambda pid=pid: k.wait(pid))


def test_a_read_that_times_out_says_so_and_loses_nothing(
    k: Syscalls, pid: Pid, expected: list[int]
) -> None:
    tokens: list[int] = []
    late, eof = 0, False
    while not eof:
        try:
            result = k.read(pid, timeout_s=0.001)
        except TimeoutError as problem:
            assert problem.errno == errno.ETIMEDOUT
            late += 1
        else:
            tokens += tokens_of(result.outputs)
            eof = result.eof
    assert tokens == expected and late


# ---- a task may be cancelled, and a loop may be busy ----


def test_a_busy_event_loop_does_not_stop_the_kernel(k: Syscalls, pid: Pid) -> None:
    async def main() -> None:
        reads = [asyncio.create_task(twin(k).read(pid)) for _ in range(3)]
        await asyncio.sleep(0)
        other = k.spawn("Name a river.", max_tokens=4)
        assert k.wait(other, timeout_s=60).pid == other, "while the loop cannot take its answers"
        await asyncio.gather(*reads)

    asyncio.run(main())


def test_a_call_after_the_end_is_an_error() -> None:
    async def main() -> None:
        async with await tokenix.aio.boot("smollm2", device_pages=16) as dead:
            pass
        with pytest.raises(OSError) as caught:
            await asyncio.wait_for(dead.ps(), 30)
        assert caught.value.errno == errno.ESHUTDOWN

    asyncio.run(main())


def test_cancelled_reads_lose_nothing(k: Syscalls, pid: Pid, expected: list[int]) -> None:
    async def main() -> tuple[list[int], int]:
        reader = twin(k)
        tokens: list[int] = []
        cancelled = 0
        while True:
            try:
                async with asyncio.timeout(0.004):
                    result = await reader.read(pid)
            except TimeoutError:
                cancelled += 1
                continue
            tokens += tokens_of(result.outputs)
            if result.eof:
                return tokens, cancelled

    tokens, cancelled = asyncio.run(main())
    assert tokens == expected and cancelled


def test_a_call_cancelled_when_its_answer_is_there(
    k: Syscalls, pid: Pid, expected: list[int]
) -> None:
    """What a spawn made is ended; what a read or a wait brought is the next one's."""

    async def answered_then_cancelled(call: "asyncio.Task[object]") -> None:
        await asyncio.sleep(0)
        k.wait(k.spawn("a", max_tokens=1))  # blocks the loop: the answer comes, nobody takes it
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async def main() -> None:
        caller = twin(k)
        before = len(k.ps())
        await answered_then_cancelled(asyncio.create_task(caller.spawn("a", **LONG)))
        await answered_then_cancelled(asyncio.create_task(caller.fork(pid, 2)))
        await asyncio.create_task(caller.vmstat())
        assert len(k.ps()) == before
        await answered_then_cancelled(asyncio.create_task(caller.read(pid)))
        some = await caller.read(pid, max_tokens=1)
        more = await caller.read(pid)
        tokens = tokens_of(some.outputs + more.outputs)
        assert len(some.outputs) == 1 and tokens == expected[: len(tokens)]
        short = k.spawn("a", max_tokens=1)
        await answered_then_cancelled(asyncio.create_task(caller.wait(short)))
        assert (await caller.wait(short)).pid == short

    asyncio.run(main())


def twin(k: Syscalls) -> tokenix.aio.Syscalls:
    return tokenix.aio.Syscalls(k.port)


# ---- the process may be forked ----


def test_a_fork_of_the_process_is_told_that_it_has_no_kernel(k: Syscalls) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            code = in_the_fork(k)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert k.wait(k.spawn("a", max_tokens=1)).reason.value, "the parent goes on"


def in_the_fork(k: Syscalls) -> int:
    """An exit code. Nothing hangs: neither calls, nor close, nor boot."""
    try:
        k.ps()
    except BrokenPipeError:
        k.close()
        try:
            tokenix.boot("smollm2", device_pages=16)
        except OSError as problem:
            return 0 if problem.errno == errno.ENOTSUP else 2
    return 3
