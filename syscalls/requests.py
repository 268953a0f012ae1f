"""From what Python callers write to the kernel's requests: text to tokens, words to enums, checks.

Used by the blocking (`inproc.py`) and the async (`aio.py`) interface alike.
"""

import errno
import math
import operator
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.calls import Asks, Signal, Spawn, Write, error
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.syscalls.bounds import check_count, check_text
from tokenix.syscalls.literal import Masks

if TYPE_CHECKING:
    from tokenix.models.grammar import Grammar
    from tokenix.models.image import ProgramImage

Answer = TypeVar("Answer")

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, tokens, or chat messages ({"role": ..., "content": ...})."""


class SpawnOptions(TypedDict, total=False):
    """Keyword arguments of `spawn`. Everything is optional."""

    max_tokens: int
    """Bound of the output; default 512 or what the context and the pool have room for."""
    min_tokens: int
    temperature: float
    """0 (default): greedy."""
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    """Same seed, same output, whatever runs beside it. Default: a random one."""
    logprobs: int
    """Also report the log probability of each token, and those of the n most likely ones."""
    logit_bias: Mapping[int, float]
    grammar: Mapping[str, Any]
    """Of what form the output is, in every turn: {"json_schema": {...}}, {"json_object": True},
    {"regex": "..."}, {"lark": "..."} or {"choice": [...]} (`models/grammar_source.py`). It ends
    where the grammar ends, also with `ignore_eos`; with `min_tokens`, not before the grammar has
    to."""
    stop: str | Sequence[str]
    """End before any of these strings."""
    stop_tokens: Sequence[int]
    ignore_eos: bool
    qos: str
    """interactive, stream (default), batch or idle."""
    reader: str
    """How the output is read: paced (default), measured, batch or hidden."""
    tokens_per_s: float
    """Pace of the reader; default 10."""
    nice: int
    deadline_s: float
    max_pages: int
    keep_open: bool
    """Wait for `write` after each turn instead of exiting."""
    raw: bool
    """Text is continued as it is; by default it is put to the model as a user's chat message."""
    tools: Sequence[Mapping[str, Any]]
    """Of a dialogue: the functions that the template tells the model of, as OpenAI has them."""
    template: Mapping[str, Any]
    """Of a dialogue: further variables of the chat template (enable_thinking and the like)."""
    name: str
    detach: bool
    """Over a socket: it goes on when the connection ends, and any of its tenant may read it."""


MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
NO_PROMPT = "a prompt is text, a list of token ids, or a list of messages"

_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logprobs",
)  # fmt: skip
_LIMITS = ("max_tokens", "min_tokens", "deadline_s", "max_pages", "nice")
_INTEGERS = {"top_k", "logprobs", "max_tokens", "min_tokens", "max_pages", "nice", "seed"}


def make_spawn(image: "ProgramImage", prompt: Prompt, options: SpawnOptions) -> Spawn:
    """The request for `spawn(prompt, **options)`. OSError EINVAL for what makes no sense."""
    from tokenix.models.text import TextStream

    given: dict[str, Any] = dict(options)
    for name in given:
        if name not in SpawnOptions.__annotations__:
            known = ", ".join(SpawnOptions.__annotations__)
            raise invalid(f"spawn has no option {name!r}; there are {known}")
    sampling, limits = _numbers(given, _SAMPLING), _numbers(given, _LIMITS)
    seed = _numbers(given, ("seed",)).get("seed", _any_seed(sampling.get("temperature", 0.0)))
    stops = check_stops(given.get("stop", ()))
    return Spawn(
        tokens=encode_prompt(image, prompt, given),
        sampling=SamplingParams(
            **sampling,
            seed=int(seed),
            logit_bias=_logit_bias(given.get("logit_bias", {})),
        ),
        stop_tokens=_whole_numbers("stop_tokens", given.get("stop_tokens", ())),
        ignore_eos=bool(given.get("ignore_eos", False)),
        qos=_qos(given.get("qos", "stream")),
        reader=_reader(given.get("reader"), given.get("tokens_per_s", 10.0), given.get("qos")),
        keep_open=bool(given.get("keep_open", False)),
        name=str(given.get("name") or _title(prompt)),
        text=TextStream(image.tokenizer, stops),
        grammar=_grammar(image, given.get("grammar")),
        **limits,
    )


def encode_prompt(
    image: "ProgramImage", prompt: Prompt, options: Mapping[str, Any]
) -> tuple[int, ...]:
    """`encode`, with those of SpawnOptions that shape a prompt."""
    tools, template = options.get("tools"), options.get("template")
    if tools is not None and not (
        isinstance(tools, Sequence) and all(isinstance(tool, Mapping) for tool in tools)
    ):
        raise invalid(f"tools must be a list of objects, not {tools!r}")
    if template is not None and not (
        isinstance(template, Mapping) and all(isinstance(name, str) for name in template)
    ):
        raise invalid(f"template must map names to values, not {template!r}")
    return encode(image, prompt, bool(options.get("raw", False)), tools, template)


def encode(
    image: "ProgramImage",
    prompt: Prompt,
    raw: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """The tokens of a prompt: text (as a chat message unless `raw`), messages, or tokens."""
    if not isinstance(prompt, str):
        prompt = _items(prompt)
        if not all(isinstance(item, Mapping) for item in prompt):
            return _token_ids(image, prompt)
        items = cast("Sequence[Mapping[str, str]]", prompt)
        if image.chat is None:
            raise invalid(f"model {image.name} has no chat template; give text or tokens")
        if not items:
            raise invalid("the prompt is empty; give text, messages or tokens")
        check_count(image, len(items), "messages")
        masks = Masks(image.tokenizer)
        return _tokenize_masked(image, masks, _render(image, masks, items, tools, template))
    if not prompt:
        raise invalid("the prompt is empty; give text, messages or tokens")
    if raw or image.chat is None:
        return _tokenize(image, prompt, add_special=True, parse_special=False)
    check_text(image, prompt)
    masks = Masks(image.tokenizer)
    return _tokenize_masked(
        image, masks, _render(image, masks, [{"role": "user", "content": prompt}])
    )


def make_write(
    image: "ProgramImage", pid: Pid, data: str | Sequence[int], eof: bool, raw: bool
) -> Write:
    """The request for `write`: input for a further turn of a process that is kept open.

    Text becomes a user's chat message, unless `raw` or the model has no chat template.
    """
    if not isinstance(data, str):
        return Write(pid, _token_ids(image, _items(data)), eof=eof)
    check_text(image, data)
    if raw or image.chat is None or not data:
        return Write(pid, _tokenize(image, data, parse_special=False), eof=eof)
    # What the template writes behind an answer: end of turn, the new message, the next answer's
    # beginning. The end of turn is usually generated already.
    answer = "\x01"
    dialogue = [("user", "?"), ("assistant", answer), ("user", data)]
    masks = Masks(image.tokenizer)
    text = _render(image, masks, [{"role": role, "content": said} for role, said in dialogue])
    rest = text.partition(answer)[2]
    end = next((t for t in _stop_texts(image) if rest.startswith(t)), "")
    return Write(
        pid,
        _tokenize_masked(image, masks, rest.removeprefix(end)),
        separator=_tokenize(image, end) if end else (),
        eof=eof,
    )


def _tokenize(
    image: "ProgramImage", text: str, add_special: bool = False, parse_special: bool = True
) -> tuple[int, ...]:
    check_text(image, text)
    return tuple(image.tokenizer.encode(text, add_special, parse_special))


def _tokenize_masked(image: "ProgramImage", masks: Masks, text: str) -> tuple[int, ...]:
    check_text(image, text)
    return tuple(masks.encode(text))


def _render(
    image: "ProgramImage",
    masks: Masks,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    template: Mapping[str, Any] | None = None,
) -> str:
    """A dialogue as the template writes it, with the names of special tokens hidden by `masks`."""
    assert image.chat is not None
    own = {"messages", "tools", "add_generation_prompt"}.intersection(template or ())
    if own:
        raise invalid(f"template cannot set {min(own)}")
    try:
        shown, told, more = masks.hide((messages, tools, template or {}))
        return image.chat.render(shown, tools=told, **more)
    except ValueError as why:
        raise invalid(str(why)) from None
    except RecursionError:
        raise invalid("the messages or tools are nested too deeply; nest them less") from None


def _stop_texts(image: "ProgramImage") -> list[str]:
    return [image.tokenizer.token_name(token) for token in image.config.eos_tokens]


def check_stops(stops: str | Sequence[str]) -> tuple[str, ...]:
    """EINVAL for too many, too long or empty stop strings."""
    stops = (stops,) if isinstance(stops, str) else stops
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) for stop in stops):
        raise invalid(f"stop must be a string or a list of strings, not {stops!r}")
    if len(stops) > MAX_STOP_STRINGS:
        raise invalid(f"at most {MAX_STOP_STRINGS} stop strings, not {len(stops)}")
    if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise invalid(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """EINVAL for what is no list of seeds."""
    return _whole_numbers("seeds", seeds)


def check_tokens(tokens: Sequence[int]) -> tuple[int, ...]:
    """EINVAL for what is no list of token ids."""
    return _whole_numbers("tokens", tokens)


def check_pids(pids: Sequence[int]) -> tuple[Pid, ...]:
    """EINVAL for what is no list of pids."""
    return tuple(map(Pid, _whole_numbers("pids", pids)))


def check_timeout(timeout_s: float | None) -> float | None:
    """A limit in seconds that a wait can have; None for no limit. EINVAL."""
    if timeout_s is None:
        return None
    limit_s = _number("timeout_s", timeout_s)
    return None if limit_s > threading.TIMEOUT_MAX else limit_s


def check(request: Asks[Answer]) -> Asks[Answer]:
    """The request, with a plain value in each field that wants a number or a name. EINVAL.

    Callers of a Python API may pass anything; the kernel computes with what it is given.
    """
    changed: dict[str, object] = {}
    for name, kinds in _plain_fields(cast("Any", type(request))).items():
        value = getattr(request, name)
        if type(value) in kinds:
            continue
        if int in kinds:
            changed[name] = _whole(name, value)
        elif float in kinds:
            changed[name] = _number(name, value)
        else:
            raise invalid(f"{name} must be a string, not {value!r}")
    return msgspec.structs.replace(request, **changed) if changed else request


@cache
def _plain_fields(request: type) -> dict[str, tuple[object, ...]]:
    """The fields of a class of requests that hold numbers and strings, and what they may be."""
    found: dict[str, tuple[object, ...]] = {}
    for name, hint in get_type_hints(request).items():
        kinds = tuple(int if kind is Pid else kind for kind in get_args(hint) or (hint,))
        plain = get_origin(hint) in (None, UnionType, Union)
        if plain and {int, float, str}.intersection(kinds):
            found[name] = kinds
    return found


def check_tenant(name: str) -> str:
    """EINVAL for what names no tenant."""
    if not isinstance(name, str) or not name:
        raise invalid(f"a tenant is named by a string that is not empty, not {name!r}")
    return name


def check_signal(signal: int) -> Signal:
    """EINVAL for a number that is no signal here."""
    try:
        return Signal(signal)
    except ValueError:
        names = ", ".join(f"SIG{s.name}={s.value}" for s in Signal)
        raise invalid(f"no signal {signal!r}; there are {names}") from None


def invalid(message: str) -> OSError:
    return error(errno.EINVAL, message).as_os_error()


def _numbers(given: Mapping[str, object], names: Sequence[str]) -> dict[str, Any]:
    return {name: _number(name, given[name]) for name in names if name in given}


def _number(name: str, value: object) -> float | int:
    if name in _INTEGERS:
        return _whole(name, value)
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = float(value)
            if not math.isnan(number):
                return number
    except OverflowError:
        raise invalid(f"{name} is too large") from None
    raise invalid(f"{name} must be a number, not {value!r}")


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise invalid(f"{name} must be a whole number, not {value!r}") from None


def _whole_numbers(name: str, values: object) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)  # type: ignore[attr-defined]
    except TypeError:
        raise invalid(f"{name} must be a list of whole numbers, not {values!r}") from None


def _logit_bias(bias: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(bias, Mapping):
        raise invalid(f"logit_bias must map token ids to numbers, not {bias!r}")
    return tuple(
        (_whole("a token of logit_bias", token), float(_number("a value of logit_bias", value)))
        for token, value in bias.items()
    )


def _grammar(image: "ProgramImage", given: object) -> "Grammar | None":
    if given is None:
        return None
    from tokenix.models.grammar_source import read_source

    return image.grammars.compile(read_source(given))


def _items(prompt: object) -> list[Any]:
    """What a prompt that is not text consists of."""
    if isinstance(prompt, (bytes, bytearray, Mapping)) or not isinstance(prompt, Iterable):
        raise invalid(NO_PROMPT)
    return list(prompt)


def _token_ids(image: "ProgramImage", items: Sequence[object]) -> tuple[int, ...]:
    check_count(image, len(items), "tokens")
    try:
        return tuple(operator.index(item) for item in items)  # type: ignore[arg-type]
    except TypeError:
        raise invalid(NO_PROMPT) from None


def _any_seed(temperature: float) -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1 if temperature > 0 else 0


def _qos(name: str) -> Qos:
    try:
        return Qos[str(name).upper()]
    except KeyError:
        names = ", ".join(qos.name.lower() for qos in Qos)
        raise invalid(f"no qos {name!r}; there are {names}") from None


def _reader(kind: str | None, rate: float, qos: str | None) -> Reader:
    if kind is None:
        kind = "batch" if qos in ("batch", "idle") else "paced"
    try:
        return Reader(ReaderKind(kind), float(_number("tokens_per_s", rate)))
    except ValueError:
        kinds = ", ".join(reader.value for reader in ReaderKind)
        raise invalid(f"no reader {kind!r}; there are {kinds}") from None


def _title(prompt: Prompt) -> str:
    """The first words of the prompt, for `ps`."""
    if isinstance(prompt, str):
        return " ".join(prompt.split(maxsplit=6)[:6])[:48]
    items = list(prompt)
    last = items[-1] if items else ""
    return _title(str(last.get("content", ""))) if isinstance(last, Mapping) else "[tokens]"
