"""Structured output of the real model: it is what was asked for, and the same tokens whatever
happens to its process on the way."""

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenix
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.sched.plan import PauseMode
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import SpawnOptions
from tokenix.tests.syscalls.conftest import PATIENT
from tokenix.tests.syscalls.test_identity import Drawn, rude, stopped

PAGES = 128
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "old"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPT = "Describe a person as JSON with name, age and tags."
SEEDED: SpawnOptions = {"temperature": 0.9, "top_p": 0.95, "seed": 5, "logprobs": 1}
CASES: list[tuple[str, SpawnOptions]] = [
    (PROMPT, {"grammar": {"json_schema": PERSON}, "max_tokens": 160}),
    (PROMPT, {"grammar": {"json_schema": PERSON}, "max_tokens": 160, **SEEDED}),
    ("Who is it?", {"grammar": {"regex": "[A-Z][a-z]{2,9} is [0-9]{1,3} years old"}, **SEEDED}),
    ("Write a line about the sea.", {"max_tokens": 24, "ignore_eos": True}),
    ("Name a river.", {"max_tokens": 24, **SEEDED}),
]


@pytest.fixture(scope="module")
def k(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Syscalls]:
    directory = str(tmp_path_factory.mktemp("images"))
    params = Params(poison=True, prefix_cache=False)
    with tokenix.boot(
        "smollm2", device_pages=PAGES, params=params, tunables=PATIENT, image_dir=directory
    ) as machine:
        yield machine


def take(k: Syscalls, pid: Pid, tokens: int = 1 << 30) -> tuple[Drawn, str, str]:
    """The next tokens or all up to the end of the turn, their text, and why it ended."""
    found: Drawn = []
    text = ""
    while len(found) < tokens:
        result = k.read(pid, tokens - len(found))
        found += [(output.token, output.logprob, output.top) for output in result.outputs]
        text += "".join(output.text for output in result.outputs)
        if result.turn_ended is not None:
            return found, text + result.turn_ended.tail, result.turn_ended.reason.value
    return found, text, ""


def run(k: Syscalls, prompt: str, **options: object) -> tuple[Drawn, str, str]:
    return take(k, k.spawn(prompt, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def alone(k: Syscalls) -> list[tuple[Drawn, str, str]]:
    return [run(k, prompt, **options) for prompt, options in CASES]


def check_person(text: str) -> None:
    said = json.loads(text)
    assert set(said) == {"name", "age", "tags"}
    assert isinstance(said["name"], str) and len(said["name"]) <= 24
    assert type(said["age"]) is int and 0 <= said["age"] <= 150
    assert len(said["tags"]) <= 3 and set(said["tags"]) <= {"kind", "tall", "old"}


# ---- the form ----


def test_a_schema_is_kept_to(alone: list[tuple[Drawn, str, str]]) -> None:
    for _, text, reason in alone[:2]:
        check_person(text)
        assert reason == "stop"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_drawn(k: Syscalls, seed: int) -> None:
    options: SpawnOptions = {"temperature": 1.5, "seed": seed, "max_tokens": 200}
    _, text, reason = run(k, PROMPT, grammar={"json_schema": PERSON}, **options)
    check_person(text)
    assert reason == "stop"


def test_other_kinds(k: Syscalls, alone: list[tuple[Drawn, str, str]]) -> None:
    assert re.fullmatch("[A-Z][a-z]{2,9} is [0-9]{1,3} years old", alone[2][1])
    words = ["yes", "no", "may be"]
    _, text, reason = run(k, "Is water wet?", grammar={"choice": words}, **SEEDED)
    assert text in words and reason == "stop"
    _, text, reason = run(k, "Describe a person.", grammar={"json_object": True}, max_tokens=100)
    assert reason == "stop" and isinstance(json.loads(text), dict)
    lark = 'start: "<tool_call>" call "</tool_call>"\ncall: %json ' + json.dumps(PERSON)
    _, text, reason = run(k, PROMPT, grammar={"lark": lark}, max_tokens=200)
    check_person(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert reason == "stop"


def test_it_may_be_cut_short(k: Syscalls, alone: list[tuple[Drawn, str, str]]) -> None:
    drawn, text, reason = run(k, PROMPT, grammar={"json_schema": PERSON}, max_tokens=7)
    assert (drawn, reason) == (alone[0][0][:7], "length")
    assert alone[0][1].startswith(text)
    _, text, reason = run(k, PROMPT, grammar={"json_schema": PERSON}, stop=['"age'])
    assert reason == "stop" and text.startswith("{") and "age" not in text


def test_min_tokens_and_ignore_eos_yield_to_it(k: Syscalls) -> None:
    """It ends when it has to, and not before min_tokens when it does not have to."""
    for options in ({"ignore_eos": True}, {"min_tokens": 30}):
        drawn, text, reason = run(k, "Is it?", grammar={"choice": ["yes", "no"]}, **options)
        assert text in ("yes", "no") and reason == "stop" and len(drawn) < 6
    drawn, text, _ = run(k, "Laugh.", grammar={"regex": "(ha ?)+"}, min_tokens=12, max_tokens=40)
    assert re.fullmatch("(ha ?)+", text) and len(drawn) >= 12


def test_log_probabilities_are_those_of_the_model(k: Syscalls) -> None:
    drawn, _, _ = run(k, "Is it?", grammar={"choice": ["zebra"]}, logprobs=2)
    assert any(token not in [t for t, _ in top] for token, _, top in drawn)
    assert all(logprob <= top[0][1] for _, logprob, top in drawn)


def test_each_turn_begins_anew(k: Syscalls) -> None:
    pid = k.spawn("Is water wet?", grammar={"choice": ["yes", "no"]}, keep_open=True)
    for question in ("Is fire cold?", "Is it late?", ""):
        _, text, reason = take(k, pid)
        assert text in ("yes", "no") and reason == "stop"
        k.write(pid, question, eof=not question)


# ---- whatever happens ----


def test_batching_changes_nothing(k: Syscalls, alone: list[tuple[Drawn, str, str]]) -> None:
    pids = [k.spawn(prompt, **options) for prompt, options in CASES]
    assert [take(k, pid) for pid in pids] == alone


@pytest.mark.parametrize("mode", [PauseMode.SWAP, PauseMode.RECOMPUTE])
def test_preemption_changes_nothing(
    k: Syscalls, alone: list[tuple[Drawn, str, str]], mode: PauseMode
) -> None:
    for pid in [process.pid for process in k.ps()]:
        k.wait(pid)
    kernel = k.machine.kernel
    before = kernel.scheduler
    scheduler = rude(k, 3, mode)
    try:
        pids = [k.spawn(prompt, **options) for prompt, options in CASES]
        assert [take(k, pid) for pid in pids] == alone
        assert scheduler.forced[mode] >= len(CASES)
        for pid in pids:
            k.wait(pid)
    finally:
        kernel.scheduler = before


def test_a_fork_in_the_middle_goes_on(k: Syscalls, alone: list[tuple[Drawn, str, str]]) -> None:
    for case in (0, 1):
        prompt, options = CASES[case]
        parent = k.spawn(prompt, **options)
        k.read(parent, max_tokens=3)
        known = stopped(k, parent)
        same, other = k.fork(parent, 2, seeds=(5, 99))
        for pid in (same, other, parent):
            k.kill(pid, tokenix.SIGCONT)
        expected = alone[case][0]
        assert take(k, same)[0] == expected[known:]
        head = k.machine.image.tokenizer.decode([token for token, _, _ in expected[:known]])
        check_person(head + take(k, other)[1])
        take(k, parent)


def test_an_image_in_the_middle_goes_on(
    k: Syscalls, alone: list[tuple[Drawn, str, str]], tmp_path: Path
) -> None:
    """In the kernel that wrote it, and in one that has not compiled the grammar."""
    for case in (0, 1):
        prompt, options = CASES[case]
        pid = k.spawn(prompt, **options)
        drawn, text, _ = take(k, pid, 4)
        k.suspend(pid, "person")
        k.machine.image.grammars._rules.clear()
        more, rest, reason = take(k, k.resume("person"))
        assert (drawn + more, text + rest, reason) == alone[case]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ({"gbnf": "x"}, "no kind 'gbnf'"),
        ({"regex": "a", "lark": "b"}, "one kind, not lark and regex"),
        ("regex", "must be a mapping"),
        ({"json_schema": {"type": "objec"}}, "Invalid type: objec (at #/type)"),
        ({"json_schema": {"enum": ["x" * 10 + str(i) for i in range(20_000)]}}, "the limit is"),
    ],
)
def test_what_makes_no_sense(k: Syscalls, grammar: object, told: str) -> None:
    with pytest.raises(OSError) as caught:
        k.spawn("x", grammar=grammar)  # type: ignore[arg-type]
    assert caught.value.errno == errno.EINVAL
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_what_becomes_too_much_ends_its_process_alone(k: Syscalls) -> None:
    lark = "start: r0\n" + "\n".join(f'r{i}: r{i + 1} r{i + 1} | "x{i}"' for i in range(999))
    bad = k.spawn("x", grammar={"lark": lark + '\nr999: "y"'}, max_tokens=9)
    fine = k.spawn("Is water wet?", grammar={"choice": ["yes", "no"]})
    assert take(k, fine)[1] in ("yes", "no")
    end = k.wait(bad)
    assert end.reason.value == "error" and end.error.startswith("its grammar: ")
    assert "\n" not in end.error
