"""The commands and their options. Each imports what it needs when it runs."""

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from cyclopts import App, CycloptsError, Parameter

import tokenix
from tokenix.cli.bench import bench
from tokenix.cli.benchattention import attention as bench_attention
from tokenix.cli.benchswap import swap as bench_swap
from tokenix.cli.kvquality import kv_quality
from tokenix.cli.sim import sim
from tokenix.cli.status import OK, UsageError
from tokenix.syscalls.choices import KV_KINDS

app = App(
    name="tokenix",
    help="An operating-system kernel for LLM serving: requests are processes, KV pages are memory.",
    version=tokenix.__version__,
    version_flags=["--version", "-V"],
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
    suppress_keyboard_interrupt=False,
)

LONE_HYPHEN = "\0-"
"""Stands for the word "-", which the parser would take for an option. No argument holds a NUL."""

Word = TypeVar("Word", str, str | None)
Json = Annotated[bool, Parameter(name="--json", help="Print JSON.")]

app.command(sim)
app.command(bench)
bench.command(kv_quality, name="kv-quality")
bench.command(bench_swap, name="swap")
bench.command(bench_attention, name="attention")


@app.command(usage="tokenix run [OPTIONS] [MODEL] [PROMPT]")
def run(
    *words: Annotated[
        str, Parameter(help='Model (name or path; default smollm2) and prompt; "-" reads stdin.')
    ],
    max_tokens: Annotated[int | None, Parameter(help="Bound of an answer, in tokens.")] = None,
    temperature: Annotated[float | None, Parameter(help="0 (default) is greedy.")] = None,
    top_p: Annotated[float | None, Parameter(help="Sample from this probability mass.")] = None,
    top_k: Annotated[int | None, Parameter(help="Sample from so many tokens; 0 is all.")] = None,
    seed: Annotated[int | None, Parameter(help="Same seed, same answer.")] = None,
    stop: Annotated[
        list[str] | None, Parameter(help="End before this text; may be repeated.")
    ] = None,
    raw: Annotated[bool, Parameter(help="Continue the text; no chat template.")] = False,
    system: Annotated[str | None, Parameter(help="System message of the chat.")] = None,
    device_pages: Annotated[int | None, Parameter(help="KV pages on the device.")] = None,
    kv_dtype: Annotated[
        str, Parameter(help=f"Format of keys and values: {', '.join(KV_KINDS)}.")
    ] = "f16",
    policy: Annotated[str, Parameter(help="progress, fcfs or retract.")] = "progress",
    json: Annotated[bool, Parameter(help="Print one JSON object instead of text.")] = False,
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], help="Only the answer.")] = False,
) -> int:
    """Answer a prompt, or chat. Without a prompt on a terminal: a chat; otherwise stdin is read."""
    from tokenix.cli.answer import RunOptions
    from tokenix.cli.answer import run as answer

    words, (system,) = _as_typed(words), _as_typed((system,))
    stop = None if stop is None else list(_as_typed(stop))
    given = {
        "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k,
        "seed": seed, "stop": stop, "raw": raw or None,
    }  # fmt: skip
    spawn: Any = {name: value for name, value in given.items() if value is not None}
    options = RunOptions(spawn, system, device_pages, kv_dtype, policy, json, quiet)
    return answer(words, options)


@app.command(name="list")
def list_command(*, json: Json = False) -> int:
    """List the models that have a name."""
    from tokenix.cli.models import list_models

    return list_models(json)


@app.command
def demo(
    *,
    policy: Annotated[
        list[str] | None, Parameter(help="fcfs, retract, progress; may be repeated.")
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of the arrivals.")] = 1,
    quick: Annotated[bool, Parameter(help="A smaller load, for a first look.")] = False,
    model: Annotated[str, Parameter(help="Model to run it on.")] = "smollm2",
    json: Json = False,
) -> int:
    """Show what the scheduler does: the same load on the same model under three policies."""
    from tokenix.cli.demo import demo as show

    return show(model, tuple(policy or ()), seed, quick, json)


def _as_typed(words: Iterable[Word]) -> tuple[Word, ...]:
    return tuple("-" if word == LONE_HYPHEN else word for word in words)


def dispatch(tokens: list[str]) -> int:
    """Run the command that the words of a command line name. Exit code. UsageError."""
    if tokens[:1] == ["run"]:
        tokens = [LONE_HYPHEN if token == "-" else token for token in tokens]
    try:
        result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as problem:
        problem.verbose = False
        raise UsageError(f"{problem} (see tokenix --help)") from None
    return result if isinstance(result, int) else OK
