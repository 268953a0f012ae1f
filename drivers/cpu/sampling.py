"""Draw a token from the logits of a row, as `SamplingParams` documents it.

Every row is drawn from its own logits, parameters and history alone. The random number is a hash
of (seed, position). Greedy rows without options take an argmax; what goes over the vocabulary of a
row with options is in `draw.py`, and here what that leaves: very wide sets.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from tokenix.drivers.cpu import draw
from tokenix.drivers.cpu.best import NOT_FINITE as NO_BEST
from tokenix.drivers.cpu.jit import Float32, Float64, Int32
from tokenix.drivers.ops import RowFault, Sampled, SampleSpec
from tokenix.drivers.sampling import SamplingParams

Ids = npt.NDArray[np.intp]

NUCLEUS_GUESS = 512
"""Tokens first tried as a top_p set before the whole vocabulary is sorted."""

_MASK = (1 << 64) - 1
NOT_FINITE = RowFault("logits are not finite: its KV, or the model, is corrupt")


def sample_rows(
    logits: Float32,
    specs: Sequence[SampleSpec],
    positions: Sequence[int],
    best: Int32 | None = None,
) -> list[Sampled | RowFault]:
    """One result for each row of logits [rows, vocab], the token at its position; rows may be
    overwritten. best: of each row, where a pass has found it (`best.find_best`)."""
    if not specs:
        return []
    if best is None:
        best = np.array([_best_of(row) for row in logits], np.int32)
    results: list[Sampled | RowFault] = []
    chances: list[int] = []
    for row, (spec, token) in enumerate(zip(specs, best.tolist(), strict=True)):
        if token == NO_BEST:
            results.append(NOT_FINITE)
        elif spec.grammar is not None or not _is_unaltered(spec):
            results.append(_sample_alone(logits[row], spec, positions[row], token))
        else:
            results.append(Sampled(token))
            if spec.params.temperature > 0:
                chances.append(row)
    if chances:
        asked = [(specs[row], positions[row]) for row in chances]
        for row, token in zip(chances, _draw_rows(logits, chances, asked), strict=True):
            results[row] = Sampled(token)
    return results


def _best_of(row: Float32) -> int:
    best = int(row.argmax())
    return best if np.isfinite(row[best]) else NO_BEST


def _sample_alone(
    logits: Float32, spec: SampleSpec, position: int, best: int
) -> Sampled | RowFault:
    """Whatever a row's options break, they break for that row only. `best`: its argmax."""
    try:
        if spec.grammar is None:
            return _sample(logits, spec, position, None, best)
        try:
            mask = spec.grammar.mask(spec.history, spec.prompt_tokens, position)
        except ValueError as why:
            return RowFault(str(why))
        if spec.params.temperature <= 0 and _is_unaltered(spec) and _is_in(mask, best):
            return Sampled(best)  # the best of all is the best of those allowed
        return _sample(logits, spec, position, mask, best)
    except Exception as error:
        return RowFault(f"sampling: {type(error).__name__}: {error}")


def _is_unaltered(spec: SampleSpec) -> bool:
    """Whether its scores are the logits, and a token is all that is asked for."""
    params = spec.params
    return (
        params.logprobs < 0
        and not params.logit_bias
        and not spec.banned
        and not params.needs_history
    )


def _is_in(mask: bytes, token: int) -> bool:
    return token >> 3 < len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)


def _sample(
    logits: Float32, spec: SampleSpec, position: int, mask: bytes | None, best: int
) -> Sampled | RowFault:
    """One row with options; `logits` [vocab] is left as it was. best: its argmax."""
    params = spec.params
    strange = [t for t in (*spec.banned, *dict(params.logit_bias)) if not 0 <= t < len(logits)]
    if strange:
        return RowFault(f"token {strange[0]} is outside the vocabulary of {len(logits)}")
    scores: Float32 | Float64 = logits
    if mask is not None or params.logit_bias or spec.banned or params.needs_history:
        scores = adjust(logits, spec, position, mask)
        best = int(scores.argmax())
        if not np.isfinite(scores[best]):
            why = "all are banned" if mask is None else "its grammar leaves none"
            return RowFault(f"no token may be drawn: {why}")
    token = best if params.temperature <= 0 else _draw(scores, spec, position)
    return Sampled(token) if params.logprobs < 0 else _with_logprobs(logits, token, params.logprobs)


def _with_logprobs(logits: Float32, token: int, count: int) -> Sampled:
    """A token with its log probability, and those of the `count` most likely ones."""
    peaks = draw.find_peaks(logits)
    whole = draw.log_sum_exp(logits, peaks)
    ids: Ids = np.empty(0, np.intp)
    if count > 0:
        count = min(count, len(logits))
        ids = draw.find_largest(logits, peaks, count)
        if not len(ids):
            ids = largest(logits.astype(np.float64), count)
    top = tuple((int(i), float(logits[i]) - whole) for i in ids)
    return Sampled(token, float(logits[token]) - whole, top)


def adjust(logits: Float32, spec: SampleSpec, position: int, mask: bytes | None = None) -> Float64:
    """The grammar's mask, bias, bans and penalties; a new float64 array [vocab]."""
    params = spec.params
    scores = logits.astype(np.float64)
    if mask is not None:
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: len(scores)]
        scores[: len(bits)][bits == 0] = -np.inf
        scores[len(bits) :] = -np.inf
    for token, bias in params.logit_bias:
        scores[token] += bias
    if spec.banned:
        banned = list(spec.banned)
        before = scores[banned]
        scores[banned] = -np.inf
        if mask is not None and not np.isfinite(scores.max()):
            scores[banned] = before
    if not params.needs_history:
        return scores
    history = np.fromiter(spec.history[:position], np.intp)
    if params.repetition_penalty != 1.0:
        seen = np.unique(history)
        old = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = np.where(old > 0, old / penalty, old * penalty)
    tokens, counts = np.unique(history[spec.prompt_tokens :], return_counts=True)
    scores[tokens] -= params.presence_penalty + params.frequency_penalty * counts
    return scores


def _draw_rows(
    logits: Float32, rows: Sequence[int], asked: Sequence[tuple[SampleSpec, int]]
) -> list[int]:
    """Temperature, top_k, top_p, min_p, then one draw; for rows whose logits are their scores."""
    vocab = logits.shape[1]
    scores, step = _in_one_line(logits)
    every = [spec.params for spec, _ in asked]
    numbers = [uniform(spec.params.seed, position) for spec, position in asked]
    found: list[int] = draw.draw_rows(
        scores,
        np.array(rows, np.int64) * step,
        vocab,
        np.array([params.temperature for params in every]),
        np.array([params.top_k if 0 < params.top_k < vocab else vocab for params in every]),
        np.array([params.top_p for params in every], np.float64),
        np.array([params.min_p for params in every], np.float64),
        np.array(numbers),
    ).tolist()
    for i, token in enumerate(found):
        if token == draw.WIDE:
            found[i] = _draw_wide(logits[rows[i]].astype(np.float64), asked[i][0], numbers[i])
    return found


def _in_one_line(logits: Float32) -> tuple[Float32, int]:
    """The memory of rows, and how far they are apart: kernels want to know that each is in one
    piece, which a part of a wider array does not say."""
    rows, vocab = logits.shape
    if logits.strides[1] != logits.itemsize or logits.strides[0] < logits.strides[1] * vocab:
        logits = np.ascontiguousarray(logits)
    step = logits.strides[0] // logits.itemsize
    return as_strided(logits, ((rows - 1) * step + vocab,), (logits.itemsize,)), step


def _draw(scores: Float32 | Float64, spec: SampleSpec, position: int) -> int:
    """The same for one row."""
    params, vocab = spec.params, len(scores)
    number = uniform(params.seed, position)
    top_k = params.top_k if 0 < params.top_k < vocab else vocab
    if top_k == vocab and params.top_p >= 1:
        return draw.draw_any(scores, params.temperature, params.min_p, number)
    token = draw.draw_likely(scores, params.temperature, top_k, params.top_p, params.min_p, number)
    return token if token != draw.WIDE else _draw_wide(scores.astype(np.float64), spec, number)


def _draw_wide(scores: Float64, spec: SampleSpec, number: float) -> int:
    """As `draw.draw_likely`, of any number of candidates."""
    params = spec.params
    ids, weights = candidates(scores, params.temperature, params.top_k, params.top_p)
    if params.min_p > 0:
        kept = weights >= params.min_p * weights.max()
        ids, weights = ids[kept], weights[kept]
    running = weights.cumsum()
    target = number * running[-1]
    at = min(int(running.searchsorted(target, side="right")), len(ids) - 1)
    while weights[at] == 0:
        at -= 1
    return int(ids[at])


def prepare() -> None:
    """Compile what drawing needs, so that no request has to wait for it."""
    params = SamplingParams(temperature=1.0, top_p=0.5, logprobs=1)
    for more in ({}, {"top_p": 1.0}, {"logprobs": -1}, {"logit_bias": ((0, 0.0),)}):
        spec = SampleSpec(dataclasses.replace(params, **more), (), 0)
        sample_rows(np.zeros((1, 8), np.float32), [spec], [0])


def candidates(
    scores: Float64, temperature: float, top_k: int, top_p: float
) -> tuple[Ids, Float64]:
    """Token ids and their unnormalised probabilities after top_k and top_p.

    In id order if neither applies, else most likely first. At least one remains.
    """
    vocab = len(scores)
    with np.errstate(over="ignore"):  # at a tiny temperature all but the best are infinitely far
        weights = np.exp((scores - scores.max()) / temperature)
    k = top_k if 0 < top_k < vocab else vocab
    if top_p >= 1:
        if k == vocab:
            return np.arange(vocab), weights
        ids = largest(scores, k)
        return ids, weights[ids]
    guess = min(k, NUCLEUS_GUESS)
    ids = largest(scores, guess)
    total = weights.sum() if k == vocab else weights[largest(scores, k)].sum()
    if weights[ids].sum() < top_p * total and guess < k:
        ids = largest(scores, k)
    running = weights[ids].cumsum()
    count = int(running.searchsorted(top_p * total)) + 1
    return ids[:count], weights[ids[:count]]


def largest(scores: Float64, count: int) -> Ids:
    """Ids of the `count` largest scores, largest first, ties to the lowest id."""
    if count <= 0:
        return np.empty(0, np.intp)
    if count < len(scores):
        bound = np.partition(scores, len(scores) - count)[len(scores) - count]
        above = np.flatnonzero(scores > bound)
        equal = np.flatnonzero(scores == bound)[: count - len(above)]
        ids = np.sort(np.concatenate([above, equal]))
    else:
        ids = np.arange(len(scores))
    return ids[np.argsort(-scores[ids], kind="stable")]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position): two rounds of splitmix64."""
    return (_mix(_mix(seed & _MASK) ^ (position & _MASK)) >> 11) * 2.0**-53


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
