import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenix.models.registry import load_image
from tokenix.models.text import TextStream
from tokenix.tests.models import tiny_models as tiny


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    cfg = tiny.config(layers=1)
    tiny.write_gguf(folder / "b.gguf", cfg)
    tiny.write_gguf(folder / "s.gguf", cfg, tokenizer=tiny.add_sentencepiece_tokenizer)
    return [load_image(folder / name).tokenizer for name in ("b.gguf", "s.gguf")]


# In both vocabularies byte b is token 3 + b, 0..2 are special, others are words.
BYTES = st.one_of(
    st.text(alphabet="abhelo wé世😀\ufffd ", max_size=6).map(lambda text: text.encode()),
    st.binary(max_size=4),
    st.sampled_from(["😀".encode()[:n] for n in (1, 2, 3)]),
)
TOKENS = st.lists(
    st.one_of(
        BYTES.map(lambda data: [3 + byte for byte in data]),
        st.lists(st.integers(0, 300), max_size=3),
        st.sampled_from([[0], [1], [2], [259], [262], [265], [3 + 32]]),
    ),
    max_size=8,
).map(lambda parts: [token for part in parts for token in part])
STOPS = st.lists(
    st.one_of(
        st.text(alphabet="abhelo wé世😀\ufffd", min_size=1, max_size=4),
        st.sampled_from(["aa", "aab", "abab", "ello", "lo w", "\ufffd\ufffd", " "]),
    ),
    max_size=3,
)


def cut(text, stops):
    """The text before the stop string that is completed first, the longest of several."""
    for end in range(len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(stream, tokens):
    out = [stream.push(token) for token in tokens]
    return "".join([*out, stream.flush()])


@settings(max_examples=600, deadline=None)
@given(which=st.integers(0, 1), tokens=TOKENS, stops=STOPS)
def test_released_text_is_the_whole_decode(tokenizers, which, tokens, stops):
    tokenizer = tokenizers[which]
    stream = TextStream(tokenizer, stops)
    want, stopped = cut(tokenizer.decode(tokens), stops)
    assert run(stream, tokens) == want
    assert stream.stopped == stopped
    assert stream.push(70) == "" or stopped is None


@settings(max_examples=300, deadline=None)
@given(which=st.integers(0, 1), head=TOKENS, tails=st.lists(TOKENS, max_size=3), stops=STOPS)
def test_copies_go_their_own_way(tokenizers, which, head, tails, stops):
    tokenizer = tokenizers[which]
    stream = TextStream(tokenizer, stops)
    begun = "".join(stream.push(token) for token in head)
    twins = [stream.copy() for _ in tails]
    for twin, tail in zip(twins, tails, strict=True):
        want, stopped = cut(tokenizer.decode(head + tail), stops)
        assert begun + run(twin, tail) == want
        assert twin.stopped == stopped
    assert begun + stream.flush() == cut(tokenizer.decode(head), stops)[0]


@settings(max_examples=300, deadline=None)
@given(which=st.integers(0, 1), tokens=TOKENS, stops=STOPS)
def test_nothing_is_held_longer_than_needed(tokenizers, which, tokens, stops):
    tokenizer = tokenizers[which]
    stream = TextStream(tokenizer, stops)
    released = ""
    for count, token in enumerate(tokens, 1):
        released += stream.push(token)
        if stream.stopped is not None:
            return
        whole = tokenizer.decode(tokens[:count])
        tail = whole.removeprefix(released)
        # What is held is one incomplete character, after text that begins a stop string.
        assert whole == released + tail
        certain = tail.rstrip("\ufffd")
        assert not certain or any(
            stop.startswith(tail[: len(certain) + i])
            for stop in stops
            for i in range(len(tail) - len(certain) + 1)
        )


@settings(max_examples=200, deadline=None)
@given(which=st.integers(0, 1), prompt=TOKENS, tokens=TOKENS)
def test_a_continuation_keeps_its_first_space(tokenizers, which, prompt, tokens):
    tokenizer = tokenizers[which]
    stream = TextStream(tokenizer, at_start=False)
    raw = b"".join(tokenizer.token_bytes(t) for t in tokens).decode("utf-8", "replace")
    assert run(stream, tokens) == raw


STORIES = [
    (["h", "ello", " st", "OP more"], ["OP"], "hello st", "OP"),
    (["ab", "c"], ["abcd", "bc"], "a", "bc"),
    (["aaa", "b"], ["aab"], "a", "aab"),
    (["no stop a"], ["ab"], "no stop a", None),
    (["x\n", "\nUser:"], ["\n\nUser", "\n\n"], "x", "\n\n"),
    (["end"], ["end", "nd", "d"], "", "end"),
]


@pytest.mark.parametrize("pieces, stops, want, stopped", STORIES)
def test_stop_string_stories(tokenizers, pieces, stops, want, stopped):
    stream = TextStream(tokenizers[0], stops)
    tokens = [3 + byte for piece in pieces for byte in piece.encode()]
    assert run(stream, tokens) == want
    assert stream.stopped == stopped


def test_incomplete_characters_wait(tokenizers):
    stream = TextStream(tokenizers[0])
    smile = "😀".encode()
    assert [stream.push(3 + byte) for byte in smile] == ["", "", "", "😀"]
    assert stream.push(3 + smile[0]) == "" and stream.push(2) == ""
    assert stream.push(3 + 65) == "\ufffdA"
    assert stream.push(3 + smile[0]) == "" and stream.flush() == "\ufffd"


def test_the_first_space_of_sentencepiece(tokenizers):
    tokenizer = tokenizers[1]
    the = tokenizer.token_id("▁the")
    assert run(TextStream(tokenizer), [1, the, the]) == "the the"
    assert run(TextStream(tokenizer, at_start=False), [the]) == " the"
    assert run(TextStream(tokenizer), [tokenizer.token_id("▁"), the]) == " the"


def test_an_empty_stop_string_is_refused(tokenizers):
    with pytest.raises(ValueError, match="empty"):
        TextStream(tokenizers[0], ["a", ""])


def test_a_long_near_miss_stays_linear(tokenizers):
    """Each character is looked at a bounded number of times, however much is held."""
    stream = TextStream(tokenizers[0], ["a" * 2000 + "b"])
    tokens = [3 + 97] * 20_000
    assert len(run(stream, tokens)) == 20_000


@settings(max_examples=200, deadline=None)
@given(which=st.integers(0, 1), tokens=TOKENS, stops=STOPS, at=st.integers(0, 12))
def test_a_frozen_stream_goes_on_as_it_was(tokenizers, which, tokens, stops, at):
    tokenizer = tokenizers[which]
    whole, first = TextStream(tokenizer, stops), TextStream(tokenizer, stops)
    begun = "".join(first.push(token) for token in tokens[:at])
    thawed = TextStream.thaw(tokenizer, first.freeze())
    assert begun + run(thawed, tokens[at:]) == run(whole, tokens)
    assert thawed.stopped == whole.stopped


def test_what_no_stream_has_frozen_is_refused(tokenizers):
    data = TextStream(tokenizers[0], ["ab"]).freeze()
    for bad in (b"", b"x", data[:-1], data + b"x", b"\x80", data.replace(b"\x91\x00", b"\x90")):
        with pytest.raises(ValueError):
            TextStream.thaw(tokenizers[0], bad)
