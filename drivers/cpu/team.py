"""Threads that help with a pass, and may come late or not at all.

    caller     post | items | items | items | items | withdraw what nobody took | go on
    helper 1          wakes | items | items | items | wait
    helper 2          (its core is taken by another process)

A parallel loop of OpenMP ends when all of its threads have been there, so each pass would wait for
a thread that finds its core busy, for milliseconds, though its work has long been done by others.
A helper here takes part as soon as it runs (see `claims`), and a job that it has not begun is taken
back. Helpers sleep between passes, in compiled code: they need no GIL to begin.

A job is a function and the address of its arguments, which the caller keeps on its stack until no
helper uses them. `outline` makes both of a kernel.
"""

import errno
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from tokenix.drivers.cpu.jit import Int64, bare, cgutils, intrinsic, kernel
from tokenix.drivers.cpu.lanes import I64, call_address, pointer
from tokenix.drivers.cpu.numbers import address
from tokenix.drivers.cpu.waiting import wait_for, wake

WORDS = 16
"""int64 of a helper's row: 4 of a semaphore, then state, function and arguments of its job, and how
many sleep until it is done."""
STATE, FUNCTION, ARGUMENTS, SLEEPERS = 4, 5, 6, 7
IDLE, POSTED, TAKEN, DONE = 0, 1, 2, 3

_several: Any = types.UniTuple
_PAIR = _several(types.int64, 2)

_sem_post: Any = types.ExternalFunction("sem_post", types.int32(types.int64))
_sem_wait: Any = types.ExternalFunction("sem_wait", types.int32(types.int64))


@intrinsic
def swap_if(typing: Any, at: Any, expected: Any, value: Any) -> Any:
    """Replace an int64 at an address if it is the expected one; returns what it was."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        at, expected, value = args
        both = b.cmpxchg(pointer(b, at, I64), expected, value, "seq_cst", "seq_cst")
        return b.extract_value(both, 0)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def _call_job(typing: Any, function: Any, arguments: Any, worker: Any) -> Any:
    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        call_address(b, args[0], args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def outline(work: Any) -> Callable[..., tuple[int, int]]:
    """An intrinsic that makes a job of a tuple of arguments, for a kernel
    `work(*arguments, worker)`."""

    @intrinsic
    def job(typing: Any, arguments: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            kept = cgutils.alloca_once_value(b, args[0])
            name = b.module.get_unique_name("tokenix_job")
            function = ir.Function(b.module, ir.FunctionType(ir.VoidType(), [I64, I64]), name)
            function.linkage = "internal"
            inside = ir.IRBuilder(function.append_basic_block("entry"))
            at, worker = function.args
            whole = inside.load(pointer(inside, at, args[0].type))
            kinds = [*sig.args[0].types, types.int64]
            values = [inside.extract_value(whole, i) for i in range(len(kinds) - 1)]
            body = context.compile_subroutine(inside, work.py_func, types.void(*kinds))
            context.call_internal_no_propagate(
                inside, body.fndesc, body.signature, [*values, worker]
            )
            inside.ret_void()
            numbers = [b.ptrtoint(each, I64) for each in (function, kept)]
            return context.make_tuple(b, sig.return_type, numbers)

        return _PAIR(arguments), codegen

    return job


@bare
def share(team: Int64, job: tuple[int, int]) -> None:
    """Do a job as worker 0, with helpers 1, 2, .. of the rows of `team`."""
    function, arguments = job
    for helper in range(len(team)):
        row = address(team) + helper * WORDS * 8
        team[helper, FUNCTION], team[helper, ARGUMENTS] = function, arguments
        swap_if(row + STATE * 8, IDLE, POSTED)
        _sem_post(row)
    _call_job(function, arguments, 0)
    for helper in range(len(team)):
        state = address(team) + helper * WORDS * 8 + STATE * 8
        if swap_if(state, POSTED, IDLE) == POSTED:
            continue
        wait_for(state, DONE, state + (SLEEPERS - STATE) * 8)
        swap_if(state, DONE, IDLE)


@kernel
def serve(row: Int64, worker: int) -> None:
    """What a helper does for ever."""
    state = address(row) + STATE * 8
    while True:
        _sem_wait(address(row))
        if swap_if(state, POSTED, TAKEN) == POSTED:
            _call_job(row[FUNCTION], row[ARGUMENTS], worker)
            swap_if(state, TAKEN, DONE)
            wake(state, state + (SLEEPERS - STATE) * 8)


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


MAX_HELPERS = max(0, count_cores() - 1)

_chosen = threading.local()


@cache
def _start() -> tuple[int, Int64]:
    """Start the helpers, once: the process in which that was, and their rows."""
    rows = np.zeros((MAX_HELPERS, WORDS), np.int64)
    for i, row in enumerate(rows):
        name = f"helper-{i + 1}"
        threading.Thread(target=serve, args=(row, i + 1), name=name, daemon=True).start()
    return os.getpid(), rows


def check_process() -> None:
    """OSError ENOTSUP in a fork of a process that has computed: the helpers are not in it."""
    if _start.cache_info().currsize and _start()[0] != os.getpid():
        raise OSError(
            errno.ENOTSUP,
            "a process that was forked from one that has computed cannot compute; start it with "
            "multiprocessing.get_context('spawn')",
        )


def get_threads() -> int:
    """How many threads the calling thread's passes use."""
    return int(getattr(_chosen, "threads", MAX_HELPERS + 1))


def set_threads(threads: int) -> int:
    """Bound the threads of the calling thread's passes; returns the number that was set."""
    _chosen.threads = max(1, min(threads, MAX_HELPERS + 1))
    return get_threads()


def helpers_of(workers: int) -> Int64:
    """Rows of the helpers of a pass that `workers` threads do, the caller included."""
    return _start()[1][: workers - 1]
