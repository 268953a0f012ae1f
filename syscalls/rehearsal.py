"""A machine without a model, in real time: the kernel and its pump on a simulated device, with an
invented vocabulary. For measuring and testing what is around the kernel.

    with rehearse(step_s=0.02) as k:
        pid = k.spawn([1, 2, 3], max_tokens=5)

Prompts are lists of tokens, or text of which each byte is one. An output's text is a short word.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.port import LocalPort

if TYPE_CHECKING:
    from tokenix.models.image import ProgramImage

WORDS = tuple(f" w{number:x}" for number in range(4096))


class InventedTokenizer:
    """As much of a tokenizer as text streams and prompts need."""

    strips_space = False

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Iterable[int], skip_special: bool = True) -> str:
        return "".join(WORDS[token % len(WORDS)] for token in tokens)

    def token_bytes(self, token: int) -> bytes:
        return WORDS[token % len(WORDS)].encode()

    def token_name(self, token: int) -> str:
        return WORDS[token % len(WORDS)]


@dataclass(frozen=True, slots=True)
class InventedConfig:
    eos_tokens: tuple[int, ...] = ()
    max_context_tokens: int = 1 << 20


@dataclass(frozen=True, slots=True)
class InventedImage:
    """As much of a program image as requests need."""

    name: str = "rehearsal"
    fingerprint: str = "rehearsal"
    format: str = "none"
    size_bytes: int = 0
    chat: None = None
    config: InventedConfig = InventedConfig()
    tokenizer: InventedTokenizer = field(default_factory=InventedTokenizer)
    default_sampling: Mapping[str, float] = field(default_factory=dict)


def rehearse(
    pages: int = 4096,
    host_pages: int = 8192,
    step_s: float = 0.01,
    prefill_token_s: float = 20e-6,
    tunables: Mapping[str, float] | None = None,
    **params: Any,
) -> Syscalls:
    """Boot it. `step_s`: seconds of a forward pass; `tunables` as those of `boot`, `params` by the
    names of `kernel.params.Params`."""
    from tokenix.drivers.sim.costs import CostModel
    from tokenix.drivers.sim.fast import FastDevice
    from tokenix.drivers.sim.realtime import RealTimeDevice
    from tokenix.kernel.boot import Machine, make_kernel
    from tokenix.kernel.loop import Pump
    from tokenix.kernel.params import Params
    from tokenix.sched.tunables import Tunables, retune

    cost = CostModel(base_s=step_s, prefill_token_s=prefill_token_s, decode_row_s=0, kv_token_s=0)
    device = RealTimeDevice(FastDevice(cost, pages, host_pages))
    kernel = make_kernel(
        device, "progress", Params(**params), retune(Tunables(), tunables or {}), ()
    )
    image = cast("ProgramImage", InventedImage())
    return Syscalls(LocalPort(Machine(image, kernel, Pump(kernel, device))))
