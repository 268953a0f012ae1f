"""Messages as clients send them, as chat templates expect them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tokenix.gateway.bodies import ChatMessage, ContentPart, ToolCall
from tokenix.gateway.config import Limits
from tokenix.gateway.errors import invalid

HOW_TO_CALL = """You may call functions. Their signatures, as JSON:
{tools}
To call one, answer with its name and arguments as JSON, between tags:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


def render(
    messages: Sequence[ChatMessage],
    limits: Limits,
    told: Sequence[Mapping[str, Any]],
    knows_tools: bool,
) -> list[dict[str, Any]]:
    """A list of messages for `spawn`. `told`: tools that a system message tells of; `knows_tools`:
    whether the template has a place for calls and their results. ApiError 400."""
    if len(messages) > limits.messages:
        raise invalid(f"at most {limits.messages} messages, not {len(messages)}", "messages")
    _check_results(messages)
    made = [_message(message, i, knows_tools) for i, message in enumerate(messages)]
    if sum(len(message["content"]) for message in made) > limits.prompt_chars:
        raise invalid(
            f"the messages are longer than {limits.prompt_chars} characters", "messages",
            "context_length_exceeded",
        )  # fmt: skip
    if told:
        lines = "\n".join(msgspec.json.encode(tool).decode() for tool in told)
        text = HOW_TO_CALL.format(tools=lines)
        if made[0]["role"] == "system":
            made[0]["content"] = f"{made[0]['content']}\n\n{text}"
        else:
            made.insert(0, {"role": "system", "content": text})
    return made


def _check_results(messages: Sequence[ChatMessage]) -> None:
    """ApiError 400 for what a tool is said to have given where nobody had called it."""
    called: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if message.role != "tool":
            calls = message.tool_calls if message.role == "assistant" else None
            called = {call.id for call in calls or ()}
        elif not called:
            raise invalid(
                f"{where}: role tool follows on a message of the assistant with tool_calls",
                f"{where}.role",
            )
        elif message.tool_call_id not in called:
            raise invalid(
                f"{where}.tool_call_id is of no call of the message before; there are "
                f"{', '.join(sorted(called))}",
                f"{where}.tool_call_id",
            )


def _message(message: ChatMessage, number: int, knows_tools: bool) -> dict[str, Any]:
    where = f"messages[{number}]"
    if message.content is None and message.role != "assistant":
        raise invalid(f"{where}: role {message.role} needs content", f"{where}.content")
    content = text_of(message.content, f"{where}.content")
    role = "system" if message.role == "developer" else message.role
    role = "tool" if role == "function" else role
    calls = [
        _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ())
    ]
    if role == "assistant" and calls and not knows_tools:
        written = (msgspec.json.encode(call["function"]).decode() for call in calls)
        tagged = "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)
        return {"role": role, "content": f"{content}\n{tagged}" if content else tagged}
    if role == "tool" and not knows_tools:
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    made: dict[str, Any] = {"role": role, "content": content}
    if calls and role == "assistant":
        made["tool_calls"] = calls
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


def text_of(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """The text of a message's content. ApiError 400 for parts that are not text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text") or part.text is None:
            raise invalid(
                f"{where}[{i}]: parts of type {part.type[:40]!r} are not supported, this model "
                "reads text only",
                f"{where}[{i}]",
            )
        texts.append(part.text)
    return "\n".join(texts)


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.function.arguments, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise invalid(
            f"{where}.function.arguments is not a JSON object", f"{where}.function.arguments"
        ) from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
