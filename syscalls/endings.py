"""What reads bring, for Python callers: its text, and the error for output that was cut short."""

import errno

from tokenix.kernel.answers import ExitReason, ReadResult
from tokenix.kernel.calls import error
from tokenix.mm.ids import Pid

_CUT_SHORT: dict[ExitReason | None, tuple[int, str]] = {
    ExitReason.ERROR: (errno.EIO, "failed: "),
    ExitReason.REFUSED: (errno.EAGAIN, "was "),
    ExitReason.KILLED: (errno.ECANCELED, "was killed by somebody (SIGKILL)"),
    ExitReason.TERMINATED: (errno.ECANCELED, "was terminated by somebody (SIGTERM)"),
    ExitReason.SUSPENDED: (
        errno.ECANCELED, "was suspended by somebody; it is in an image, resume lets it go on"
    ),
    ExitReason.DEADLINE: (errno.ETIMEDOUT, "was ended by its deadline; raise deadline_s"),
    ExitReason.PAGES: (errno.EDQUOT, "needs more KV pages than it may have; raise max_pages"),
}  # fmt: skip
"""Ends that leave an output incomplete: the errno, and what is said with the error behind it."""


def text_of(result: ReadResult) -> str:
    """The text that a read has brought."""
    outputs, end = result.outputs, result.turn_ended
    if end is None and len(outputs) == 1:
        return outputs[0].text  # nearly always
    pieces = [output.text for output in outputs]
    if end is not None:
        pieces.append(end.tail)
    return "".join(pieces)


def raise_if_failed(pid: Pid, result: ReadResult) -> None:
    """OSError if what this result ends, the turn or else the process, is not complete: all ends
    but `stop` and `length`. Of a turn that was complete nothing is said if the process, which
    waited for input, was ended afterwards."""
    turn = result.turn_ended
    reason = result.reason if turn is None else turn.reason
    if reason in _CUT_SHORT:
        number, what = _CUT_SHORT[reason]
        raise error(number, f"process {pid} {what}{result.error}").as_os_error()
