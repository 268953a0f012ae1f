"""What it costs to hold outputs to a grammar: a mask, and a stream beside those that are free.

masks     of JSON that fits a schema, token by token, in the thread that asks: read, and mask
streams   decode time a token, all of one kind or half and half; rounds alternate, medians
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import tokenix
from tokenix.models.grammar_source import read_source
from tokenix.syscalls.inproc import Syscalls

STREAMS = 8
TOKENS = 48
ROUNDS = 5
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "text": {"type": "string"},
        "tags": {"type": "array", "items": {"enum": ["tall", "kind", "old"]}, "maxItems": 4},
    },
    "required": ["name", "age", "text", "tags"],
    "additionalProperties": False,
}
SAID = (
    '{"name": "Ada Lovelace", "age": 36, "text": "It was the best of times, it was the worst of '
    'times, it was the age of wisdom, it was the age of \\"foolishness\\".", "tags": ["kind"]}'
)
LONG = {"regex": "(.|\\n){400,}"}
"""It never ends within a round."""


@dataclass(frozen=True, slots=True)
class Report:
    vocab_tokens: int
    prepare_s: float
    compile_ms: float
    mask_us: float
    """Mean, of a grammar that was compiled just now."""
    mask_median_us: float
    mask_worst_us: float
    free_ms: float
    """A decode step of as many streams, none held to a grammar."""
    held_ms: float
    """All of them."""
    half_ms: float
    """Every other one; as the free ones feel it."""

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def measure(model: str = "smollm2") -> Report:
    """Boots the model. OSError as `boot`, and ENOTSUP without llguidance."""
    patient = {f"target_{qos}_s": 600.0 for qos in ("interactive", "stream", "batch", "idle")}
    with tokenix.boot(model, device_pages=256, tunables=patient) as k:
        grammars = k.machine.image.grammars
        began_s = time.perf_counter()
        grammars.prepare()
        prepare_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        grammar = grammars.compile(read_source({"json_schema": SCHEMA}))
        compile_s = time.perf_counter() - began_s
        history = [0, *k.machine.image.tokenizer.encode(SAID)]
        spent_us: list[float] = []
        for end in range(1, len(history) + 1):
            began_s = time.perf_counter()
            grammar.mask(history, 1, end)
            spent_us.append(1e6 * (time.perf_counter() - began_s))
        kinds = ((False,), (True,), (False, True))
        steps_ms: list[list[float]] = [[], [], []]
        for _ in range(ROUNDS + 1):
            for found, kind in zip(steps_ms, kinds, strict=True):
                found.append(_step_ms(k, kind))
        free_ms, held_ms, half_ms = (statistics.median(found[1:]) for found in steps_ms)
        return Report(
            vocab_tokens=k.model().vocab_tokens,
            prepare_s=prepare_s,
            compile_ms=1e3 * compile_s,
            mask_us=statistics.fmean(spent_us),
            mask_median_us=statistics.median(spent_us),
            mask_worst_us=max(spent_us),
            free_ms=free_ms,
            held_ms=held_ms,
            half_ms=half_ms,
        )


def _step_ms(k: Syscalls, kinds: Sequence[bool]) -> float:
    """Decode time a token of the first of STREAMS streams, held to a grammar in turn or not."""
    pids = [
        k.spawn(
            "Tell me a story.", max_tokens=TOKENS, ignore_eos=True, reader="batch", grammar=LONG
        )
        if kinds[i % len(kinds)]
        else k.spawn("Tell me a story.", max_tokens=TOKENS, ignore_eos=True, reader="batch")
        for i in range(STREAMS)
    ]
    for pid in pids:
        for _ in k.stream(pid):
            pass
    usage, *_ = [k.wait(pid).rusage for pid in pids]
    return 1e3 * usage.decode_s / (usage.output_tokens - 1)
