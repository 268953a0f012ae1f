"""What goes into a kernel step and what comes out, besides device commands and completions."""

from dataclasses import dataclass

import msgspec

from tokenix.drivers.ops import Command as DeviceCommand
from tokenix.drivers.ops import Completion
from tokenix.kernel.calls import Follow, KernelError, Principal, Read, Request, Wait


@dataclass(frozen=True, slots=True)
class Call:
    """A system call. `call_id` names it until its reply."""

    call_id: int
    principal: Principal
    request: Request


class Reply(msgspec.Struct, frozen=True):
    """The one answer to a call: its result, or an error."""

    call_id: int
    value: object = None
    error: KernelError | None = None
    more: bool = False
    """It is a part of the answer to a `Follow`, and another one comes."""


@dataclass(slots=True)
class WaitingCall:
    """A call that is blocked: its reply comes later."""

    call_id: int
    principal: Principal
    request: Read | Follow | Wait
    left_tokens: int = 0
    """Of a reader: how much it may still be given."""


Event = Call | Completion
Command = DeviceCommand | Reply
