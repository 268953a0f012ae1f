"""One process as its callers see it, held against the oracle token by token."""

from collections import deque
from dataclasses import dataclass, field, replace

from tokenix.drivers.sim import expected_tokens
from tokenix.kernel.answers import ExitReason, ReadResult, WaitResult
from tokenix.kernel.process import Process
from tokenix.mm.ids import Pid


@dataclass(slots=True)
class Turn:
    """From its prompt to its end."""

    prefix: tuple[int, ...]
    """The sequence before the first output that its reader can see."""
    origin: int
    """prefix[:origin] is the prompt; the rest is output that a forked parent had made."""
    outputs: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    ended: ExitReason | None = None


class Follower:
    """What a process was asked, what came out of its pipe, and what had to."""

    def __init__(self, process: Process, vocab: int, eos_token: int | None) -> None:
        self.pid: Pid = process.pid
        self.tenant = process.tenant
        self.parent = process.parent
        self.process = process
        self.keep_open = process.stdin_open
        self.written: deque[int] = deque(process.stdin)
        """Input that was accepted and is not part of a turn yet. A fork has some from the start,
        even if its stdin is closed."""
        self.bounds = {process.max_tokens}
        """Every max_tokens it ever had."""
        self.turns: list[Turn] = []
        self.terminal: ReadResult | None = None
        self.reaped = False
        self.told: WaitResult | None = None
        """What those who waited for it were told."""
        self.unreadable = False
        """A read was told that the process is gone."""
        self._reading = 0
        self._prompt_tokens = process.prompt_tokens
        self._outputs = 0
        self._vocab = vocab
        self._eos_token = eos_token
        if process.in_turn:
            self.turns.append(Turn(tuple(process.tokens), process.prompt_tokens))

    def reborn(self, process: Process) -> "Follower":
        """It comes out of an image: what was read of it is not read again, nothing is left out."""
        twin = Follower(process, self._vocab, self._eos_token)
        twin.keep_open, twin.written, twin.bounds = self.keep_open, self.written, self.bounds
        twin.turns = [replace(turn, outputs=list(turn.outputs), expected=[]) for turn in self.turns]
        twin._reading = self._reading
        twin._prompt_tokens, twin._outputs = self._prompt_tokens, self._outputs
        return twin

    def observe(self) -> None:
        """After each step: a new turn must begin with all that was there and what was written."""
        process = self.process
        if process.prompt_tokens == self._prompt_tokens:
            return
        made = process.usage.output_tokens - self._outputs
        before = len(self.turns[-1].prefix) + made if self.turns else self._prompt_tokens
        if not self.turns:
            before = next(
                n for n in range(process.prompt_tokens, -1, -1) if self._is_input(process, n)
            )
        taken = process.tokens[before : process.prompt_tokens]
        assert taken and taken == [self.written.popleft() for _ in taken], (
            f"pid {self.pid}: a turn began with {taken}"
        )
        self.turns.append(
            Turn(tuple(process.tokens[: process.prompt_tokens]), process.prompt_tokens)
        )
        self._outputs = process.usage.output_tokens
        self._prompt_tokens = process.prompt_tokens

    def _is_input(self, process: Process, start: int) -> bool:
        """Whether all that was written begins at `start` (of a fork between two turns)."""
        taken = process.tokens[start : process.prompt_tokens]
        return bool(taken) and len(taken) == len(self.written) and taken == list(self.written)

    def take(self, result: ReadResult) -> None:
        """A read was answered: tokens in order, without gaps, one end for each turn, one eof."""
        assert self.terminal is None, f"pid {self.pid}: output after the end of file"
        if result.reason is ExitReason.SUSPENDED:
            assert not result.outputs and result.eof, "what is in an image is not read"
            self.terminal = result
            return
        for output in result.outputs:
            self._check(output.token)
        if result.turn_ended is not None:
            turn = self.turns[self._reading]
            turn.ended = result.turn_ended.reason
            self._check_end(turn)
            self._reading += 1
        if result.eof:
            assert result.reason is not None, "an end has a reason"
            self.terminal = result
        else:
            assert result.reason is None

    def _check(self, token: int) -> None:
        assert self._reading < len(self.turns), f"pid {self.pid}: output outside of a turn"
        turn = self.turns[self._reading]
        turn.outputs.append(token)
        count = len(turn.outputs)
        if count > len(turn.expected):
            process = self.process
            ignore_eos = self._eos_token not in process.stop_tokens
            turn.expected = expected_tokens(
                turn.prefix, max(2 * count, 16), process.sampling, self._vocab, self._eos_token,
                ignore_eos=ignore_eos, min_tokens=process.min_tokens, prompt_tokens=turn.origin,
                grammar=None if process.grammar is None else process.grammar.copy(),
            )  # fmt: skip
        assert turn.outputs == turn.expected[:count], (
            f"pid {self.pid}: output {count - 1} of turn {self._reading} is {token}, "
            f"not {turn.expected[count - 1 : count]}"
        )

    def _check_end(self, turn: Turn) -> None:
        made = len(turn.prefix) - turn.origin + len(turn.outputs)
        assert made <= max(self.bounds), f"pid {self.pid}: {made} of {self.bounds} tokens"
        if turn.ended is ExitReason.STOP:
            assert turn.outputs[-1] == self._eos_token, "it stopped without a stop token"
        if turn.ended is ExitReason.LENGTH:
            assert made in self.bounds, f"pid {self.pid}: {made} of {self.bounds} tokens"

    def check_over(self) -> None:
        """At the end of a world."""
        assert self.process.exit_reason is not None, f"pid {self.pid} has not ended"
        assert self.terminal is not None or self.unreadable, f"pid {self.pid}: no terminal event"
        assert self.reaped, f"pid {self.pid} was not reaped"
