"""Chat templates: a list of messages to the text that the model was trained on.

Templates come with models from anywhere, so they run in Jinja's immutable sandbox, and their
output is bounded.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_OUTPUT_CHARS = 16 * 1024 * 1024

Message = Mapping[str, Any]


class ChatTemplate:
    """A template of a model. Shared by all threads; never changes after it is compiled."""

    def __init__(
        self,
        source: str,
        special: Mapping[str, str] | None = None,
        *,
        named: Mapping[str, str] | None = None,
        max_output_chars: int = MAX_OUTPUT_CHARS,
    ) -> None:
        """`special` are token names that templates refer to ("bos_token": "<s>"); `named` are
        further templates, of which "tool_use" is taken when there are tools. Nothing is compiled
        before the first `render`, so a broken template does not keep a model from loading."""
        self.source = source
        self.special = dict(special or {})
        self.named = dict(named or {})
        self.max_output_chars = max_output_chars
        self._compiled: dict[str, Template] = {}

    @property
    def knows_tools(self) -> bool:
        """Whether what it writes can tell the model of tools."""
        return "tool_use" in self.named or "tools" in self.source

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt text of a conversation; special tokens are written by name in it.

        Each message is a mapping with at least a "role". `extra` are variables of the template
        (enable_thinking and the like). Errors: ValueError, in one line, for messages that are not
        messages, a template that fails or refuses them, and output that is too long.
        """
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ValueError(f"message {i} has no role; give {{'role': ..., 'content': ...}}")
        source = self.named.get("tool_use", self.source) if tools else self.source
        variables: dict[str, Any] = {
            **self.special,
            **extra,
            "messages": [dict(message) for message in messages],
            "tools": [dict(tool) for tool in tools] if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._bounded(self._template(source), variables)
        except TemplateError as error:
            raise ValueError(_one_line(f"chat template: {error}")) from None
        except Exception as error:  # a template is foreign code, it may raise anything
            raise ValueError(
                _one_line(f"chat template failed: {type(error).__name__}: {error}")
            ) from None

    def _template(self, source: str) -> Template:
        template = self._compiled.get(source)
        if template is None:
            template = self._compiled[source] = _environment().from_string(source)
        return template

    def _bounded(self, template: Template, variables: dict[str, Any]) -> str:
        pieces, length = [], 0
        for piece in template.generate(variables):
            length += len(piece)
            if length > self.max_output_chars:
                raise TemplateError(f"wrote more than {self.max_output_chars} characters")
            pieces.append(piece)
        return "".join(pieces)


class _GenerationTag(Extension):
    """{% generation %} marks what the assistant wrote, for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """A namespace without underscore names, which would reach into the interpreter."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also refuses to make a huge value by one operator ("x" * 10**9)."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for value, times in ((left, right), (right, left)):
            if (
                operator == "*"
                and isinstance(value, str | list | tuple)
                and isinstance(times, int)
                and len(value) * times > MAX_OUTPUT_CHARS
            ):
                raise SecurityError(f"repeating a value {times} times makes it too long")
        if operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise SecurityError("a power is too large")
        return super().call_binop(context, operator, left, right)


def _environment() -> ImmutableSandboxedEnvironment:
    """The same language that `transformers` gives its templates."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _PlainNamespace,
    }
    environment.globals.update(functions)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _one_line(text: str) -> str:
    return " ".join(text.split())
