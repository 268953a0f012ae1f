"""Many simulated runs over several processes. Results come in the order of the jobs."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty
from typing import Any

from tokenix.bench.simulate import Result, Setup, run
from tokenix.bench.traces import Trace

Progress = Callable[[int, float], None]
"""(index of the job, share of it that is done)."""

Done = Callable[[int, Result], None]
"""(index of the job, its result): in the order of the jobs, as soon as it can be told."""

_POLL_S = 0.2
_STEP = 0.02
"""Runs tell their progress in steps of this share."""

_worker: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Job:
    """One run of many."""

    trace: str
    setup: Setup


def run_jobs(
    traces: Mapping[str, Trace],
    jobs: Sequence[Job],
    processes: int = 1,
    progress: Progress | None = None,
    done: Done | None = None,
) -> list[Result]:
    """Run all jobs, `processes` at a time. ValueError: what cannot be simulated."""
    results: list[Result] = []

    def take(result: Result) -> None:
        results.append(result)
        if done is not None:
            done(len(results) - 1, result)

    if processes <= 1 or len(jobs) <= 1:
        for index, job in enumerate(jobs):
            take(run(traces[job.trace], job.setup, _watch(index, progress)))
        return results
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    workers = min(processes, len(jobs))
    with ProcessPoolExecutor(workers, context, _begin, (traces, told)) as pool:
        try:  # an interruption may come while the workers are started
            with _no_signal():
                futures = [pool.submit(_work, index, job) for index, job in enumerate(jobs)]
            for future in futures:
                _wait(future, told, progress)
                take(future.result())
        except BaseException:  # do not wait for runs that nobody will hear of
            pool.shutdown(wait=False, cancel_futures=True)
            workers_left = multiprocessing.active_children()
            for worker in workers_left:
                worker.terminate()
            for worker in workers_left:
                worker.join()
            raise
    return results


def run_all(
    trace: Trace, setups: Sequence[Setup], processes: int = 1, progress: Progress | None = None
) -> list[Result]:
    """Run all setups on one trace."""
    jobs = [Job(trace.name, setup) for setup in setups]
    return run_jobs({trace.name: trace}, jobs, processes, progress)


def _wait(future: Future[Result], told: Any, progress: Progress | None) -> None:
    while not future.done():
        try:
            index, share = told.get(timeout=_POLL_S)
        except Empty:
            continue
        if progress is not None:
            progress(index, share)


def _watch(index: int, progress: Progress | None) -> Callable[[float], None] | None:
    if progress is None:
        return None
    last = -1.0

    def tell(share: float) -> None:
        nonlocal last
        if share - last >= _STEP or share >= 1:
            last = share
            progress(index, share)

    return tell


@contextmanager
def _no_signal() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the workers have started, which inherit it: half a worker would
    complain on stderr, and of Ctrl-C they are told by us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(traces: Mapping[str, Trace], told: Any) -> None:
    _worker["traces"], _worker["told"] = traces, told
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def _leave_with_parent() -> None:
    """A killed parent tells nobody; without this its workers would go on for good."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only workers begin so"
    parent.join()
    os._exit(1)


def _work(index: int, job: Job) -> Result:
    told = _worker["told"]
    watch = _watch(index, lambda i, share: told.put((i, share)))
    return run(_worker["traces"][job.trace], job.setup, watch)
