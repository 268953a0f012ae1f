"""Requests that were sound once: their JSON, their bytes or their HTTP changed by chance.

    Sample --tree--> JSON of the wrong kind --bytes--> no JSON any more --http--> no HTTP any more

An input is a function of its seed and number alone.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokenix.tests.gateway.corpus import CORPUS, Sample
from tokenix.tests.gateway.stage import METRICS_KEY, ROOT_KEY, TENANT_KEY


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is sent on a connection."""

    kind: str
    pieces: list[bytes]
    """Written one by one."""
    pause_s: float = 0.0
    """Between two pieces."""
    whole: bool = False
    """It is one request of sound HTTP: one answer is due, and the connection may go on."""
    method: str = "POST"
    hang_up: bool = False
    """Close the sending half behind it."""
    secrets: list[str] = field(default_factory=lambda: [TENANT_KEY])
    """That are in it, so that an answer may have them from there."""


POSTS = [sample for sample in CORPUS if sample.body is not None]


class Raw(str):
    """A piece of JSON as it is written, whether or not it is JSON."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object whose keys may come twice."""


def write(value: Any) -> str:
    """JSON of a tree with such leaves."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict | Pairs):
        pairs = value.items() if isinstance(value, dict) else value
        return "{" + ",".join(f"{write(str(key))}:{write(item)}" for key, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 17, 1.5, -0.0, 100.0, 1e308, 5e-324, 1 << 31, (1 << 31) + 1,
    1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), -(1 << 70), Raw("NaN"), Raw("Infinity"),
    Raw("1e400"), Raw("-1e400"), Raw("9" * 400), Raw("0x10"), Raw("01"), Raw(".5"), Raw("1."),
    Raw('"\\ud800"'), Raw('"\\udc00\\ud800"'), Raw('"\\u0000"'), Raw('"\\x"'), Raw("'a'"), Raw(""),
    Raw("[1,]"), Raw('{"a":1,}'), Raw("/**/1"), "", " ", "\0", "\x1b[31m", "\u2028\u202e\ufeff",
    "\uffff", "e\u0301" * 40, "\U0001f600" * 30, "\U0010ffff", "x" * 3000, "a\r\nb: c", "%s%n{}",
    "<|im_start|>system\n<|im_end|>", "{{ 7 * 7 }}{% for %}", "../../etc/passwd", "'; --", "null",
    "NaN", "1e999", "auto", "text", "json_schema", "function", "assistant", "<tool_call>{}",
    "(a{500}){500}", "(" * 60, "[^", "(?=a)b", "\\p{L}{1,200}", "(a|a)*b" * 20, "start: start",
    "start: /(/", 'start: "a"+ "b"*', [], {}, [[]], [None], [{}], {"": ""}, {"a": {}}, [0] * 300,
    ["a"] * 40, {"x" * 2000: 1}, {"type": "object"}, {"$ref": "#"}, {"$ref": "#/$defs/none"},
    {"$ref": "http://localhost/x"}, {"pattern": "("}, {"allOf": [{"type": "string"}, {"const": 1}]},
    {"minItems": 1 << 40, "type": "array"}, {"multipleOf": 1e-300, "type": "number"},
    {"minimum": 5, "maximum": 1, "type": "integer"}, {"enum": []}, {"anyOf": []}, {"not": {}},
    {"minLength": 1 << 33, "type": "string"}, {"format": "date", "type": "string"},
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
]  # fmt: skip


def nest(draw: random.Random) -> Raw:
    depth = draw.choice([20, 120, 700, 980, 1100, 20_000])
    begin, end = draw.choice([("[", "]"), ('{"a":', "}"), ('{"items":[', "]}")])
    return Raw(begin * depth + "0" + end * depth)


def odd(draw: random.Random) -> Any:
    """A value that few fields expect."""
    match draw.randrange(12):
        case 0:
            return nest(draw)
        case 1:
            return draw.randint(-(1 << draw.randrange(1, 70)), 1 << draw.randrange(1, 70))
        case 2:
            return "".join(chr(draw.choice([draw.randrange(0xD800), 0x1F600, 0])) for _ in range(9))
        case 3:
            return subtree(draw, draw.choice(CORPUS).body)
        case _:
            return draw.choice(ODD)


def subtree(draw: random.Random, value: Any) -> Any:
    """Some part of a tree."""
    while isinstance(value, dict | list) and value and draw.random() < 0.7:
        value = draw.choice(list(value.values()) if isinstance(value, dict) else value)
    return value


def change(draw: random.Random, value: Any) -> Any:
    """A tree with one place changed."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.06:
        return mutate(draw, value)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [change(draw, item) if i == at else item for i, item in enumerate(value)]
    at = draw.choice(list(value))
    pairs: list[tuple[str, Any]] = []
    for key, item in value.items():
        if key != at:
            pairs.append((key, item))
            continue
        match draw.randrange(12):
            case 0:
                continue  # it is missing
            case 1:
                pairs += [(key, item), (key, odd(draw))]  # it comes twice
            case 2:
                pairs.append((draw.choice([key.upper(), key + " ", "", "\0", key * 200]), item))
            case _:
                pairs.append((key, change(draw, item)))
    return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else Pairs(pairs)


def mutate(draw: random.Random, value: Any) -> Any:
    """Another value instead of one; half the time of the same kind."""
    if draw.random() < 0.5:
        return vary(draw, value)
    return draw.choice([[value], {"value": value}, odd(draw), odd(draw), odd(draw), odd(draw)])


def vary(draw: random.Random, value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return draw.choice([
                -value, value * 1000, value + 0.5, value / 1e9, value + 1, draw.randrange(40),
            ])  # fmt: skip
        case str():
            at = draw.randrange(len(value) + 1)
            return value[:at] + str(draw.choice(ODD)) + value[draw.choice([at, at + 1]) :]
        case list():
            return draw.choice([value[::-1], value[1:], value * draw.randrange(2, 40)])
        case dict():
            return {**value, draw.choice(["", "x", "echo", "functions", "type", "n"]): odd(draw)}
        case _:
            return odd(draw)


# ---- from a tree to a connection ----


def request(sample: Sample, body: bytes, key: str = TENANT_KEY, *more: str) -> bytes:
    lines = [
        f"{sample.method} {sample.path} HTTP/1.1", "Host: localhost",
        f"Authorization: Bearer {key}", *more,
    ]  # fmt: skip
    if sample.method == "POST" and not any(line.lower().startswith("content-") for line in more):
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


def key_for(draw: random.Random, sample: Sample) -> str:
    if sample.path == "/metrics":
        return METRICS_KEY
    return ROOT_KEY if draw.random() < 0.1 else TENANT_KEY


def sound(sample: Sample) -> Mutant:
    """A sample as it is."""
    key = METRICS_KEY if sample.path == "/metrics" else TENANT_KEY
    body = b"" if sample.body is None else write(sample.body).encode()
    return Mutant("sound", [request(sample, body, key)], whole=True, method=sample.method)


def tree(draw: random.Random) -> Mutant:
    """JSON of another kind."""
    sample = draw.choice(POSTS)
    value = sample.body
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if isinstance(value, Pairs):
            break
        value = change(draw, value)
    if draw.random() < 0.05:  # where it does not belong
        sample = Sample("POST", draw.choice(CORPUS).path)
    key = key_for(draw, sample)
    body = write(value).encode("utf-8", "surrogatepass")
    return Mutant("tree", [request(sample, body, key)], whole=True, secrets=[key])


def torn(draw: random.Random) -> Mutant:
    """Bytes of a body that were changed."""
    sample = draw.choice(POSTS)
    body = bytearray(write(sample.body).encode())
    for _ in range(draw.choice([1, 1, 2, 4])):
        at, until = sorted((draw.randrange(len(body) + 1), draw.randrange(len(body) + 1)))
        match draw.randrange(9):
            case 0:
                del body[at:]
            case 1:
                del body[at:until]
            case 2:
                body[at:at] = write(draw.choice(POSTS).body).encode()[:until]
            case 3:
                body[at:at] = draw.choice([
                    b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80",
                ])  # fmt: skip
            case 4:
                body[at:until] = body[at:until] * 2
            case 5:
                body[:0] = draw.choice(
                    [b"\xef\xbb\xbf", b" " * 99, b"\0", b"\x1f\x8b", b"\xfe\xff"]
                )
            case 6:
                body += draw.choice([b"{}", b"\0", b"}", b"\n\n", b",1"])
            case _:
                for _ in range(draw.randint(1, 6)):
                    if body:
                        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return Mutant("torn", [request(sample, bytes(body))], whole=True)


HEADERS = [
    "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 1e3",
    "Content-Length: 5\r\nContent-Length: 6", "Content-Length:", "Content-Length: +4",
    "Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: x",
    "Content-Encoding: gzip", "Content-Encoding: br, identity", "Content-Type: text/plain",
    "Content-Type: application/json; charset=utf-16", "Content-Type: ;;;", "Content-Type:",
    "Content-Type: application/json; charset=\"utf-8", "Content-Type: multipart/form-data",
    "Expect: 100-continue", "Expect: nonsense", "Upgrade: h2c\r\nConnection: upgrade", "Host: b",
    "Connection: close", "Connection: keep-alive, close", "Accept: */*;q=x", "Accept: text/html",
    "X-Reader-Tokens-Per-S: nan", "X-Reader-Tokens-Per-S: 1e999", "X-Request-Id: a\tb",
    "X-Request-Id: " + "x" * 129, "Authorization: Basic x", "Authorization: Bearer \udcff\udc80",
    "traceparent: 00-" + "0" * 32, "traceparent: \udcff", "Cookie: " + "a=b;" * 500, "a b: c",
    " folded: x", "NoColon", ": empty", "X\0: y", "X: \0", "X: \x7f\x01", "X: " + "y" * 40_000,
    "\r\nX: y", "Range: bytes=0-1", "If-None-Match: *", "X-HTTP-Method-Override: DELETE",
    "Forwarded: for=1", "Accept-Encoding: gzip", "TE: trailers", "Trailer: x", "Content-Length: 3",
]  # fmt: skip


def labelled(draw: random.Random) -> Mutant:
    """Headers that do not fit."""
    sample = draw.choice(CORPUS)
    body = b"" if sample.body is None else write(sample.body).encode()
    lines = draw.sample(HEADERS, draw.choice([1, 1, 2]))
    if draw.random() < 0.6:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return Mutant(
        "labelled", [request(sample, body, TENANT_KEY, *lines)], hang_up=draw.random() < 0.5
    )


LINES = [
    "GET  /v1/models HTTP/1.1", "get /v1/models HTTP/1.1", "GET /v1/models", "GET / HTTP/1.1",
    "GET /v1/models HTTP/2.0", "GET /v1/models HTTP/1.7", "GET /v1/models HTTP/0.9",
    "PRI * HTTP/2.0", "GET /v1/models HTP/1.1", "OPTIONS * HTTP/1.1", "TRACE /v1/models HTTP/1.1",
    "G\0T / HTTP/1.1", "DELETE /v1/models HTTP/1.1", "PATCH /v1/completions HTTP/1.1",
    "PUT / HTTP/1.1", "GET", "CONNECT a:1 HTTP/1.1", "GET http://other/v1/models HTTP/1.1",
    "GET //health HTTP/1.1", "GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.1",
    "GET /../../etc/passwd HTTP/1.1", "GET /%00 HTTP/1.1", "GET /%ff%fe HTTP/1.1",
    "GET /%zz HTTP/1.1", "GET /v1/models?%00=%ff HTTP/1.1", "GET /v1/models/\udcff HTTP/1.1",
    "GET /health# HTTP/1.1", "GET /schema HTTP/1.1", "GET ? HTTP/1.1",
    "GET /v1/models/" + "x" * 3000 + " HTTP/1.1", "GET /" + "%41" * 20_000 + " HTTP/1.1",
    "POST /v1/chat/completions/ HTTP/1.1", "PROPFIND / HTTP/1.1", "HEAD /health HTTP/1.0",
    "GET /schema/openapi.yaml HTTP/1.1", "GET /schema/swagger HTTP/1.1", "GET /metrics HTTP/1.1",
]  # fmt: skip


def odd_line(draw: random.Random) -> Mutant:
    """A request line that is none, or of nothing that there is."""
    head = [draw.choice(LINES), "Host: localhost", f"Authorization: Bearer {TENANT_KEY}", "", ""]
    data = draw.choice(["\r\n", "\r\n", "\r\n", "\n"]).join(head)
    return Mutant("line", [data.encode("utf-8", "surrogateescape")], hang_up=draw.random() < 0.5)


def chunked(draw: random.Random) -> Mutant:
    """Chunks, most of them not quite right."""
    sample = draw.choice(POSTS)
    body, pieces = write(sample.body).encode(), []
    while body:
        size = draw.randint(1, 200)
        piece, body = body[:size], body[size:]
        pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece))
    pieces.append(b"0\r\n\r\n")
    at = draw.randrange(len(pieces))
    wrong = [
        b"zz\r\n", b"-1\r\n", b"f" * 40 + b"\r\n", b"5;x=y\r\nabcde\r\n", b"3\r\nab\r\n", b"\r\n",
        b"0\r\nTrailer: x\r\n\r\n", b"5\nabcde\n", b"", b"1" * 20_000, b"0x3\r\nabc\r\n",
    ]  # fmt: skip
    if draw.random() < 0.8:
        pieces[at] = draw.choice(wrong)
    if draw.random() < 0.2:
        del pieces[at:]
    pieces.insert(0, request(sample, b"", TENANT_KEY, "Transfer-Encoding: chunked"))
    return Mutant("chunks", pieces, draw.choice([0, 0, 0.002]), hang_up=draw.random() < 0.3)


def pipelined(draw: random.Random) -> Mutant:
    """Several requests at once, and perhaps nonsense between them."""
    data = b""
    for _ in range(draw.randint(2, 8)):
        data += sound(draw.choice(CORPUS)).pieces[0]
        if draw.random() < 0.1:
            data += draw.randbytes(draw.randint(1, 30))
    return Mutant(
        "pipeline", [data], hang_up=draw.random() < 0.5, secrets=[TENANT_KEY, METRICS_KEY]
    )


def cut(draw: random.Random) -> Mutant:
    """A request that ends too soon, comes byte by byte, or is nonsense from some place on."""
    sample = draw.choice(CORPUS)
    data = sound(sample).pieces[0]
    at = draw.randrange(len(data))
    keys = [TENANT_KEY, METRICS_KEY]
    match draw.randrange(4):
        case 0:
            return Mutant("cut", [data[:at]], hang_up=draw.random() < 0.9, secrets=keys)
        case 1:
            size = draw.randint(1, 40)
            pieces = [data[i : i + size] for i in range(0, len(data), size)][:100]
            return Mutant("slow", pieces, 0.005, hang_up=True, secrets=keys)
        case 2:
            noise = bytearray(data)
            for _ in range(draw.randint(1, 8)):
                noise[draw.randrange(len(noise))] = draw.randrange(256)
            return Mutant("noise", [bytes(noise)], hang_up=draw.random() < 0.9, secrets=keys)
        case _:
            begin = draw.choice([b"", data[:at], b"\x16\x03\x01\x02", b"PRI * HTTP/2.0\r\n\r\nSM"])
            return Mutant("noise", [begin + draw.randbytes(60)], hang_up=True, secrets=keys)


KINDS: list[tuple[int, Callable[[random.Random], Mutant]]] = [
    (55, tree), (20, torn), (6, labelled), (5, odd_line), (5, chunked), (4, pipelined), (5, cut),
]  # fmt: skip


def make(seed: int, number: int) -> Mutant:
    """Input `number` of a run."""
    draw = random.Random(f"{seed}/{number}")
    (kind,) = draw.choices([one for _, one in KINDS], [weight for weight, _ in KINDS])
    return kind(draw)
