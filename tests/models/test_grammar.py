"""Grammars over real vocabularies: masks follow from the tokens, and nothing hostile gets in."""

import contextlib
import errno
import itertools
import json
import random
import sys
import threading
import time

import pytest

from tokenix.models import grammar as module
from tokenix.models.grammar import Grammars
from tokenix.models.grammar_source import MAX_BYTES, count_repeats, read_source
from tokenix.models.registry import load_image
from tokenix.tests.models import tiny_models as tiny

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bcd", "bce"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"x": {}}}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CALL = 'start: ("<tool_call>" body "</tool_call>")+\nbody: %json ' + json.dumps(PERSON)
SOURCES = [
    {"json_schema": PERSON},
    {"json_object": True},
    {"regex": "([a-z]+ ){1,9}(the end|the ending)\\."},
    {"choice": ["yes it is", "yes it was", 'no "é"\n']},
    {"lark": CALL},
]


@pytest.fixture(scope="module")
def images(tmp_path_factory, smollm2):
    folder = tmp_path_factory.mktemp("grammar")
    cfg = tiny.config(layers=1)
    tiny.write_gguf(folder / "b.gguf", cfg)
    tiny.write_gguf(folder / "s.gguf", cfg, tokenizer=tiny.add_sentencepiece_tokenizer)
    tiny.write_hf(folder / "hf", cfg)
    found = {name: load_image(str(folder / name)) for name in ("b.gguf", "s.gguf", "hf")}
    return {**found, "smollm2": smollm2}


def allowed(mask):
    return [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]


def walk(image, grammar, seed, most=60):
    """A random output of at most `most` tokens behind a prompt, and the mask before each."""
    chance, history, masks = random.Random(seed), [5, 6, 7], []
    while len(masks) < most:
        masks.append(grammar.mask(history, 3, len(history)))
        left = [t for t in allowed(masks[-1]) if t not in image.config.eos_tokens]
        if not left or (len(left) < len(allowed(masks[-1])) and chance.random() < 0.5):
            break
        left.sort(key=lambda t: -len(image.tokenizer.token_bytes(t)))
        history.append(chance.choice(left[:40] if chance.random() < 0.7 else left))
    return history, masks


@pytest.mark.parametrize("name", ["smollm2", "b.gguf", "s.gguf", "hf"])
@pytest.mark.parametrize("asked", SOURCES, ids=lambda asked: next(iter(asked)))
def test_a_mask_follows_from_the_tokens_alone(images, name, asked):
    """One that is asked in jumps, forked, or asked back says what one says that saw each token."""
    image = images[name]
    grammar = image.grammars.compile(read_source(asked))
    for seed in range(2):
        history, masks = walk(image, grammar.copy(), seed)
        twin, at, chance = grammar.copy(), 0, random.Random(seed)
        while at < len(masks):
            assert twin.mask(history, 3, 3 + at) == masks[at]
            at += chance.randint(1, 9)
        middle = len(masks) // 2
        assert twin.mask(history, 3, 3 + middle) == masks[middle]
        thawed = image.grammars.thaw(grammar.freeze())
        assert thawed.mask(history, 3, 3 + len(masks) - 1) == masks[-1]
        turn = [*history, 5, 5]
        assert thawed.mask(turn, len(turn), len(turn)) == masks[0], "the next turn begins anew"


@pytest.mark.parametrize("name", ["smollm2", "b.gguf", "s.gguf", "hf"])
def test_what_comes_to_an_end_is_what_was_asked_for(images, name):
    image = images[name]
    grammar = image.grammars.compile(read_source({"json_schema": PERSON}))
    ended = 0
    for seed in range(6):
        history, masks = walk(image, grammar.copy(), seed, most=200)
        if set(image.config.eos_tokens) & set(allowed(masks[-1])):
            said = json.loads(b"".join(image.tokenizer.token_bytes(t) for t in history[3:]))
            assert {"name", "age"} <= set(said) <= {"name", "age", "tags", "home"}
            assert len(said["name"]) <= 12 and 0 <= said["age"] <= 150
            ended += 1
    assert ended


def test_every_choice_can_be_said(images):
    for image in images.values():
        words = SOURCES[3]["choice"]
        grammar = image.grammars.compile(read_source({"choice": words}))
        for word in words:
            history = [5]
            for _ in word.encode():
                fits = [
                    t
                    for t in allowed(grammar.mask(history, 1, len(history)))
                    if word.encode().startswith(
                        b"".join(image.tokenizer.token_bytes(u) for u in (*history[1:], t))
                    )
                    and image.tokenizer.token_bytes(t)
                ]
                if not fits:
                    break
                history.append(fits[0])
            assert b"".join(map(image.tokenizer.token_bytes, history[1:])) == word.encode()


# ---- what is refused ----

WRONG = [
    ({"gbnf": "x"}, "no kind 'gbnf'; there are json_schema"),
    ({"regex": "a", "choice": ["b"]}, "one kind, not choice and regex"),
    ({}, "one kind, not none"),
    (5, "must be a mapping"),
    ({3: "a"}, "must be a mapping"),
    ({"regex": 5}, "must be a text"),
    ({"regex": ""}, "must be a text"),
    ({"regex": "\ud800"}, "lone surrogate"),
    ({"lark": None}, "must be a text"),
    ({"json_schema": "{}"}, "must be an object"),
    ({"json_schema": {"const": object()}}, "is not JSON"),
    ({"json_object": False}, "must be true"),
    ({"choice": "abc"}, "must be a list of strings"),
    ({"choice": []}, "is empty"),
    ({"choice": [1]}, "must be a list of strings"),
    ({"json_schema": {"type": "objec"}}, "Invalid type: objec (at #/type)"),
    (
        {"json_schema": {"properties": {"a": {"items": {"uniqueItems": True}}}}},
        "(at #/properties/a/items/uniqueItems)",
    ),
    ({"json_schema": {"format": "foo", "type": "string"}}, "Unknown format: foo (at #/format)"),
    ({"json_schema": {"$ref": "http://x/y"}}, "http://x/y"),
    ({"json_schema": {"$ref": "#"}}, "allows nothing at all"),
    ({"json_schema": {"enum": []}}, "Unsatisfiable"),
    ({"json_schema": {"type": "string", "pattern": "("}}, "unclosed group"),
    ({"regex": "a("}, "unclosed group"),
    ({"regex": "(?=a)"}, "look-around"),
    ({"lark": "start: foo"}, 'unknown name: "foo"'),
    ({"lark": 'start: %json {"type": "objec"}'}, "objec"),
]


@pytest.mark.parametrize(("asked", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_makes_no_sense_is_refused_in_one_line(smollm2, asked, told):
    with pytest.raises(OSError) as caught:
        smollm2.grammars.compile(read_source(asked))
    assert caught.value.errno == errno.EINVAL
    assert told in caught.value.strerror and "\n" not in caught.value.strerror
    assert len(caught.value.strerror) < 500


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubled(count, kind):
    """Terminals (T0) or rules (r0), each twice the next."""
    names = [f"{kind}{i}" for i in range(count)]
    pairs = itertools.pairwise(names)
    other = ' | "x"' if kind == "r" else ""
    rules = "\n".join(f"{a}: {b} {b}{other}" for a, b in pairs)
    return f'start: {names[0]}\n{rules}\n{names[-1]}: "y"'


HOSTILE = {
    "huge enum": {"json_schema": {"enum": [f"number {i}" for i in range(20_000)]}},
    "huge text": {"regex": "a" * (MAX_BYTES + 1)},
    "nested": {"json_schema": nested(120)},
    "nested without end": {"json_schema": nested(100_000)},
    "a state for each remainder": {"json_schema": {"type": "integer", "multipleOf": 9_999_991}},
    "the same in a grammar": {"lark": 'start: %json {"multipl\\u0065Of": 9999991}'},
    "repeats of repeats": {"regex": "x((a{100}){100}){100}"},
    "in a pattern": {"json_schema": {"type": "string", "pattern": "(a{0,1000}){1000}"}},
    "in a name's pattern": {"json_schema": {"patternProperties": {"^(a{900}){900}$": {}}}},
    "through names": {"lark": "start: T\nT: U{100}\nU: V{100}\nV: /a{100}/"},
    "names of names": {"lark": doubled(40, "T")},
    "all of any of": {
        "json_schema": {
            "allOf": [
                {"anyOf": [{"properties": {f"{c}{i}": {"type": "string"}}} for c in "ab"]}
                for i in range(20)
            ]
        }
    },
    "open parentheses": {"lark": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "many lexemes": {
        "lark": "start: (" + "|".join(f"T{i}" for i in range(2000)) + ")*\n"
        + "\n".join(f"T{i}: /[a-z]{{1,20}}{i}/" for i in range(2000))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_is_refused_soon(smollm2, name):
    smollm2.grammars.prepare()
    began_s = time.thread_time(), time.monotonic()
    with pytest.raises(OSError) as caught:
        smollm2.grammars.compile(read_source(HOSTILE[name]))
    assert caught.value.errno == errno.EINVAL
    assert "\n" not in caught.value.strerror and len(caught.value.strerror) < 500
    assert time.thread_time() - began_s[0] < 2
    assert time.monotonic() - began_s[1] < 30, "however busy the machine is"


@pytest.mark.parametrize(
    "asked", [{"regex": "((a{30}){30}){11}"}, {"lark": 'start: e\ne: e e e | e e | "a" | ""'}]
)
def test_what_is_dear_is_not_paid_for_long(smollm2, monkeypatch, asked):
    monkeypatch.setattr(module, "ALLOWANCE_S", 0.02)
    monkeypatch.setattr(module, "ALLOWANCE_S_PER_TOKEN", 0.0)
    grammar = smollm2.grammars.compile(read_source(asked))
    history = [1]
    with pytest.raises(ValueError, match="its grammar") as caught:
        while len(history) < 200:
            assert grammar.mask(history, 1, len(history))
            history.append(smollm2.tokenizer.token_id("a"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spends", [True, False])
def test_time_to_compile_is_time_of_the_processor(smollm2, monkeypatch, spends):
    """A grammar is not to blame for a machine that is busy with something else."""
    end = threading.Event()

    def compile_it(rules):
        while not end.wait(0.0 if spends else 0.2):
            pass
        raise ValueError("the test is over")

    monkeypatch.setattr(module._Rules, "_compile", compile_it)
    monkeypatch.setattr(module, "COMPILE_S", 0.1)
    monkeypatch.setattr(module, "BUSY_S", 60.0 if spends else 1.0)
    with pytest.raises(OSError) as refused:
        smollm2.grammars.compile(read_source({"regex": f"spends {spends}"}))
    end.set()
    if spends:
        assert refused.value.errno == errno.EINVAL and "longer than 0.1 s" in str(refused.value)
    else:
        assert refused.value.errno == errno.EAGAIN and "too busy" in str(refused.value)


def test_rules_without_end_do_not_crash(smollm2):
    """The compiler recurses for each of them."""
    with contextlib.suppress(OSError):
        grammar = smollm2.grammars.compile(read_source({"lark": doubled(3000, "r")}))
        grammar.mask([1], 1, 1)


def test_counts_of_repeats():
    for text, worst in [
        ("a{5000}", 1), ("(a{10}){10}", 100), ("((a{2}){3}){4}", 24), ("a{2}b{3}", 1),
        ("(a{2}|b{9}){3,4}", 36), (r"\(a{2}\){3}", 1), ("(a{5,}){,6}", 30), ("(((a{3})))){2})", 6),
        ("x{1,2}{3}", 6), ("{{{}}}", 1), ("(a{99999999999}){2}", 1999999998),
    ]:  # fmt: skip
        assert count_repeats(text)[1] == worst, text


# ---- the machinery ----


def test_it_is_compiled_once(smollm2, monkeypatch):
    source = read_source({"regex": "once [0-9]+"})
    smollm2.grammars.compile(source)
    monkeypatch.setattr(module, "_start", None)
    smollm2.grammars.compile(read_source({"regex": "once [0-9]+"})).mask([1], 1, 1)


def test_many_at_once(smollm2):
    grammars = Grammars(smollm2.tokenizer, smollm2.config.vocab_tokens, (2, 0))
    masks = {}

    def work(i):
        grammar = grammars.compile(read_source({"regex": f"{i % 10} apples"}))
        masks[i] = grammar.mask([1], 1, 1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(masks) == 20 and len(set(masks.values())) == 10


def test_without_the_library(smollm2, monkeypatch):
    frozen = smollm2.grammars.compile(read_source({"regex": "a"})).freeze()
    monkeypatch.setitem(sys.modules, "llguidance", None)
    grammars = Grammars(smollm2.tokenizer, smollm2.config.vocab_tokens, (2, 0))
    for refused in (
        lambda: grammars.compile(read_source({"regex": "a"})),
        lambda: grammars.thaw(frozen),
    ):
        with pytest.raises(OSError, match=r"tokenix\[cpu\]") as caught:
            refused()
        assert caught.value.errno == errno.ENOTSUP


def test_a_model_without_an_end_of_text_has_none(smollm2):
    grammars = Grammars(smollm2.tokenizer, smollm2.config.vocab_tokens, ())
    with pytest.raises(OSError, match="no end of text") as caught:
        grammars.compile(read_source({"regex": "a"}))
    assert caught.value.errno == errno.ENOTSUP


def test_a_vocabulary_of_another_size_than_the_models(smollm2):
    """What only the tokenizer has is not in the mask; what only the model has is not allowed."""
    for size in (49_000, 50_000):
        grammars = Grammars(smollm2.tokenizer, size, (2, 0))
        mask = grammars.compile(read_source({"regex": ".*"})).mask([1], 1, 1)
        assert 48_000 < max(allowed(mask)) < min(size, 49_152)


def test_junk_is_no_grammar(smollm2):
    for junk in (b"", b"\x93abc", b"\xc0"):
        with pytest.raises(ValueError):
            smollm2.grammars.thaw(junk)
