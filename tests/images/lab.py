"""Kernels on simulated devices that share one disk: before and after a restart."""

from dataclasses import dataclass
from typing import Any

from tokenix.drivers.sim.images import ImageFiles
from tokenix.kernel.answers import Output, TurnEnd
from tokenix.kernel.calls import ImageDir, KernelError, Principal, Read, Request
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.tests.sim.machine import ROOT, SimMachine

PATIENCE = 20_000
"""Steps until a call must be answered."""

Told = tuple[int, float, tuple[tuple[int, float], ...], str]
"""An output but for its time."""


class Words:
    """A text stream as the kernel sees it: a word for each token, the last one held back."""

    def __init__(self, held: str = "", stop: str = "") -> None:
        self.held = held
        self.stop = stop
        self.stopped: str | None = None

    @property
    def stops(self) -> bool:
        return bool(self.stop)

    def push(self, token: int) -> str:
        text, self.held = self.held, f"w{token} "
        self.stopped = self.held if self.held == self.stop else None
        return text

    def flush(self) -> str:
        text, self.held = self.held, ""
        return text

    def copy(self) -> "Words":
        return Words(self.held, self.stop)

    def freeze(self) -> bytes:
        return f"{self.held}|{self.stop}".encode()

    @staticmethod
    def thaw(data: bytes) -> "Words":
        return Words(*data.decode().split("|"))


def boot(
    files: ImageFiles | None = None,
    frames: int = 32,
    host_slots: int = 64,
    resume: bool = False,
    params: Params | None = None,
    **options: Any,
) -> SimMachine:
    """A machine with an image directory; `files`: what an earlier one left."""
    machine = SimMachine(
        frames, host_slots, params=params or Params(poison=True), images=files, **options
    )
    machine.kernel.images.thaw = Words.thaw
    ask(machine, ImageDir("/", resume))
    return machine


def reboot(machine: SimMachine, **options: Any) -> SimMachine:
    """The kernel is killed, and another one finds its files."""
    return boot(machine.device.images, **options)


def ask(machine: SimMachine, request: Request, who: Principal = ROOT) -> Any:
    """Let time pass until the call is answered; its result, or raises its error."""
    return answer(machine, machine.start(request, who))


def answer(machine: SimMachine, call_id: int) -> Any:
    for _ in range(PATIENCE):
        if call_id in machine.replies:
            reply = machine.replies[call_id]
            if reply.error is not None:
                raise reply.error
            return reply.value
        assert machine.advance(), "nobody will answer"
    raise AssertionError("nobody has answered")


def refusal(machine: SimMachine, request: Request, who: Principal = ROOT) -> int:
    """The errno of a call that fails."""
    try:
        ask(machine, request, who)
    except KernelError as why:
        assert why.errno is not None and why.message
        return why.errno
    raise AssertionError(f"{request} was not refused")


@dataclass
class Heard:
    """What a reader has heard of one process, over all its lives."""

    outputs: list[Told]
    ends: list[TurnEnd]
    text: str = ""
    reason: str = ""

    @classmethod
    def nothing(cls) -> "Heard":
        return cls([], [])

    def take(self, machine: SimMachine, pid: Pid, most: int = 1 << 30) -> None:
        """What is in the pipe just now, or the next `most` tokens of it."""
        left = most
        while left > 0:
            result = machine.call(Read(pid, left, block=False))
            self.outputs += [_told(output) for output in result.outputs]
            self.text += "".join(output.text for output in result.outputs)
            left -= len(result.outputs)
            if result.turn_ended is not None and result.turn_ended.reason.value != "suspended":
                self.ends.append(result.turn_ended)
                self.text += result.turn_ended.tail
            if result.eof:
                self.reason = result.reason.value
            if result.eof or not (result.outputs or result.turn_ended):
                return


def _told(output: Output) -> Told:
    return output.token, output.logprob, output.top, output.text
