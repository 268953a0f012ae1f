"""The one door to Numba: typed decorators, and a code cache that can never be stale or fatal.

Numba keys its on-disk cache by the file that holds a function, not by the files it calls into, so
an edited callee would leave old machine code behind. Here the cache folder is named by a hash of
this whole driver. If no folder can be written, everything is compiled in memory.

No kernel uses fastmath: it rewrites the float operations of intrinsics too, and code loaded from
the cache then differs in its last bits from code compiled afresh.
"""

import contextlib
import errno
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba import extending
from numba.core import cgutils as numba_cgutils

if TYPE_CHECKING:
    prange = range
else:
    prange = numba.prange

F = TypeVar("F", bound=Callable[..., Any])

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

PARALLEL = threading.Lock()
"""Held around every parallel kernel: not all of Numba's threading layers allow two callers."""


def _source_digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> str | None:
    """A writable folder for compiled code, or None."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    for base in ([named] if named else []) + [f"{shared}/tokenix"]:
        try:
            folder = Path(base).expanduser() / f"jit-{_source_digest()}"
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except (OSError, RuntimeError):
            continue
    return None


_CACHE = _cache_folder()
_config: Any = numba.config

cgutils: Any = numba_cgutils
"""Numba's code generation helpers, untyped."""


_names: set[str] = set()
"""Of all functions that may have to be compiled."""
_listeners: list[Callable[[str], None]] = []


@contextlib.contextmanager
def tell_compiling(progress: Callable[[str, float], None] | None) -> Iterator[None]:
    """Inside, `progress(stage, fraction)` is called before a function is compiled, which takes
    seconds for some: at the first start after an install, or on another kind of processor."""
    begun: set[str] = set()

    def tell(name: str) -> None:
        begun.add(name)
        if progress is not None:
            progress("compiling kernels, once for this machine", len(begun) / len(_names))

    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)


class Forgiving:
    """Numba's cache of one function. What cannot be read from it is compiled again, and what
    cannot be written (a full disk) is not kept."""

    def __init__(self, cache: Any, name: str = "") -> None:
        self._cache = cache
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, target: Any) -> Any:
        found = None
        try:
            found = self._cache.load_overload(signature, target)
        except Exception:  # damaged: whatever unpickling and loading raise
            with contextlib.suppress(OSError):
                self._cache.flush()
        if found is None:
            for tell in _listeners:
                tell(self._name)
        return found

    def save_overload(self, signature: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            self._cache.save_overload(signature, data)


def _compile(function: F, parallel: bool) -> F:
    saved = _config.CACHE_DIR
    _config.CACHE_DIR = _CACHE or ""
    try:
        compiled: Any = numba.njit(
            function,
            parallel=parallel,
            nogil=True,
            cache=_CACHE is not None,
            error_model="numpy",
        )
        if _CACHE is not None:
            compiled._cache = Forgiving(compiled._cache, function.__qualname__)
            _names.add(function.__qualname__)
        return cast(F, compiled)
    finally:
        _config.CACHE_DIR = saved


def intrinsic(build: Callable[..., Any]) -> Callable[..., Any]:
    """A function that kernels call, given as (signature, code generator) of its argument types."""
    return cast(Callable[..., Any], extending.intrinsic(build))


def specialized(function: F) -> Callable[[Callable[..., Any]], Any]:
    """Decorates what gives, for the types of the arguments, the Python function that a kernel runs
    when it calls `function`: a choice that is made when the kernel is compiled."""
    return cast(Callable[[Callable[..., Any]], Any], extending.overload(function, strict=False))


def kernel(function: F) -> F:
    """Compile to machine code that runs without the GIL."""
    return _compile(function, parallel=False)


def parallel_kernel(function: F) -> F:
    """Like `kernel`, with `prange` loops shared among threads. Call it with PARALLEL held."""
    return _compile(function, parallel=True)


@cache
def _launch() -> int:
    """Start Numba's threading layer, with OpenMP threads that sleep while they wait. The id of the
    process in which that was.

    By default they spin for milliseconds after each region, on cores that the kernel's own thread
    needs. OpenMP reads its settings as it is loaded, so the variable is set for that moment only.
    """
    chosen = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        numba.get_num_threads()
    finally:
        if chosen is None:
            del os.environ["OMP_WAIT_POLICY"]
    return os.getpid()


def check_process() -> None:
    """OSError ENOTSUP in a fork of a process that has run kernels: OpenMP would kill it."""
    if _launch.cache_info().currsize and _launch() != os.getpid():
        raise OSError(
            errno.ENOTSUP,
            "a process that was forked from one that has computed cannot compute; start it with "
            "multiprocessing.get_context('spawn')",
        )


def get_threads() -> int:
    """How many threads the calling thread's parallel kernels use."""
    _launch()
    return int(numba.get_num_threads())


def set_threads(threads: int) -> int:
    """Bound the calling thread's parallel kernels; returns the number that was set."""
    _launch()
    bounded = max(1, min(threads, int(_config.NUMBA_NUM_THREADS)))
    numba.set_num_threads(bounded)
    return bounded
