"""`tokenix kill` and `tokenix nice`."""

from typing import Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.connection import connected
from tokenix.cli.options import Json, Socket
from tokenix.cli.status import FAILED, OK, UsageError, of_os_error, report
from tokenix.syscalls.types import Pid, Signal

NAMES = {signal.name: signal for signal in sorted(Signal)}


def spell_out(tokens: list[str]) -> list[str]:
    """`kill -STOP 7` and `kill -9 7` as `kill --signal=STOP 7`, for the parser; so, too, what only
    looks like a signal (`-HUP`): `signal_of` says which there are."""
    for at, token in enumerate(tokens):
        if token == "--":
            break
        word = token.removeprefix("-")
        if token.startswith("-") and (word.isdecimal() or (word.isalnum() and word.isupper())):
            return [*tokens[:at], f"--signal={word}", *tokens[at + 1 :]]
    return tokens


def kill(
    *pids: Annotated[int, Parameter(help="Processes.")],
    signal: Annotated[
        str,
        Parameter(name=["--signal", "-s"], help="STOP, CONT, TERM or KILL, or its number."),
    ] = "TERM",
    show: Annotated[bool, Parameter(name=["--list", "-l"], help="List the signals.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> int:
    """Send a signal to processes: kill [-STOP|-CONT|-TERM|-KILL|-N|-s SIGNAL] PID...

    STOP pauses a process and frees its frames; CONT lets it go on; TERM ends it, what it has
    written can still be read; KILL ends it at once.
    """
    if show:
        if json:
            stdout.write_json(NAMES)
        else:
            stdout.write("".join(f"{number:>2} {name}\n" for name, number in NAMES.items()))
        return OK
    if not pids:
        raise UsageError("kill needs at least one pid; tokenix ps lists them")
    chosen = signal_of(signal)
    errors: dict[int, str | None] = {}
    with connected(socket) as k:
        for pid in pids:
            try:
                k.kill(Pid(pid), chosen)
                errors[pid] = None
            except ProcessLookupError as problem:  # the others get it all the same
                errors[pid] = of_os_error(problem)[0]
                report(errors[pid] or "")
    if json:
        sent = [{"pid": pid, "signal": chosen.name, "error": why} for pid, why in errors.items()]
        stdout.write_json(sent)
    return FAILED if any(errors.values()) else OK


def nice(
    pid: Annotated[int, Parameter(help="Process.")],
    value: Annotated[int, Parameter(help="-20 (favoured) to 19.", allow_leading_hyphen=True)],
    /,
    *,
    json: Json = False,
    socket: Socket = None,
) -> int:
    """Set the nice value of a process."""
    with connected(socket) as k:
        old = k.nice(Pid(pid), value)
    if json:
        stdout.write_json({"pid": pid, "old": old, "nice": value})
    else:
        stdout.write(f"{pid}: old priority {old}, new priority {value}\n")
    return OK


def signal_of(word: str) -> Signal:
    """A signal by name (STOP, SIGSTOP) or number. UsageError."""
    name = word.upper().removeprefix("SIG")
    if name in NAMES:
        return NAMES[name]
    if word.isdecimal() and int(word) in NAMES.values():
        return Signal(int(word))
    known = ", ".join(f"{name}={number}" for name, number in NAMES.items())
    raise UsageError(f"no signal {word!r}; there are {known}")
