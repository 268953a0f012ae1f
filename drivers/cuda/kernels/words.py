"""What kernels do with memory and bits that Python has no word for.

Each function is written twice: as plain Python, which says what it means and is what a simulated
thread runs, and below it as what Numba puts into GPU code in its place. Pointers are flat arrays
when simulated. The Python runs on NumPy scalars (uint32, float32).
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.cuda import extending, types

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal["f32", "f16", "bf16"]
"""Of numbers as they are: activations, and keys and values without codes."""

PER_WORD: dict[Kind, int] = {"f32": 1, "f16": 2, "bf16": 2}
"""Numbers in a word."""


def as_plain(kind: str) -> Kind | None:
    """The kind, if its numbers are as they are."""
    return next((plain for plain in PER_WORD if plain == kind), None)


LEAST = np.float32(-1e30)
"""A score below all others that still has differences."""

_numba: Any = numba
_cgutils: Any = _numba.cuda.cgutils
_extending: Any = extending
_types: Any = types
_intrinsic: Callable[..., Any] = _extending.intrinsic

cuda: Any = _numba.cuda
"""What kernels say of threads and shared memory. A simulation puts itself in its place."""

float32: Any = _numba.float32
float64: Any = _numba.float64
int32: Any = _numba.int32
int64: Any = _numba.int64
uint32: Any = _numba.uint32
uint64: Any = _numba.uint64


def device(function: Any) -> Any:
    """A Python function that kernels call."""
    return _extending.register_jitable(function)


def _on_gpu(function: Any) -> Callable[[F], F]:
    """Decorates what gives the GPU's form of `function`, for the types of its arguments."""
    return cast(Callable[[F], F], _extending.overload(function, target="cuda", strict=False))


def _asm(builder: Any, result: Any, text: str, constraint: str, args: list[Any]) -> Any:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(ir.InlineAsm(kind, text, constraint, side_effect=False), args)


def load4(words: Any, at: int) -> tuple[Any, Any, Any, Any]:
    """Four words that no thread of this launch writes, by one load; `at` is a multiple of 4."""
    assert at % 4 == 0, f"a load of 16 bytes at word {at}"
    return words[at], words[at + 1], words[at + 2], words[at + 3]


@_intrinsic
def _load4(typing: Any, words: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        quad = ir.LiteralStructType([ir.IntType(32)] * 4)
        text = "ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {$0,$1,$2,$3}, [$4];"
        where = builder.gep(args[0], [args[1]])
        loaded = _asm(builder, quad, text, "=r,=r,=r,=r,l", [where])
        return _cgutils.pack_array(builder, [builder.extract_value(loaded, i) for i in range(4)])

    return _types.UniTuple(_types.uint32, 4)(words, _types.int64), generate


@_on_gpu(load4)
def _load4_on_gpu(words: Any, at: Any) -> Any:
    def call(words: Any, at: Any) -> Any:
        return _load4(words, at)

    return call


def as_float(word: Any) -> Any:
    """The float32 that a word is."""
    return np.uint32(word).view(np.float32)


@_on_gpu(as_float)
def _as_float_on_gpu(word: Any) -> Any:
    return lambda word: uint32(word).view(np.float32)


def as_word(number: Any) -> Any:
    """The word that a float32 is."""
    return np.float32(number).view(np.uint32)


@_on_gpu(as_word)
def _as_word_on_gpu(number: Any) -> Any:
    return lambda number: float32(number).view(np.uint32)


def bf16_of(word: Any, half: int) -> Any:
    """The low or high bfloat16 of a word, as float32."""
    return np.uint32(int(word) << 16 - 16 * half & 0xFFFF0000).view(np.float32)


@_on_gpu(bf16_of)
def _bf16_of_on_gpu(word: Any, half: Any) -> Any:
    def widen(word: Any, half: Any) -> Any:
        shifted = uint32(word) << uint32(16 - 16 * half)
        return uint32(shifted & uint32(0xFFFF0000)).view(np.float32)

    return widen


def f16_of(word: Any, half: int) -> Any:
    """The low or high float16 of a word, as float32."""
    return np.float32(np.uint16(int(word) >> 16 * half & 0xFFFF).view(np.float16))


@_intrinsic
def _widen_f16(typing: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        low = builder.trunc(args[0], ir.IntType(16))
        return _asm(builder, ir.FloatType(), "cvt.f32.f16 $0, $1;", "=f,h", [low])

    return _types.float32(_types.uint32), generate


@_on_gpu(f16_of)
def _f16_of_on_gpu(word: Any, half: Any) -> Any:
    return lambda word, half: _widen_f16(uint32(uint32(word) >> uint32(16 * half)))


def f32_of(word: Any, half: int) -> Any:
    """The one number of a word."""
    return np.uint32(word).view(np.float32)


@_on_gpu(f32_of)
def _f32_of_on_gpu(word: Any, half: Any) -> Any:
    return lambda word, half: uint32(word).view(np.float32)


def bf16_pair(low: Any, high: Any) -> Any:
    """Two float32 as bfloat16 in a word, rounded to nearest even."""
    bits = [int(np.float32(x).view(np.uint32)) for x in (low, high)]
    round_up = [(b + 0x7FFF + (b >> 16 & 1)) >> 16 & 0xFFFF for b in bits]
    rounded = [r if x == x else 0x7FFF for r, x in zip(round_up, (low, high), strict=True)]
    return np.uint32(rounded[1] << 16 | rounded[0])


def f16_pair(low: Any, high: Any) -> Any:
    """Two float32 as float16 in a word, rounded to nearest even."""
    bits = [int(np.float16(x).view(np.uint16)) for x in (low, high)]
    return np.uint32(bits[1] << 16 | bits[0])


def _narrow(instruction: str) -> Any:
    def typed(typing: Any, low: Any, high: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            text = f"{instruction} $0, $1, $2;"
            return _asm(builder, ir.IntType(32), text, "=r,f,f", [args[1], args[0]])

        return _types.uint32(_types.float32, _types.float32), generate

    return _intrinsic(typed)


_narrow_bf16, _narrow_f16 = _narrow("cvt.rn.bf16x2.f32"), _narrow("cvt.rn.f16x2.f32")


@_on_gpu(bf16_pair)
def _bf16_pair_on_gpu(low: Any, high: Any) -> Any:
    def call(low: Any, high: Any) -> Any:
        return _narrow_bf16(low, high)

    return call


@_on_gpu(f16_pair)
def _f16_pair_on_gpu(low: Any, high: Any) -> Any:
    def call(low: Any, high: Any) -> Any:
        return _narrow_f16(low, high)

    return call


def quotient(a: Any, b: Any) -> Any:
    """a // b, of numbers from 0 to 2**31: of 32 bits, where Numba would divide 64."""
    return a // b


@_intrinsic
def _quotient(typing: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.udiv(*args)

    return _types.int32(_types.int32, _types.int32), generate


@_on_gpu(quotient)
def _quotient_on_gpu(a: Any, b: Any) -> Any:
    def call(a: Any, b: Any) -> Any:
        return _quotient(a, b)

    return call


def exp2(x: Any) -> Any:
    """2 to the power of x, float32, to about 2 units in the last place."""
    return np.exp2(np.float32(x))


@_intrinsic
def _exp2(typing: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _asm(builder, ir.FloatType(), "ex2.approx.ftz.f32 $0, $1;", "=f,f", [args[0]])

    return _types.float32(_types.float32), generate


@_on_gpu(exp2)
def _exp2_on_gpu(x: Any) -> Any:
    def call(x: Any) -> Any:
        return _exp2(x)

    return call


NUMBER_OF: dict[Kind, Any] = {"f32": f32_of, "f16": f16_of, "bf16": bf16_of}
"""(word, half) -> float32."""


@device
def _store_words(words: Any, pair: int, low: Any, high: Any) -> None:
    words[2 * pair] = as_word(low)
    words[2 * pair + 1] = as_word(high)


@device
def _store_bf16(words: Any, pair: int, low: Any, high: Any) -> None:
    words[pair] = bf16_pair(low, high)


@device
def _store_f16(words: Any, pair: int, low: Any, high: Any) -> None:
    words[pair] = f16_pair(low, high)


STORE_PAIR: dict[Kind, Any] = {"f32": _store_words, "f16": _store_f16, "bf16": _store_bf16}
"""(words, i, low, high): write two float32 as numbers 2i and 2i + 1."""


@device
def _load_words(words: Any, pair: int) -> Any:
    return as_float(words[2 * pair]), as_float(words[2 * pair + 1])


@device
def _load_bf16(words: Any, pair: int) -> Any:
    return bf16_of(words[pair], 0), bf16_of(words[pair], 1)


@device
def _load_f16(words: Any, pair: int) -> Any:
    return f16_of(words[pair], 0), f16_of(words[pair], 1)


LOAD_PAIR: dict[Kind, Any] = {"f32": _load_words, "f16": _load_f16, "bf16": _load_bf16}
"""(words, i) -> numbers 2i and 2i + 1 as float32."""
