"""What a finished forward pass means for each process that was in it: tokens, text, the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenix.drivers.ops import RowFault, Sampled
from tokenix.kernel.answers import ExitReason, Output, ReadResult, TurnEnd
from tokenix.kernel.process import STALE, Process
from tokenix.kernel.state import State
from tokenix.mm.page import Page

Drawn = Sampled | RowFault | None
"""What the device says of one row."""


@dataclass(frozen=True, slots=True)
class Committed:
    """`ended` is set when the process's turn is over; `error` says why if it failed."""

    delivered: bool = False
    ended: ExitReason | None = None
    error: str = ""
    filled: Sequence[Page] = ()
    """Pages that have become full."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """What came of the decodes of a pass."""

    streams: list[Process]
    """They have their token in the pipe and are ready again."""
    filled: list[tuple[Process, Page]]
    """Of them: pages that have become full."""
    others: list[tuple[Process, Drawn]]
    """Not touched: `commit_row` must look at them."""


def commit_decodes(
    processes: Sequence[Process], results: Sequence[Drawn], now_s: float, page_tokens: int
) -> Quiet:
    """One token each for streams in full swing; see `Process.quiet_until`."""
    streams: list[Process] = []
    filled: list[tuple[Process, Page]] = []
    others: list[tuple[Process, Drawn]] = []
    ready = State.READY
    for process, drawn in zip(processes, results, strict=True):
        space = process.space
        computed = space.computed + 1
        if (
            computed >= process.quiet_until
            or type(drawn) is not Sampled
            or drawn.token in process.stop_tokens
        ):
            others.append((process, drawn))
            continue
        if computed % page_tokens:
            space.advance_one()
        else:
            filled += [(process, page) for page in space.advance(process.tokens, computed)]
        token, stream = drawn.token, process.text
        process.tokens.append(token)
        text = "" if stream is None else stream.push(token)
        process.out.append(Output(token, text, now_s, drawn.logprob, drawn.top))
        process.state = ready
        streams.append(process)
    return Quiet(streams, filled, others)


def is_void(process: Process, start: int) -> bool:
    """Whether a row that begins at `start` has read what was never written: the one that it goes
    on with has failed."""
    return start != process.space.computed


def still_wanted(process: Process, end: int, drawn: Drawn) -> Drawn:
    """What a row up to `end` has drawn; None if its turn was over with the token before."""
    late = not process.in_turn or end != len(process.tokens)
    return None if late and isinstance(drawn, Sampled) else drawn


def commit_row(
    process: Process, tokens: int, result: Drawn, now_s: float, context_tokens: int
) -> Committed:
    """KV of the next `tokens` tokens is written, and perhaps one more token was drawn."""
    if isinstance(result, RowFault):
        return Committed(ended=ExitReason.ERROR, error=result.reason)
    space = process.space
    computed = space.computed + tokens
    again = max(0, min(computed, process.furthest) - space.computed)
    process.usage.recomputed_tokens += again
    filled = space.advance(process.tokens, computed)
    if result is not None:
        ended = _deliver(process, result, now_s, context_tokens)
        return Committed(True, ended, filled=filled)
    done = process.max_tokens == 0 and process.todo_tokens == 0
    return Committed(ended=ExitReason.LENGTH if done else None, filled=filled)


def find_quiet_until(process: Process, context_tokens: int, pipe_tokens: int) -> int:
    """See `Process.quiet_until`; for a process past its first token."""
    if process.hold or not process.in_turn or (process.text is not None and process.text.stops):
        return 0
    to_go = count_to_go(process, context_tokens, pipe_tokens)
    if process.output_tokens < process.min_tokens:
        to_go = min(to_go, process.min_tokens - process.output_tokens)
    return process.space.computed + to_go


def count_to_go(process: Process, context_tokens: int, pipe_tokens: int) -> int:
    """Tokens up to the first that passes or reaches a bound, that one included."""
    length = len(process.tokens)
    to_go = min(
        process.limit_tokens - length,
        context_tokens - length,
        pipe_tokens - process.unread,
    )
    if process.max_pages is not None:
        to_go = min(to_go, process.max_pages * process.space.page_tokens - length + 1)
    return to_go


def _deliver(
    process: Process, drawn: Sampled, now_s: float, context_tokens: int
) -> ExitReason | None:
    """Append the token and put it into the pipe. Returns why the turn is over, if it is."""
    process.tokens.append(drawn.token)
    if process.output_tokens == process.min_tokens:
        process.spec = STALE  # its stop tokens are not banned any more
    stop = drawn.token in process.stop_tokens
    text = ""
    if process.text is not None and not stop:
        text = process.text.push(drawn.token)
        stop = process.text.stopped is not None and process.output_tokens > process.min_tokens
    process.out.append(Output(drawn.token, text, now_s, drawn.logprob, drawn.top))
    if stop:
        return ExitReason.STOP
    if process.output_tokens >= process.max_tokens or process.length >= context_tokens:
        return ExitReason.LENGTH
    return None


def close_turn(process: Process, reason: ExitReason) -> None:
    """The turn's output is complete: release held text, put the end into the pipe. Idempotent."""
    if process.in_turn:
        tail, stopped_by = "", ""
        if process.text is not None:
            tail = process.text.flush()
            if reason is ExitReason.STOP:
                stopped_by = process.text.stopped or ""
        process.out.append(TurnEnd(reason, tail, stopped_by))
        process.ends += 1
        process.in_turn = False
        process.last_turn = reason


def take_output(process: Process, max_tokens: int) -> ReadResult | None:
    """Take output from the pipe, up to the end of a turn. None: there is nothing yet."""
    if len(process.out) == 1 and process.exit_reason is None:
        head = process.out[0]
        if isinstance(head, Output):  # the way of nearly all tokens
            process.out.popleft()
            return ReadResult((head,))
    outputs: list[Output] = []
    turn_ended: TurnEnd | None = None
    while process.out and turn_ended is None:
        head = process.out[0]
        if isinstance(head, TurnEnd):
            turn_ended = head
            process.ends -= 1
        elif len(outputs) < max_tokens:
            outputs.append(head)
        else:
            break
        process.out.popleft()
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
