"""Many simulated runs over several processes. Results come in the order of the setups."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from queue import Empty
from typing import Any

from tokenix.bench.simulate import Result, Setup, run
from tokenix.bench.traces import Trace

Progress = Callable[[int, float], None]
"""(index of the run, share of it that is done)."""

_POLL_S = 0.2
_STEP = 0.02
"""Runs tell their progress in steps of this share."""

_worker: dict[str, Any] = {}


def run_all(
    trace: Trace, setups: Sequence[Setup], jobs: int = 1, progress: Progress | None = None
) -> list[Result]:
    """Run all setups, `jobs` at a time."""
    if jobs <= 1 or len(setups) <= 1:
        return [run(trace, setup, _watch(i, progress)) for i, setup in enumerate(setups)]
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    workers = min(jobs, len(setups))
    with ProcessPoolExecutor(workers, context, _begin, (trace, told)) as pool:
        futures = [pool.submit(_work, index, setup) for index, setup in enumerate(setups)]
        try:
            while not all(future.done() for future in futures):
                try:
                    index, share = told.get(timeout=_POLL_S)
                except Empty:
                    continue
                if progress is not None:
                    progress(index, share)
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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


def _begin(trace: Trace, told: Any) -> None:
    _worker["trace"], _worker["told"] = trace, told


def _work(index: int, setup: Setup) -> Result:
    told = _worker["told"]
    return run(_worker["trace"], setup, _watch(index, lambda i, share: told.put((i, share))))
