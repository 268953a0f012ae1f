"""CUDA C++ kernels as C++ of this machine: compiled with simt.h, called as they are launched."""

import ctypes
import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenix.drivers.cuda.kernels.abi import Op

_HEADER = Path(__file__).with_name("simt.h")
_TYPES = {"f32": "float", "f64": "double", "i32": "int", "u32": "unsigned", "i64": "long long"}
_TYPES |= {"u64": "unsigned long long"}
_SCALARS = {"f32": ctypes.c_float, "i32": ctypes.c_int, "u32": ctypes.c_uint}
_SCALARS |= {"i64": ctypes.c_longlong}


def _glue(op: Op) -> str:
    """A C function that launches the kernel with the arguments of `op`, in its order."""
    kinds = [(_TYPES[a.kind.rstrip("*")] + "*" * a.kind.count("*"), a.name) for a in op.args]
    fields = "".join(f"{kind} {name};\n" for kind, name in kinds)
    declared = ", ".join(f"{kind} {name}" for kind, name in kinds)
    passed = ", ".join(f"a.{name}" for _, name in kinds)
    given = ", ".join(name for _, name in kinds)
    return f"""
        struct Arguments {{ {fields} }};
        static void call(void* p) {{ Arguments& a = *(Arguments*)p; {op.name}({passed}); }}
        static std::string fault;
        extern "C" const char* run(unsigned x, unsigned y, unsigned z, int threads,
                                   int shared_bytes, unsigned long long seed, {declared}) {{
            Arguments a{{{given}}};
            fault = simt::launch(dim3{{x, y, z}}, threads, shared_bytes, seed, call, &a);
            return fault.c_str();
        }}
    """


@cache
def _compile(op: Op, source: str, defines: tuple[str, ...], folder: Path) -> Any:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    text = source + _glue(op)
    name = hashlib.sha256(repr((text, defines)).encode()).hexdigest()[:16]
    path, library = folder / f"{name}.cpp", folder / f"{name}.so"
    path.write_text(text, encoding="utf-8")
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w"]
    macros = [f"-D{each}" for each in (*defines, f'SIMULATED="{_HEADER}"')]
    command = [compiler, *flags, *macros, str(path), "-o", str(library)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[:3000]
    run = ctypes.CDLL(str(library)).run
    run.restype = ctypes.c_char_p
    return run


def launch(
    op: Op, source: str, defines: list[str], grid: tuple[int, ...], threads: int,
    shared_bytes: int, *args: Any, seed: int, folder: Path,
) -> None:  # fmt: skip
    """Run a kernel's C++ over a grid. AssertionError with what a simulated thread did wrong."""
    run = _compile(op, source, tuple(defines), folder)
    x, y, z = (*grid, 1, 1)[:3]
    values: list[Any] = []
    for arg, value in zip(op.args, args, strict=True):
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous and value.ctypes.data % 16 == 0, arg.name
            values.append(ctypes.c_void_p(value.ctypes.data))
        else:
            values.append(_SCALARS[arg.kind](value))
    fault = run(x, y, z, threads, shared_bytes, ctypes.c_ulonglong(seed), *values)
    assert fault == b"", f"{op.name}: {fault.decode()}"
