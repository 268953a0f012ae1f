"""Tools: which the model is told of, how a call is forced, and how calls are found in its output.

A call is written `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form that most
open models have learnt. A grammar forces it where the client does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tokenix.gateway.bodies import ChatBody, NamedTool, Tool, tool_specs
from tokenix.gateway.config import Limits
from tokenix.gateway.errors import invalid

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Choice:
    """What became of tools and tool_choice."""

    offered: tuple[dict[str, Any], ...] = ()
    """What the model is told of."""
    grammar: dict[str, Any] | None = None
    """Forces a call."""
    parallel: bool = True


def read_choice(body: ChatBody, limits: Limits) -> Choice:
    """ApiError 400."""
    given, wanted = body.tools or [], body.tool_choice
    if not given:
        if wanted not in (None, "none", "auto"):
            raise invalid("tool_choice needs tools", "tool_choice")
        return Choice()
    names = [tool.function.name for tool in given]
    if len(set(names)) < len(names):
        raise invalid("two tools have the same name", "tools")
    size = len(msgspec.json.encode(tool_specs(given)))
    if size > limits.schema_bytes:
        raise invalid(
            f"tools have {size} bytes, at most {limits.schema_bytes} are allowed", "tools"
        )
    if wanted == "none":
        return Choice()
    parallel = body.parallel_tool_calls is not False
    offered = tuple(tool_specs(given))
    forced = None
    if wanted == "required":
        forced = given
    elif isinstance(wanted, NamedTool):
        forced = [tool for tool in given if tool.function.name == wanted.function.name]
        if not forced:
            raise invalid(f"tool_choice: there is no tool {wanted.function.name!r}", "tool_choice")
        parallel = False
    if forced is None:
        return Choice(offered, parallel=parallel)
    return Choice(offered, {"lark": _grammar(forced, parallel)}, parallel)


def _grammar(tools: list[Tool], parallel: bool) -> str:
    schemas = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    text = msgspec.json.encode(schema).decode()
    more = "+" if parallel else ""
    return f'start: call{more}\ncall: "{OPEN}" %json {text} "{CLOSE}"\n'


class Call(msgspec.Struct, frozen=True):
    """A call as the model has written it."""

    name: str
    arguments: dict[str, Any]


_DECODER = msgspec.json.Decoder(Call)


class CallFinder:
    """Splits output into text and calls, as it comes.

    Text is held back only while it may be the beginning of a tag; what is between tags until it is
    complete. What is no call after all is text.
    """

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self.calls = 0

    def push(self, text: str) -> Iterator[str | Call]:
        """What is certain with some more output."""
        self._held += text
        while self._held:
            if self._inside:
                written, tag, rest = self._held.partition(CLOSE)
                if not tag:
                    return
                self._held, self._inside = rest, False
                yield self._read(written, CLOSE)
                continue
            before, tag, rest = self._held.partition(OPEN)
            if tag:
                self._held, self._inside = rest, True
                if before.strip() or (before and not self.calls):
                    yield before
                continue
            keep = _overlap(self._held)
            certain = self._held[: len(self._held) - keep]
            if self.calls and not certain.strip():
                return  # blanks between calls
            self._held = self._held[len(certain) :]
            if certain:
                yield certain
            return

    def flush(self) -> Iterator[str | Call]:
        """The end of the output."""
        held, self._held = self._held, ""
        if self._inside:
            self._inside = False
            yield self._read(held, "")
        elif held.strip() or (held and not self.calls):
            yield held

    def _read(self, written: str, tag: str) -> str | Call:
        try:
            call = _DECODER.decode(written.strip().encode())
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return f"{OPEN}{written}{tag}"
        self.calls += 1
        return call


def _overlap(text: str) -> int:
    """Characters at the end of `text` that may begin a tag."""
    for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-size:]):
            return size
    return 0
