"""Machine code of kernels, made without a GPU: Numba or NVRTC, then a cubin of one architecture.

    Python source   Numba -> PTX -> nvJitLink -> cubin      entry renamed to the op's name
    CUDA C++        NVRTC ---------------------> cubin

No fast math: a not-a-number must stay one, so that a broken row is found, and sums keep their
order. Numba is asked to compile only; it neither launches nor opens the device.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numba
from numba.cuda import dispatcher, types

from tokenix.drivers.cuda.kernels.abi import Arg, Op

Arch = tuple[int, int]
"""Compute capability: (9, 0) is Hopper."""

_numba: Any = numba
_dispatcher: Any = dispatcher
_types: Any = types

_ONE_AT_A_TIME = threading.Lock()
_ENTRY = re.compile(r"\.visible \.entry (\w+)\(")


def _type_of(arg: Arg) -> Any:
    names = {"f": "float", "i": "int", "u": "uint"}
    kind = arg.kind.removesuffix("*")
    plain = getattr(_types, names[kind[0]] + kind[1:])
    return _types.CPointer(plain) if arg.kind.endswith("*") else plain


@contextlib.contextmanager
def _as_if_on(arch: Arch) -> Iterator[None]:
    """Numba asks the current device what functions that a kernel calls are compiled for."""
    asked = _dispatcher.get_current_device
    _dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=arch)
    try:
        yield
    finally:
        _dispatcher.get_current_device = asked


def make_ptx(op: Op, function: Callable[..., None], arch: Arch, bounds: tuple[int, int]) -> str:
    """PTX of a Python kernel with one entry, named as the op. bounds: threads of a block, and
    blocks that a multiprocessor should have room for."""
    signature = _types.void(*[_type_of(arg) for arg in op.args])
    with _ONE_AT_A_TIME, _as_if_on(arch):
        ptx, _ = _numba.cuda.compile_ptx(function, signature, cc=arch, launch_bounds=bounds)
    (entry,) = _ENTRY.findall(ptx)
    return str(ptx).replace(entry, op.name)


def compile_python(
    op: Op, function: Callable[..., None], arch: Arch, bounds: tuple[int, int]
) -> bytes:
    """A cubin of a Python kernel. RuntimeError, with the compiler's words, if it is refused."""
    return link_ptx(make_ptx(op, function, arch, bounds), arch)


def link_ptx(ptx: str, arch: Arch) -> bytes:
    """A cubin of PTX."""
    from cuda.bindings import nvjitlink as linker

    options = [f"-arch=sm_{arch[0]}{arch[1]}"]
    handle = linker.create(len(options), options)
    try:
        code = ptx.encode()
        linker.add_data(handle, linker.InputType.PTX, code, len(code), "kernel.ptx")
        linker.complete(handle)
        cubin = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    except linker.nvJitLinkError as error:
        log = bytearray(linker.get_error_log_size(handle))
        linker.get_error_log(handle, log)
        _refuse(log, error)
    finally:
        linker.destroy(handle)


def compile_cpp(source: str, arch: Arch, defines: Sequence[str]) -> bytes:
    """A cubin of CUDA C++; its entries are `extern "C"`. RuntimeError as above."""
    from cuda.bindings import nvrtc

    def check(answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC: {status.name}")
        return values[0] if values else None

    program = check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [f"-arch=sm_{arch[0]}{arch[1]}", "-std=c++17", *(f"-D{name}" for name in defines)]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            _refuse(log, None)
        cubin = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
        check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _refuse(log: bytearray, error: Exception | None) -> NoReturn:
    words = bytes(log).rstrip(b"\0").decode(errors="replace").strip()
    raise RuntimeError(f"a kernel was not compiled: {words}") from error


def compiler_versions() -> str:
    """What machine code depends on beside its source, in a line."""
    from importlib.metadata import PackageNotFoundError, version

    def find(package: str) -> str:
        try:
            return f"{package}={version(package)}"
        except PackageNotFoundError:
            return f"{package}=none"

    names = ("numba", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc")
    return " ".join(find(name) for name in names)
