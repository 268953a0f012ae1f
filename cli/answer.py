"""`tokenix run`: options, which words are the model and which the prompt, and one answer."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenix.cli import stdout
from tokenix.cli.machine import DEFAULT_MODEL, open_machine
from tokenix.cli.status import OK, UsageError
from tokenix.syscalls.types import (
    Output,
    Pid,
    Prompt,
    ReadResult,
    Rusage,
    Signal,
    SpawnOptions,
    Syscalls,
    raise_if_failed,
    text_of,
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was asked for on the command line."""

    spawn: SpawnOptions = field(default_factory=SpawnOptions)
    system: str | None = None
    device_pages: int | None = None
    kv_dtype: str | None = None
    weights: str | None = None
    policy: str | None = None
    json: bool = False
    quiet: bool = False
    socket: str | None = None

    @property
    def raw(self) -> bool:
        return bool(self.spawn.get("raw", False))


def split_words(words: Sequence[str]) -> tuple[str, str | None]:
    """Model and prompt out of `[MODEL] [PROMPT]`. One word alone is a prompt unless it names a
    model. The prompt "-", and no prompt without a terminal, read standard input."""
    match list(words):
        case []:
            model, prompt = DEFAULT_MODEL, None
        case [word] if names_model(word):
            model, prompt = word, None
        case [word]:
            model, prompt = DEFAULT_MODEL, word
        case [model, prompt]:
            pass
        case _:
            raise UsageError(
                f"expected [MODEL] PROMPT, got {len(words)} arguments; quote the prompt"
            )
    try:
        if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
            prompt = sys.stdin.read().strip()
            if not prompt:
                raise UsageError("no prompt: give one as an argument or on standard input")
        if prompt is not None and not prompt.strip():
            raise UsageError("the prompt is empty")
        (prompt or "").encode()
    except UnicodeError:
        raise UsageError("the prompt is no text: it must be UTF-8") from None
    return model, prompt


def names_model(word: str) -> bool:
    """A known name, a path that exists, or what is spelled like a model file."""
    from tokenix.models.registry import PACKAGED

    if word in PACKAGED or word.endswith(".gguf"):
        return True
    # Nothing, or longer than any path: a prompt. `exists` would say yes, or raise.
    return 0 < len(os.fsencode(word)) < 4096 and "\0" not in word and _exists(word)


def _exists(word: str) -> bool:
    try:
        return Path(word).expanduser().exists()
    except (OSError, RuntimeError):
        return False


def run(words: Sequence[str], options: RunOptions) -> int:
    """The command. Exit code."""
    model, prompt = split_words(words)
    if options.system is not None and options.raw:
        raise UsageError("--system needs the chat template, which --raw turns off")
    if prompt is None and (options.json or not sys.stdout.isatty()):
        raise UsageError("no prompt: an interactive chat needs a terminal and has no --json")
    began_s = time.monotonic()
    named = model if model in words else None
    with open_machine(named, options) as k:
        load_s = time.monotonic() - began_s
        if prompt is None:
            return _converse(k, options)
        return answer(k, k.model().name, prompt, options, load_s)


def converse(model: str | None, options: RunOptions) -> int:
    """`tokenix chat`. Exit code."""
    if options.system is not None and options.raw:
        raise UsageError("--system needs the chat template, which --raw turns off")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("a chat needs a terminal; tokenix run answers one prompt without")
    with open_machine(model, options) as k:
        return _converse(k, options)


def _converse(k: Syscalls, options: RunOptions) -> int:
    from tokenix.cli.chat import Chat

    return Chat(k, k.model().name, options).run()


def answer(k: Syscalls, model: str, prompt: str, options: RunOptions, load_s: float) -> int:
    """Generate one answer, as text while it comes or as one JSON object at the end. OSError, behind
    what there is of it, if it is not complete."""
    pid = k.spawn(messages_for(prompt, options), **options.spawn)
    collected: list[Output] = []
    pieces: list[str] = []
    while True:
        result = k.read(pid)
        collected += result.outputs
        pieces.append(text_of(result))
        if not options.json:
            stdout.write(pieces[-1])
        if result.eof:
            break
    usage = k.wait(pid).rusage
    if options.json:
        stdout.write(json.dumps(as_json(model, "".join(pieces), collected, result, usage, load_s)))
        stdout.write("\n")
    else:
        if not "".join(pieces).endswith("\n"):
            stdout.write("\n")
        if not options.quiet and usage.ttft_s is not None:
            show_timings([output.time_s for output in collected], usage.ttft_s)
    raise_if_failed(pid, result)
    return OK


def messages_for(prompt: str, options: RunOptions) -> Prompt:
    """The prompt as `spawn` takes it."""
    if options.system is None:
        return prompt
    return [{"role": "system", "content": options.system}, {"role": "user", "content": prompt}]


def as_json(
    model: str,
    text: str,
    outputs: Sequence[Output],
    last: ReadResult,
    usage: Rusage,
    load_s: float,
) -> Mapping[str, object]:
    """What `--json` prints."""
    assert last.reason is not None
    return {
        "model": model,
        "text": text,
        "tokens": [output.token for output in outputs],
        "finish_reason": last.reason.value,
        "timings": {
            "load_s": round(load_s, 4),
            "queue_s": round(usage.queue_s, 4),
            "ttft_s": None if usage.ttft_s is None else round(usage.ttft_s, 4),
            "prefill_s": round(usage.prefill_s, 4),
            "decode_s": round(usage.decode_s, 4),
            "paused_s": round(usage.paused_s, 4),
            "total_s": round(usage.total_s, 4),
            "tokens_per_s": round(decode_rate(usage), 2),
        },
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "preemptions": usage.preemptions,
        },
    }


def decode_rate(usage: Rusage) -> float:
    """Output tokens per second, from the first to the last."""
    if usage.ttft_s is None or usage.output_tokens < 2:
        return 0.0
    return (usage.output_tokens - 1) / max(usage.total_s - usage.ttft_s, 1e-9)


def show_timings(times_s: Sequence[float], ttft_s: float) -> None:
    """One dim line on stderr, where somebody sees it. `times_s`: delivery of each token."""
    if not sys.stderr.isatty() or len(times_s) < 2:
        return
    rate = (len(times_s) - 1) / max(times_s[-1] - times_s[0], 1e-9)
    line = f"{len(times_s)} tokens, the first after {ttft_s:.2f} s, then {rate:.1f} tokens/s"
    dim, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
    print(f"{dim}{line}{plain}", file=sys.stderr, flush=True)


def stop(k: Syscalls, pid: Pid) -> None:
    """End a process that may have ended already, and forget it."""
    try:
        k.kill(pid, Signal.TERM)
        k.wait(pid)
    except (ProcessLookupError, ChildProcessError):
        return
