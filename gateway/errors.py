"""What goes wrong, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

No error says more than its reader may know: no path, no secret, no traceback.
"""

import errno
import math
import re
from collections.abc import Callable
from typing import Final

import msgspec

from tokenix.syscalls.types import ExitReason, ReadResult

INVALID: Final = "invalid_request_error"

MESSAGE_CHARS: Final = 600
"""Of a message, which may quote what its reader has sent."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """The error of an answer."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """An answer that is an error."""

    error: ErrorInfo


class ApiError(Exception):
    """A request is answered with this."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str = INVALID,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        close: bool = False,
    ) -> None:
        message = _quotable(message)
        super().__init__(message)
        self.status = status
        self.info = ErrorInfo(message, type, param, code)
        self.retry_after_s = retry_after_s
        self.close = close
        """Whether the connection is of no more use."""

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(self.info))

    @property
    def event(self) -> bytes:
        """As a server-sent event, after the first byte of a stream."""
        return b"data: " + self.body + b"\n\n"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        found = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(max(1, math.ceil(self.retry_after_s))).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        if self.close:
            found.append((b"connection", b"close"))
        return found


def _quotable(message: str) -> str:
    """One line of bounded length."""
    if len(message) > MESSAGE_CHARS:
        message = f"{message[: MESSAGE_CHARS - 100]} ... {message[-90:]}"
    if message.isprintable():
        return message
    return "".join(char if char.isprintable() else " " for char in message)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is at fault."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, retry_after_s: float = 2.0) -> ApiError:
    """503: there is no kernel to serve it now."""
    return ApiError(
        503, message, "server_error", code="service_unavailable", retry_after_s=retry_after_s
    )


def shutting_down() -> ApiError:
    """503: there will be no kernel for it."""
    return unavailable(
        "the server is shutting down and takes no new requests; try again when it is back", 5.0
    )


def internal() -> ApiError:
    """500: our fault; the log has what it was."""
    return ApiError(500, "the server failed to handle the request", "server_error", code="internal")


_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


def of_decoding(why: msgspec.MsgspecError) -> ApiError:
    """400 for a body that is not JSON, or not what was asked for; `param` is the JSON path."""
    text = str(why)
    if not isinstance(why, msgspec.ValidationError):
        return invalid(f"the body is not valid JSON: {text}")
    found = _PATH.search(text)
    param = found.group(1) if found is not None else ""
    missing = re.search("required field `([^`]*)`", text)
    if missing is not None:
        param = ".".join(part for part in (param, missing.group(1)) if part)
    plain = _PATH.sub("", text).replace("`", "'")
    return invalid(f"{param}: {plain}" if param else plain, param or None)


_GONE: Final = {
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE,
    errno.ENOTCONN, errno.ETIMEDOUT, errno.ENOENT, errno.EBADF,
}  # fmt: skip
"""The kernel cannot be reached."""

_FIELD: Final = re.compile(
    r"(?:a (?:value|token) of |a )?(messages|prompt|temperature|top_p|top_k|min_p|max_tokens"
    r"|min_tokens|presence_penalty|frequency_penalty|repetition_penalty|logit_bias|logprobs|stop|tools|seed)\b"
)

_FORM: Final = re.compile(r"\bof a grammar\b|(?:multipleOf|the pattern|a pattern|x-guidance) at ")


def of_kernel(why: OSError, prompt: str | None = None, form: str | None = None) -> ApiError:
    """The HTTP error for what the kernel says. `prompt` and `form` are the fields of the body that
    the prompt and the grammar came from."""
    message = why.strerror or "the kernel refused the request"
    retry_after_s: float = getattr(why, "retry_after_s", None) or 1.0
    match why.errno:
        case errno.EINVAL:
            found = _FIELD.match(message)
            if found is not None:
                return invalid(message, found.group(1))
            if _FORM.search(message):
                return invalid(message, form)
            return invalid(message, prompt if message.startswith("token ") else None)
        case errno.E2BIG:
            return invalid(message, prompt, "context_length_exceeded")
        case errno.EAGAIN:
            return ApiError(
                429, message, "rate_limit_error", code="rate_limit_exceeded",
                retry_after_s=retry_after_s,
            )  # fmt: skip
        case errno.EDQUOT:
            return ApiError(
                429, message, "insufficient_quota", code="insufficient_quota", retry_after_s=60.0
            )
        case errno.EPERM:
            return ApiError(403, message, "permission_error", code="permission_denied")
        case errno.ESRCH | errno.ECHILD:
            return _terminated()
        case errno.ESHUTDOWN:
            return shutting_down()
        case number if number in _GONE:
            return unavailable("the kernel is not there; try again")
    return internal()


def _terminated() -> ApiError:
    return ApiError(410, "an operator has ended this request", "server_error", code="terminated")


def _suspended() -> ApiError:
    return ApiError(410, "an operator has suspended this request", "server_error", code="suspended")


def _too_late() -> ApiError:
    return ApiError(
        504, "the request's deadline has passed", "server_error", code="deadline_exceeded"
    )


def _too_many_pages() -> ApiError:
    return invalid(
        "the answer needs more KV pages than the request may have", code="page_limit_exceeded"
    )


_ENDED: Final[dict[ExitReason, Callable[[], ApiError]]] = {
    ExitReason.TERMINATED: _terminated,
    ExitReason.KILLED: _terminated,
    ExitReason.SUSPENDED: _suspended,
    ExitReason.DEADLINE: _too_late,
    ExitReason.PAGES: _too_many_pages,
}


def of_ending(reason: ExitReason, result: ReadResult) -> ApiError | None:
    """None if a generation has ended well; else what its client is told."""
    if reason in (ExitReason.STOP, ExitReason.LENGTH):
        return None
    if reason is ExitReason.REFUSED:
        text = result.error or "overloaded: it would be too late to be in time"
        return ApiError(
            429, text, "rate_limit_error", code="rate_limit_exceeded", retry_after_s=1.0
        )
    ended = _ENDED.get(reason)
    return ended() if ended is not None else internal()
