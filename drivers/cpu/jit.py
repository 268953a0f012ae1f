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
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import binding
from numba import extending
from numba.core import cgutils as numba_cgutils
from numba.core.registry import cpu_target

from tokenix.drivers.usercache import cache_folder

F = TypeVar("F", bound=Callable[..., Any])

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

PARALLEL = threading.Lock()
"""Held around every pass: the team of helpers has one job at a time."""


def _source_digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> str | None:
    """A writable folder for compiled code, or None."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    for base in [Path(named).expanduser, cache_folder] if named else [cache_folder]:
        try:
            folder = base() / f"jit-{_source_digest()}"
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except (OSError, RuntimeError):
            continue
    return None


_CACHE = _cache_folder()
_config: Any = numba.config
_njit: Any = numba.njit
"""Untyped: its declaration leaves out `_nrt`."""

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


def kernel(function: F) -> F:
    """Compile to machine code that runs without the GIL."""
    return _compile(function, owning=True)


def brief(function: F) -> F:
    """A kernel that keeps the GIL: for microseconds between passes, after which whoever got it
    meanwhile would be waited for."""
    return _compile(function, owning=True, nogil=False)


def bare(function: F) -> F:
    """A kernel that makes no array, nor keeps one: it counts no references. Those of arrays that
    all threads of a pass use lie in one cache line, which travels between cores with each count;
    an item of a phase would wait longer for that than it computes. One that returns an array, or
    what holds one, is called by bare kernels only: whoever counts would drop a reference too many.
    """
    return _compile(function, owning=False)


def _compile(function: F, owning: bool, nogil: bool = True) -> F:
    saved = _config.CACHE_DIR
    _config.CACHE_DIR = _CACHE or ""
    try:
        compiled: Any = _njit(
            function,
            nogil=nogil,
            cache=_CACHE is not None,
            error_model="numpy",
            _nrt=owning,
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


def host_context() -> Any:
    """What kernels are compiled in."""
    return cpu_target.target_context


def has_vnni(context: Any) -> bool:
    """Whether code compiled in this context may use AVX512-VNNI."""
    _, _, features = context.codegen().magic_tuple()
    return {"+avx512vnni", "+avx512bw"} <= set(features.split(","))


def has_bf16(context: Any) -> bool:
    """Likewise AVX512-BF16."""
    _, _, features = context.codegen().magic_tuple()
    return {"+avx512bf16", "+avx512f"} <= set(features.split(","))


_TURN = "define float @f(half %x) { %y = fpext half %x to float\n ret float %y }"


@cache
def check_processor() -> None:
    """OSError ENOTSUP if code is compiled for a processor that cannot turn 16-bit floats into
    others: LLVM would call a function that is in no library here, and end the process."""
    triple, name, features = host_context().codegen().magic_tuple()
    machine = binding.Target.from_triple(triple).create_target_machine(name, features)
    if "__extendhfsf2" in machine.emit_assembly(binding.parse_assembly(_TURN)):
        raise OSError(
            errno.ENOTSUP,
            f"kernels are compiled for the processor {name!r}, which has no 16-bit floats (F16C, "
            "on x86 since 2013); unset NUMBA_CPU_NAME and NUMBA_CPU_FEATURES",
        )


def specialized(function: F) -> Callable[[Callable[..., Any]], Any]:
    """Decorates what gives, for the types of the arguments, the Python function that a kernel runs
    when it calls `function`: a choice that is made when the kernel is compiled."""
    return cast(Callable[[Callable[..., Any]], Any], extending.overload(function, strict=False))


def entry_point(signature: Any) -> Callable[[Callable[..., None]], Callable[[], int]]:
    """Decorates a kernel over numbers that others call by its address, which the result gives.

    A kernel that calls another one by name contains it, so code that is large and called from many
    places would be compiled for each of them again.
    """

    kept: list[Any] = []

    def decorate(function: Callable[..., None]) -> Callable[[], int]:
        @cache
        def address() -> int:
            saved = _config.CACHE_DIR
            _config.CACHE_DIR = _CACHE or ""
            try:
                compiled: Any = numba.cfunc(signature, cache=_CACHE is not None)(function)
            except Exception:  # a damaged or full cache, as in `Forgiving`
                compiled = numba.cfunc(signature)(function)
            finally:
                _config.CACHE_DIR = saved
            kept.append(compiled)
            return int(compiled.address)

        return address

    return decorate
