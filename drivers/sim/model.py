"""The simulator's model: integers that depend on the whole prefix, as real K and V do.

    fold(0)     = ORIGIN
    cell(p)     = mix(fold(p), token at p, p)            what a forward writes for position p
    fold(p + 1) = fold(p) * SPREAD + cell(p)   mod 2^64  what attention over 0..p has read
    next token  = draw(fold(p + 1), sampling)

A wrong, stale or missing cell anywhere in 0..p changes the fold and, but for one chance in the
vocabulary, the token; all later cells carry the mistake on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokenix.drivers.ops import Sampled, SampleSpec
from tokenix.drivers.sampling import SamplingParams, TokenMask

MASK = (1 << 64) - 1
ORIGIN = 0x9E3779B97F4A7C15
SPREAD = 0xD1342543DE82EF95
EOS_ONE_IN = 32
"""A model with an end-of-text token draws it about once in this many tokens."""
FORCING_BIAS = 100.0
"""A logit bias of at least this forces a token; of at most minus this it bans one."""


def mix(fold: int, token: int, position: int) -> int:
    """The cell of `token` at `position` after a prefix with `fold`."""
    x = (
        fold ^ (token + 1) * 0xBF58476D1CE4E5B9 ^ (position + 1) * 0x94D049BB133111EB
    ) * 0xFF51AFD7ED558CCD & MASK
    return x ^ x >> 29


def extend(fold: int, cell: int) -> int:
    """The fold after reading one more cell."""
    return (fold * SPREAD + cell) & MASK


def fold_cells(fold: int, cells: Iterable[int]) -> int:
    """The fold after reading `cells` in order."""
    for cell in cells:
        fold = (fold * SPREAD + cell) & MASK
    return fold


def _scramble(a: int, b: int) -> int:
    x = (a ^ (b + 1) * 0xC4CEB9FE1A85EC53) * 0x9FB21C651E98DF25 & MASK
    x ^= x >> 28
    x = x * 0xD6E8FEB86659FD93 & MASK
    return x ^ x >> 32


@lru_cache(maxsize=4096)
def _shape(params: SamplingParams) -> int:
    """A number that differs with each setting that may change the output; 0 for plain greedy."""
    settings: list[tuple[float, ...]] = list(params.logit_bias)
    if params.needs_history:
        settings.append(
            (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        )
    if params.temperature > 0:
        settings.append((params.temperature, params.top_k, params.top_p, params.min_p, params.seed))
    value = 0
    for setting in settings:
        for number in setting:
            value = _scramble(value, hash(number))
    return value


@dataclass(frozen=True, slots=True)
class SimModel:
    """Draws tokens from folds."""

    vocab: int
    eos_token: int | None = None

    def draw(self, fold: int, spec: SampleSpec, position: int) -> Sampled:
        """The token at `position`, after a prefix with `fold`; a pure function of its arguments.
        ValueError if its grammar leaves none."""
        params = spec.params
        value = _scramble(fold, 0)
        shape = _shape(params)
        if shape:
            value = _scramble(value, shape)
        if params.temperature > 0:
            value = _scramble(value, position)
        if params.needs_history:
            value = _scramble(value, spec.prompt_tokens)
            for token in spec.history[:position]:
                value = _scramble(value, token)
        if spec.grammar is None:
            token = self._pick(value, params, spec.banned)
        else:
            mask = spec.grammar.mask(spec.history, spec.prompt_tokens, position)
            token = self._pick_of(value, params, spec.banned, mask)
        if params.logprobs < 0:
            return Sampled(token)
        return self._with_logprobs(token, fold, params.logprobs)

    def _pick(self, value: int, params: SamplingParams, banned: tuple[int, ...]) -> int:
        if params.logit_bias:
            for token, bias in params.logit_bias:
                if bias >= FORCING_BIAS and token not in banned:
                    return token
            banned += tuple(t for t, bias in params.logit_bias if bias <= -FORCING_BIAS)
        eos = self.eos_token
        if eos is not None and (value >> 40) % EOS_ONE_IN == 0 and eos not in banned:
            return eos
        token = value % self.vocab
        for _ in range(self.vocab):
            if token not in banned and token != eos:
                return token
            token = (token + 1) % self.vocab
        raise AssertionError("at least one token that is not end of text can be drawn")

    def _pick_of(
        self, value: int, params: SamplingParams, banned: tuple[int, ...], mask: bytes
    ) -> int:
        """One of those that a grammar allows. ValueError if there is none."""
        allowed = [t for t in range(min(self.vocab, 8 * len(mask))) if mask[t >> 3] >> (t & 7) & 1]
        if not allowed:
            raise ValueError("no token may be drawn: its grammar leaves none")
        forced = [t for t, bias in params.logit_bias if bias >= FORCING_BIAS]
        banned += tuple(t for t, bias in params.logit_bias if bias <= -FORCING_BIAS)
        left = [t for t in allowed if t not in banned] or allowed
        return next((t for t in forced if t in left), left[value % len(left)])

    def _with_logprobs(self, token: int, fold: int, count: int) -> Sampled:
        """Made-up but deterministic: the chosen token first, then its neighbours."""
        best = -((fold & 0xFFFF) + 1) / 0x10000
        top = tuple(
            ((token + i) % self.vocab, best - 0.5 * i) for i in range(min(count, self.vocab))
        )
        return Sampled(token, best, top)


_GREEDY = SamplingParams()


def expected_tokens(
    prompt: Sequence[int],
    n: int,
    params: SamplingParams = _GREEDY,
    vocab: int = 256,
    eos_token: int | None = None,
    *,
    ignore_eos: bool = False,
    min_tokens: int = 0,
    banned: tuple[int, ...] = (),
    prompt_tokens: int | None = None,
    grammar: TokenMask | None = None,
) -> list[int]:
    """The oracle: up to `n` tokens that an undisturbed process outputs, computed without frames.

    Stops after `eos_token` (which is in the result) unless `ignore_eos`. `eos_token` is banned in
    the first `min_tokens` outputs, `banned` in all. For a forked process pass the whole prefix as
    `prompt` and the length of the original prompt as `prompt_tokens`; `min_tokens` counts from
    there.
    """
    model = SimModel(vocab, eos_token)
    sequence = list(prompt)
    origin = len(sequence) if prompt_tokens is None else prompt_tokens
    fold = ORIGIN
    for position, token in enumerate(sequence):
        fold = extend(fold, mix(fold, token, position))
    output: list[int] = []
    while len(output) < n:
        position = len(sequence)
        bans = banned
        if eos_token is not None and position - origin < min_tokens:
            bans += (eos_token,)
        token = model.draw(
            fold, SampleSpec(params, sequence, origin, bans, grammar), position
        ).token
        output.append(token)
        sequence.append(token)
        if token == eos_token and not ignore_eos:
            break
        fold = extend(fold, mix(fold, token, position))
    return output
