"""What a caller may ask of an output's form, brought into one of three texts, and what is refused
before anything is compiled because no limit of the compiler would stop it.

    {"json_schema": {...}}          a value that the schema describes
    {"json_object": True}           any JSON object
    {"regex": "[0-9]+ apples"}      the whole output matches
    {"lark": 'start: "<a>" %json {...} "</a>"'}    a grammar, JSON schemas in it
    {"choice": ["yes", "no"]}       one of these
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from tokenix.models.image_error import EINVAL, image_error

KINDS: Final = ("json_schema", "json_object", "regex", "lark", "choice")
MAX_BYTES: Final = 128 * 1024
MAX_NESTING: Final = 100
"""Of a schema as JSON."""
MAX_MULTIPLE: Final = 10_000
"""Of multipleOf: an automaton has a state for each remainder."""
MAX_REPEATS: Final = 10_000
"""Of {m,n} inside {m,n}: the copies of what is innermost."""
JSON_RULES: Final = {
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}",
    "coerce_one_of": True,
}
"""Of every schema that does not say otherwise in "x-guidance". Small models would write blanks for
ever; oneOf is taken as anyOf."""

_PIECES = re.compile(r"\\.|\{(?P<count>\d*,?\d*)\}|(?P<name>[A-Za-z_]\w*)|.", re.DOTALL)
_TERMINALS = re.compile(r"^[ \t]*(_?[A-Z]\w*)[^:\n]*:", re.MULTILINE)
_LISTING = re.compile(r"\s+\d+ \| .*")
"""How the compiler shows the text of a grammar behind what it says of it."""
_EMBEDDED = re.compile(r"%json\s*")


class GrammarSource(msgspec.Struct, frozen=True, array_like=True):
    """A grammar as text. Equal ones mean the same."""

    kind: str
    """json_schema, regex or lark."""
    text: str


def read_source(given: object) -> GrammarSource:
    """The source that a caller means. OSError EINVAL."""
    if not isinstance(given, Mapping) or not all(isinstance(kind, str) for kind in given):
        _refuse(f"grammar must be a mapping such as {{'regex': '[0-9]+'}}, not {_clip(given)}")
    if len(given) != 1:
        said = " and ".join(sorted(given)) or "none"
        _refuse(f"a grammar has one kind, not {said}; there are {', '.join(KINDS)}")
    ((kind, value),) = given.items()
    match kind:
        case "json_schema":
            source = GrammarSource("json_schema", _schema_text(value))
        case "json_object":
            if value is not True:
                _refuse(f"json_object of a grammar must be true, not {_clip(value)}")
            source = GrammarSource("json_schema", _schema_text({"type": "object"}))
        case "regex":
            source = GrammarSource("regex", _text(kind, value))
            _check_repeats(source.text, "the regex")
        case "lark":
            source = GrammarSource("lark", _lark_text(_text(kind, value)))
        case "choice":
            source = GrammarSource("lark", _choice_text(value))
        case _:
            _refuse(f"a grammar has no kind {_clip(kind)}; there are {', '.join(KINDS)}")
    _check_size(len(source.text.encode()), source.kind)
    return source


def count_repeats(text: str, known: Callable[[str], int] = lambda name: 1) -> tuple[int, int]:
    """How many copies a compiler makes of what is innermost in {m,n}, and in {m,n} inside {m,n}: a
    single one is cheap. The text need not be a sound expression: what opens and closes groups is
    enough. `known`: copies of what is inside of a name."""
    groups, last, worst = [1], 1, 1
    for piece in _PIECES.finditer(text):
        char = piece[0][0]
        if piece["count"] is not None:
            least, _, most = piece["count"].partition(",")
            copies = last * max(int(number[:9]) for number in (least, most, "1") if number)
            worst = worst if last == 1 else max(worst, copies)
            last = copies
        elif char == "(":
            groups.append(1)
            last = 1
        elif char == ")":
            last = groups.pop()
            groups = groups or [1]
        else:
            last = known(piece[0]) if piece["name"] else 1
        groups[-1] = max(groups[-1], last)
    return max(groups), worst


def locate(source: GrammarSource, problem: str) -> str:
    """`problem`, as the compiler told it of a schema, in one line and with the place if it names a
    key or value that is found there."""
    problem = " ".join(problem.replace("<non-verbose/>", "").split())
    problem = _LISTING.sub("", problem)
    if len(problem) > 300:
        problem = problem[:300] + "..."
    if source.kind != "json_schema":
        return problem
    words = set(re.findall(r'"([^"]+)"', problem)) | {problem.rpartition(": ")[2]}
    for path, key, value in _walk(json.loads(source.text)):
        if key in words or (isinstance(value, str) and value in words):
            return f"{problem} (at {path})"
    return problem


def _check_size(size_bytes: int, kind: str) -> None:
    if size_bytes > MAX_BYTES:
        _refuse(f"the {kind} of a grammar has {size_bytes} bytes; the limit is {MAX_BYTES}")


def _schema_text(schema: object) -> str:
    if not isinstance(schema, Mapping):
        _refuse(f"json_schema of a grammar must be an object, not {_clip(schema)}")
    try:
        text = msgspec.json.encode(schema)
        _check_size(len(text), "json_schema")
        plain = json.loads(text)
        _check_schema(plain)
        plain["x-guidance"] = {**JSON_RULES, **plain.get("x-guidance", {})}
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, OverflowError) as why:
        _refuse(f"json_schema of a grammar is not JSON: {why}")
    except RecursionError:
        _refuse(f"the json_schema of a grammar is nested more than {MAX_NESTING} deep")


def _lark_text(text: str) -> str:
    """The same with the JSON in it checked, and ruled as other schemas."""
    pieces: list[str] = []
    done = 0
    for found in _EMBEDDED.finditer(text):
        if found.start() < done:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue  # the compiler says where
        if isinstance(schema, dict):
            pieces += [text[done : found.end()], _schema_text(schema)]
            done = end
    pieces.append(text[done:])
    _check_terminals(text)
    return "".join(pieces)


def _check_terminals(text: str) -> None:
    """Terminals are regexes that may name others."""
    begins = list(_TERMINALS.finditer(text))
    ends = [*(found.start() for found in begins), len(text)]
    bodies = {
        found[1]: text[found.end() : end] for found, end in zip(begins, ends[1:], strict=True)
    }
    counts: dict[str, int] = {}

    def count(name: str, depth: int = 0) -> int:
        if depth > MAX_NESTING:
            _refuse(f"the terminals of a grammar are nested more than {MAX_NESTING} deep")
        if name not in counts:
            counts[name] = 1  # of one that names itself, which the compiler refuses
            if name in bodies:
                body, known = bodies[name], lambda inner: count(inner, depth + 1)
                _check_repeats(body, f"terminal {name}", known)
                counts[name] = count_repeats(body, known)[0]
        return counts[name]

    for name in bodies:
        count(name)
    _check_repeats(text, "the grammar", counts.get)


def _check_repeats(
    text: str, where: str, known: Callable[[str], int | None] = lambda name: 1
) -> None:
    copies = count_repeats(text, lambda name: known(name) or 1)[1]
    if copies > MAX_REPEATS:
        _refuse(f"{where} repeats what is repeated, {copies} times; the limit is {MAX_REPEATS}")


def _choice_text(choices: object) -> str:
    if (
        isinstance(choices, (str, bytes))
        or not isinstance(choices, Sequence)
        or not all(isinstance(choice, str) for choice in choices)
    ):
        _refuse(f"choice of a grammar must be a list of strings, not {_clip(choices)}")
    if not choices:
        _refuse("choice of a grammar is empty; give at least one string")
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


def _text(kind: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        _refuse(f"{kind} of a grammar must be a text, not {_clip(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(f"{kind} of a grammar is not Unicode: it has a lone surrogate")
    return value


def _check_schema(schema: dict[str, Any]) -> None:
    for path, key, value in _walk(schema):
        if path.count("/") > MAX_NESTING:
            _refuse(f"the json_schema of a grammar is nested more than {MAX_NESTING} deep")
        if key == "multipleOf" and isinstance(value, (int, float)) and abs(value) > MAX_MULTIPLE:
            _refuse(f"multipleOf at {path} is {value}; the limit is {MAX_MULTIPLE}")
        if key == "pattern" and isinstance(value, str):
            _check_repeats(value, f"the pattern at {path}")
        if key == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                _check_repeats(pattern, f"a pattern at {path}")
        if key == "x-guidance" and not isinstance(value, dict):
            _refuse(f"x-guidance at {path} must be an object, not {_clip(value)}")


def _walk(schema: dict[str, Any]) -> Iterator[tuple[str, str, object]]:
    """Path, key and value of everything in it, in the order of the text."""
    todo: list[tuple[str, Any]] = [("#", schema)]
    while todo:
        path, value = todo.pop()
        inner: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            inner = [(str(key), item) for key, item in value.items()]
        elif isinstance(value, list):
            inner = [(str(i), item) for i, item in enumerate(value)]
        for key, item in inner:
            yield f"{path}/{key}", key, item
        todo += [(f"{path}/{key}", item) for key, item in reversed(inner)]


def _clip(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 60 else said[:60] + "..."


def _refuse(message: str) -> NoReturn:
    raise image_error(EINVAL, message)
