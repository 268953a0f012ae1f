"""What an answer has cost, as clients are told."""

from collections.abc import Iterable

import msgspec

from tokenix.syscalls.types import Rusage


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt."""

    cached_tokens: int
    """Tokens whose KV was there already."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Timings(msgspec.Struct, frozen=True):
    """Where the time went, of one answer or of all together; what preemption did to it."""

    cache_n: int
    prompt_n: int
    """Prompt tokens that had to be computed."""
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    queue_ms: float
    """Until it had its first frames."""
    swapped_ms: float
    """Without frames afterwards."""
    preemptions: int
    stalls: int
    """Tokens that came visibly too late for their reader."""


def usage_of(prompt: int, completion: int, cached: int) -> Usage:
    return Usage(prompt, completion, prompt + completion, PromptDetails(cached))


def sum_usage(used: Iterable[tuple[int, Rusage]], n: int) -> Usage:
    """Of all answers by their index; the n answers to a prompt share it."""
    prompt = completion = cached = 0
    for index, rusage in used:
        completion += rusage.output_tokens
        if index % n == 0:
            prompt += rusage.prompt_tokens
            cached += rusage.cached_tokens
    return usage_of(prompt, completion, cached)


def timings_of(used: Iterable[Rusage]) -> Timings:
    """Sums over some answers."""
    total = Rusage()
    for one in used:
        for name in (
            "prompt_tokens", "cached_tokens", "output_tokens", "queue_s", "prefill_s", "decode_s",
            "paused_s", "preemptions", "stalls",
        ):  # fmt: skip
            setattr(total, name, getattr(total, name) + getattr(one, name))
    rate = total.output_tokens / total.decode_s if total.decode_s > 0 else 0.0
    return Timings(
        cache_n=total.cached_tokens,
        prompt_n=total.prompt_tokens - total.cached_tokens,
        prompt_ms=round(total.prefill_s * 1e3, 3),
        predicted_n=total.output_tokens,
        predicted_ms=round(total.decode_s * 1e3, 3),
        predicted_per_second=round(rate, 3),
        queue_ms=round(total.queue_s * 1e3, 3),
        swapped_ms=round(total.paused_s * 1e3, 3),
        preemptions=total.preemptions,
        stalls=total.stalls,
    )
