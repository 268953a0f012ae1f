"""`tokenix run` and `tokenix chat`: their options."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from tokenix.cli.options import Json, Socket
from tokenix.syscalls.choices import KV_KINDS, WEIGHT_KINDS

if TYPE_CHECKING:
    from tokenix.cli.answer import RunOptions

LONE_HYPHEN = "\0-"
"""Stands for the word "-", which the parser would take for an option. No argument holds a NUL."""

Word = TypeVar("Word", str, str | None)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Asking:
    """How an answer is made, and where."""

    max_tokens: Annotated[int | None, Parameter(help="Bound of an answer, in tokens.")] = None
    temperature: Annotated[float | None, Parameter(help="0 (default) is greedy.")] = None
    top_p: Annotated[float | None, Parameter(help="Sample from this probability mass.")] = None
    top_k: Annotated[int | None, Parameter(help="Sample from so many tokens; 0 is all.")] = None
    seed: Annotated[int | None, Parameter(help="Same seed, same answer.")] = None
    stop: Annotated[list[str] | None, Parameter(help="End before this text; may be repeated.")] = (
        None
    )
    raw: Annotated[bool, Parameter(help="Continue the text; no chat template.")] = False
    system: Annotated[str | None, Parameter(help="System message of the chat.")] = None
    device_pages: Annotated[
        int | None, Parameter(help="KV pages on the device of a machine of its own.")
    ] = None
    kv_dtype: Annotated[
        str | None,
        Parameter(help=f"Its format of keys and values: {', '.join(KV_KINDS)}; default f16."),
    ] = None
    weights: Annotated[
        str | None,
        Parameter(help=f"How its weights are kept: {', '.join(WEIGHT_KINDS)}; default auto."),
    ] = None
    policy: Annotated[
        str | None, Parameter(help="Its policy: progress (default), fcfs or retract.")
    ] = None
    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"], help="Only the answer.")] = False
    socket: Socket = None


DEFAULT = Asking()


def run(
    *words: Annotated[
        str, Parameter(help='Model (name or path; default smollm2) and prompt; "-" reads stdin.')
    ],
    asking: Asking = DEFAULT,
    json: Json = False,
) -> int:
    """Answer a prompt, or chat. Without a prompt on a terminal: a chat; otherwise stdin is read.

    A daemon that serves the model answers; if there is none, the model is loaded here.
    """
    from tokenix.cli.answer import run as answer

    return answer(_as_typed(words), _options(asking, json))


def chat(
    model: Annotated[str | None, Parameter(help="Name or path; default smollm2.")] = None,
    *,
    asking: Asking = DEFAULT,
) -> int:
    """Have a conversation on a terminal; the model keeps it in memory."""
    from tokenix.cli.answer import converse

    return converse(model, _options(asking, False))


def spell_out(tokens: list[str]) -> list[str]:
    """The words of a command line, for the parser: the word "-" is spelled otherwise."""
    return [LONE_HYPHEN if token == "-" else token for token in tokens]


def _options(asking: Asking, json: bool) -> "RunOptions":
    from tokenix.cli.answer import RunOptions

    (system,) = _as_typed((asking.system,))
    stop = None if asking.stop is None else list(_as_typed(asking.stop))
    given = {
        "max_tokens": asking.max_tokens, "temperature": asking.temperature,
        "top_p": asking.top_p, "top_k": asking.top_k, "seed": asking.seed, "stop": stop,
        "raw": asking.raw or None,
    }  # fmt: skip
    spawn: Any = {name: value for name, value in given.items() if value is not None}
    return RunOptions(
        spawn, system, asking.device_pages, asking.kv_dtype, asking.weights, asking.policy, json,
        asking.quiet, asking.socket,
    )  # fmt: skip


def _as_typed(words: Iterable[Word]) -> tuple[Word, ...]:
    return tuple("-" if word == LONE_HYPHEN else word for word in words)
