"""What a finished forward pass means for each process that was in it: tokens, text, the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenix.drivers.ops import RowFault, Sampled
from tokenix.kernel.calls import ExitReason, Output, ReadResult, TurnEnd
from tokenix.kernel.process import Process
from tokenix.mm.page import Page


@dataclass(frozen=True, slots=True)
class Committed:
    """`ended` is set when the process's turn is over; `error` says why if it failed."""

    delivered: bool = False
    ended: ExitReason | None = None
    error: str = ""
    filled: Sequence[Page] = ()
    """Pages that have become full."""


DELIVERED = Committed(delivered=True)


def commit_row(
    process: Process,
    tokens: int,
    result: Sampled | RowFault | None,
    now_s: float,
    context_tokens: int,
) -> Committed:
    """KV of the next `tokens` tokens is written, and perhaps one more token was drawn."""
    if isinstance(result, RowFault):
        return Committed(ended=ExitReason.ERROR, error=result.reason)
    space, usage = process.space, process.usage
    computed = space.computed + tokens
    usage.recomputed_tokens += max(0, min(computed, process.furthest) - space.computed)
    process.furthest = max(process.furthest, computed)
    filled = space.advance(process.tokens, computed)
    if result is not None:
        ended = _deliver(process, result, now_s, context_tokens)
        if ended is None and not filled:
            return DELIVERED
        return Committed(True, ended, filled=filled)
    done = process.max_tokens == 0 and process.todo_tokens == 0
    return Committed(ended=ExitReason.LENGTH if done else None, filled=filled)


def _deliver(
    process: Process, drawn: Sampled, now_s: float, context_tokens: int
) -> ExitReason | None:
    """Append the token and put it into the pipe. Returns why the turn is over, if it is."""
    process.tokens.append(drawn.token)
    process.usage.output_tokens += 1
    stop = drawn.token in process.stop_tokens
    text = ""
    if process.text is not None and not stop:
        text = process.text.push(drawn.token)
        stop = process.text.stopped is not None and process.output_tokens > process.min_tokens
    process.out.append(Output(drawn.token, text, now_s, drawn.logprob, drawn.top))
    process.unread += 1
    if stop:
        return ExitReason.STOP
    if process.output_tokens >= process.max_tokens or process.length >= context_tokens:
        return ExitReason.LENGTH
    return None


def close_turn(process: Process, reason: ExitReason) -> None:
    """The turn's output is complete: release held text, put the end into the pipe. Idempotent."""
    if process.in_turn:
        tail = process.text.flush() if process.text is not None else ""
        process.out.append(TurnEnd(reason, tail))
        process.in_turn = False
        process.last_turn = reason


def take_output(process: Process, max_tokens: int) -> ReadResult | None:
    """Take output from the pipe, up to the end of a turn. None: there is nothing yet."""
    outputs: list[Output] = []
    turn_ended: TurnEnd | None = None
    while process.out and turn_ended is None:
        head = process.out[0]
        if isinstance(head, TurnEnd):
            turn_ended = head
        elif len(outputs) < max_tokens:
            outputs.append(head)
        else:
            break
        process.out.popleft()
    process.unread -= len(outputs)
    eof = process.exit_reason is not None and not process.out
    if not outputs and turn_ended is None and not eof:
        return None
    process.eof_sent = eof
    return ReadResult(
        tuple(outputs),
        turn_ended,
        eof,
        process.exit_reason if eof else None,
        process.exit_error if eof else "",
    )
