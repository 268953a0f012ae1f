"""How tokens are drawn: what a caller says once, and every command that draws repeats. A module of
its own, as callers need it and none of the commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the logits of one row.

    The order is: the grammar's mask, logit_bias and bans, penalties, then temperature, top_k,
    top_p, min_p. Bans do not apply where they would leave nothing of what the grammar allows. The
    draw uses a random number that is a pure function of (seed, position), so a stream is the same
    whatever it is batched with and however often it was preempted.
    """

    temperature: float = 0.0
    """0 means greedy: the highest logit, ties to the lowest token id."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output, as CTRL: positive logits are divided, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Over the output only, as OpenAI defines it."""
    frequency_penalty: float = 0.0
    """Over the output only, as OpenAI defines it."""
    seed: int = 0
    logprobs: int = -1
    """-1: none. n >= 0: the chosen token's log probability and the n most likely ones, of the
    model's own distribution (before temperature and penalties)."""
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def needs_history(self) -> bool:
        """Whether any penalty reads the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


class TokenMask(Protocol):
    """What an output may go on with (models.grammar.Grammar)."""

    def mask(self, history: Sequence[int], start: int, end: int) -> bytes:
        """Of the token at `end`, after the output history[start:end]: bit t % 8 of byte t // 8 says
        whether it may be t; beyond the last byte, no token may. A function of that output alone:
        asked again, it says the same. Called by one thread at a time, not the kernel's. ValueError,
        in one line, if there is no saying: the row fails with it."""
        ...
