"""The pump: which thread does what, and how it ends."""

import errno
import threading
from typing import Any

import pytest

from tokenix.drivers.ops import ForwardDone
from tokenix.kernel import calls
from tokenix.kernel.answers import ReadResult
from tokenix.kernel.calls import KernelError, Principal
from tokenix.kernel.event import Reply
from tokenix.kernel.loop import Settle
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.rehearsal import rehearse

PATIENCE_S = 60.0
ROOT = Principal(root=True)


def watch_steps(k: Syscalls) -> set[str]:
    """The threads on which passes are committed, from now on."""
    kernel: Any = k.machine.kernel
    learn, threads = kernel.learn, set()

    def watched(now_s: float, inbox: Any) -> Any:
        if any(isinstance(event, ForwardDone) for event in inbox):
            threads.add(threading.current_thread().name)
        return learn(now_s, inbox)

    kernel.learn = watched
    return threads


def test_the_device_s_thread_goes_on_and_the_kernel_s_thread_answers() -> None:
    with rehearse(step_s=0.001) as k:
        threads = watch_steps(k)
        answered: list[str] = []
        ended = threading.Event()
        pump = k.machine.pump

        def read_on(reply: Reply) -> None:
            answered.append(threading.current_thread().name)
            result: Any = reply.value
            if result.eof:
                ended.set()
            else:
                pump.ask(calls.Read(pid), ROOT, read_on)

        pid = k.spawn([1, 2, 3], max_tokens=200)
        pump.ask(calls.Read(pid), ROOT, read_on)
        assert ended.wait(PATIENCE_S)
        assert set(answered) == {"tokenix-kernel"}
        assert "tokenix-sim" in threads  # sometimes it is ours, when a call came at that moment


def test_who_follows_output_is_given_it_while_the_next_pass_runs() -> None:
    """On the kernel's thread, all streams together: the device's has gone on."""
    with rehearse(step_s=0.001) as k:
        pump, kernel = k.machine.pump, k.machine.kernel
        told: list[tuple[str, int]] = []
        flights: list[int] = []
        came, ended = [0], threading.Semaphore(0)

        def part(result: ReadResult) -> Settle:
            came[0] += len(result.outputs)
            return settle

        def settle() -> None:
            told.append((threading.current_thread().name, came[0]))
            flights.append(len(kernel.flights))
            came[0] = 0

        pids = [k.spawn([1, 2, number], max_tokens=200, ignore_eos=True) for number in range(4)]
        for pid in pids:
            pump.ask(calls.Follow(pid, 1000), ROOT, lambda _: ended.release(), part)
        for _ in pids:
            assert ended.acquire(timeout=PATIENCE_S)
        assert {name for name, _ in told} == {"tokenix-kernel"} and max(flights) > 0
        assert 4 in {tokens for _, tokens in told}, "a pass is told of once"


def test_it_may_be_closed_by_who_is_answered() -> None:
    k = rehearse(step_s=0.001)
    pump, closed = k.machine.pump, threading.Event()
    pid = k.spawn([1, 2, 3], max_tokens=1000)

    def close(_: Reply) -> None:
        pump.close()
        closed.set()

    pump.ask(calls.Read(pid), ROOT, close)
    assert closed.wait(PATIENCE_S)
    with pytest.raises(OSError) as caught:
        k.ps()
    assert caught.value.errno == errno.ESHUTDOWN


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_of_the_kernel_reaches_all_who_wait() -> None:
    k = rehearse(step_s=0.05)
    kernel: Any = k.machine.kernel
    learn = kernel.learn

    def failing(now_s: float, inbox: Any) -> Any:
        commands = learn(now_s, inbox)
        assert not any(isinstance(event, ForwardDone) for event in inbox), "a bug of ours"
        return commands

    kernel.learn = failing
    pid = k.spawn([1, 2, 3], max_tokens=10)
    _, waiting = k.machine.pump.submit(calls.Wait(pid), ROOT)
    with pytest.raises(KernelError, match="a bug of ours") as caught:
        waiting.result(PATIENCE_S)
    assert caught.value.errno == errno.EIO
    with pytest.raises(OSError, match="the kernel has failed"):
        k.ps()
    k.close()
