"""The bytes of the ABI, and how it may change."""

import json

import pytest
from msgspec import msgpack

from tokenix.syscalls.wire import abi
from tokenix.tests.wire import golden

KEPT = dict(line.split(": ") for line in golden.FILE.read_text(encoding="utf-8").splitlines())


def test_the_bytes_are_those_that_were_kept() -> None:
    """If this fails, clients of the last release cannot talk to this server; see `golden.py`."""
    assert golden.lines() == [f"{name}: {data}" for name, data in KEPT.items()]


@pytest.mark.parametrize("name", sorted(golden.examples()))
def test_what_is_sent_is_what_arrives(name: str) -> None:
    sent, data = golden.examples()[name], bytes.fromhex(KEPT[name])
    if not isinstance(sent, abi.Answer):
        decoders = dict.fromkeys(abi.FromClient.__args__, abi.client_decoder)
        decoder = decoders.get(type(sent), abi.server_decoder)
        came = decoder.decode(data)
        assert msgpack.encode(came) == data and type(came) is type(sent)
        return
    value = abi.server_decoder.decode(data).value
    call = name.removeprefix("answer ").split()[0]
    (request,) = [request for request in abi.REQUESTS if abi.tag_of(request) == call]
    assert abi.answer_decoder(request).decode(value) == sent.value


def test_every_message_has_an_example() -> None:
    shown = {type(message) for message in golden.examples().values()}
    assert shown == {*abi.FromClient.__args__, *abi.FromServer.__args__}
    assert {type(request) for request in golden.REQUESTS.values()} == set(abi.REQUESTS)
    assert {name.split()[0] for name in golden.ANSWERS} == set(map(abi.tag_of, abi.REQUESTS))


@pytest.mark.parametrize("request_", abi.REQUESTS, ids=abi.tag_of)
def test_only_what_a_call_is_about_has_no_default(request_: type) -> None:
    """A field that comes later has a default, or old clients could not call any more."""
    required = {
        "read": 1, "fork": 1, "kill": 2, "nice": 2, "setrlimit": 1, "shmunlink": 1, "stat": 1,
        "maps": 1, "tail": 1, "swapon": 2, "suspend": 2, "resume": 1, "unlinkimage": 1,
        "cancelcall": 1, "spawn": 1, "write": 1, "shmopen": 2, "tokenize": 1, "detokenize": 1,
        "tokenbytes": 1,
    }  # fmt: skip
    fields = len(request_.__struct_fields__) - len(request_.__struct_defaults__)
    assert fields == required.get(abi.tag_of(request_), 0)


def test_unknown_fields_of_messages_are_ignored() -> None:
    for name, data in KEPT.items():
        message = msgpack.decode(bytes.fromhex(data))
        later = msgpack.encode({**message, "later": [1, {"a": None}]})
        client = name.startswith(("ask", "hello", "follow", "grant"))
        decoder = abi.client_decoder if client else abi.server_decoder
        assert msgpack.encode(decoder.decode(later)).hex() == data


def test_the_schema() -> None:
    schema = json.loads(json.dumps(abi.schema()))
    assert schema["version"] == abi.VERSION
    assert set(schema["answers"]) == set(map(abi.tag_of, abi.REQUESTS))
    described = schema["$defs"]
    for kind in (*abi.FromClient.__args__, *abi.FromServer.__args__):
        assert kind.__name__ in described
    text = json.dumps(schema)
    for reference in text.split('"#/$defs/')[1:]:
        assert reference.split('"')[0] in described
