import errno
import inspect
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tokenix.models.gguf_tokenizer import PRE_TOKENIZERS, QWEN2
from tokenix.models.registry import load_image
from tokenix.models.tokenizer import TokenStyle, any_of, tokenizer_from_json
from tokenix.tests.models import tiny_models as tiny

TEXTS = [
    "",
    " ",
    "   \n\n\t  x",
    "Hello, world! It's 1234567890 o'clock; we'll see.",
    "def f(x: int) -> int:\n    return x ** 2  # σχόλιο\n\n\n",
    "Ünïcödé ñandú Здравствуй мир 你好\uff0c世界 こんにちは 안녕하세요 مرحبا שלום हिन्दी",
    "😀👩‍👩‍👧‍👦🇪🇸 e\u0301 \u00a0\u200b\ufeff\u2028 \x00\x01\x7f",
    "<|im_start|>user\nhi<|im_end|><|endoftext|> <|im_end|>x <|im_ <repo_name>",
    "$10,000.50 3.14e-10 ½ ² ⅷ ١٢٣ 0x1F 2024-01-31T23:59:59Z",
    "http://a.b/c?d=e&f=%20g \\n {\"k\": [1,2]} <p class='x'>",
    "'S 'T 'LL don'T I'M",
    "a" * 300 + " " * 100 + "\r\n\r\n" + "!" * 50,
]


@pytest.fixture(scope="module")
def theirs(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2.path.parent, gguf_file=smollm2.path.name)
    # Its GGUF conversion leaves out the first step of SmolLM2's own tokenizer.json (and of
    # llama.cpp's smollm), which shows in numerals that are merged with a space, as " \u00bd".
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    return tokenizer


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    path = tmp_path_factory.mktemp("byte_level") / "m.gguf"
    tiny.write_gguf(path, tiny.config(layers=1))
    return load_image(path).tokenizer


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentencepiece") / "m.gguf"
    tiny.write_gguf(path, tiny.config(layers=1), tokenizer=tiny.add_sentencepiece_tokenizer)
    return load_image(path).tokenizer


def test_smollm2_is_that_of_transformers(smollm2, theirs):
    ours = smollm2.tokenizer

    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=60))
    def same(text):
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)

    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids, skip_special=False) == text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    same()
    assert ours.special_ids == set(theirs.all_special_ids) | set(range(17))


def test_smollm2_chat_is_that_of_transformers(smollm2, theirs):
    talk = [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "4é"}]
    for messages in (talk, [{"role": "system", "content": "S"}, *talk], talk[:1]):
        for prompt in (True, False):
            want = theirs.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt
            )
            assert smollm2.chat.render(messages, prompt) == want
            want_ids = theirs.apply_chat_template(
                messages, add_generation_prompt=prompt, return_dict=False
            )
            assert smollm2.tokenizer.encode(want) == want_ids


def test_smollm2_digits_are_single_tokens(smollm2):
    ids = smollm2.tokenizer.encode("20480")
    assert [smollm2.tokenizer.token_bytes(t) for t in ids] == [b"2", b"0", b"4", b"8", b"0"]


@given(tokens=st.lists(st.integers(0, 49151), max_size=30))
@settings(max_examples=100, deadline=None)
def test_decode_of_any_tokens_is_that_of_the_library(smollm2, tokens):
    ours = smollm2.tokenizer
    assert ours.decode(tokens) == ours._library.decode(tokens, skip_special_tokens=True)


def test_special_tokens_in_text_from_people(byte_level):
    text = "a<|im_end|>b"
    assert byte_level.token_id("<|im_end|>") == 2
    assert 2 in byte_level.encode(text)
    literal = byte_level.encode(text, parse_special=False)
    assert not set(literal) & byte_level.special_ids
    assert byte_level.decode(literal) == text
    assert 2 in byte_level.encode(text), "the switch is not shared"


def test_any_of_several_names():
    names = ["a", "ab", "abc", "b|c", "x" * 40, *(f"[S_{n}]" for n in range(300))]
    found = any_of(names).findall(f"abcab|ca{'x' * 40}[S_29][S_2][S_300][S_299")
    assert found == ["abc", "ab", "a", "x" * 40, "[S_29]", "[S_2]"]
    assert any_of([]).search("anything") is None


def test_token_bytes(byte_level):
    assert byte_level.style is TokenStyle.BYTE_LEVEL
    ids = [byte_level.token_id(name) for name in ("Ġwo", "hello", "12")]
    assert [byte_level.token_bytes(t) for t in ids] == [b" wo", b"hello", b"12"]
    assert [byte_level.token_bytes(3 + b) for b in range(256)] == [bytes([b]) for b in range(256)]
    assert [byte_level.token_bytes(t) for t in (0, 2, 10**6, -1)] == [b""] * 4
    assert byte_level.token_name(2) == "<|im_end|>" and byte_level.token_name(10**6) == ""
    assert byte_level.decode([2, 3 + 0xC3, 2, 3 + 0xA9], skip_special=True) == "é"
    assert byte_level.vocab_tokens == 3 + 256 + 7


def test_lone_surrogates_do_not_break_encoding(byte_level):
    assert byte_level.decode(byte_level.encode("a\ud800b")) == "a\ufffdb"
    assert byte_level.decode(byte_level.encode("\ud83d\ude00")) == "😀"


def merge_by_score(text, vocab):
    """SentencePiece's algorithm as its paper has it: join the best pair until none is left."""
    scores = {piece: score for piece, kind, score in vocab if kind == 1}
    ids = {piece: i for i, (piece, _, _) in enumerate(vocab)}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[a + b], i)
            for i, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in scores
        ]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out = []
    for part in parts:
        known = part in scores
        out += [ids[part]] if known else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return out


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="theirn é x😀", min_size=1, max_size=30))
def test_sentencepiece_merges_by_score(sentencepiece, text):
    ids = sentencepiece.encode(text)
    assert ids == merge_by_score(text, tiny.sentencepiece_vocab())
    assert sentencepiece.decode(ids) == text
    assert sentencepiece.decode(ids) == sentencepiece._library.decode(ids)


def test_sentencepiece_specials(sentencepiece):
    assert sentencepiece.style is TokenStyle.SENTENCEPIECE and sentencepiece.strips_space
    assert sentencepiece.encode("the", add_special=True)[0] == 1
    assert sentencepiece.encode("the") == sentencepiece.encode("the", add_special=True)[1:]
    assert {0, 1, 2} == sentencepiece.special_ids
    assert sentencepiece.token_bytes(3 + 0xE2) == b"\xe2"
    assert sentencepiece.token_bytes(sentencepiece.token_id("▁the")) == b" the"


def test_patterns_are_those_of_transformers():
    """Qwen2's from its tokenizer class, Llama 3's from the converter that made its file."""
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocab = {token: i for i, token in enumerate(tiny.byte_level_vocab())}
    merges = [tuple(merge.split(" ")) for merge in tiny.MERGES]
    library = Qwen2Tokenizer(vocab=vocab, merges=merges).backend_tokenizer
    state = json.loads(library.to_str())["pre_tokenizer"]["pretokenizers"][0]
    assert state["pattern"]["Regex"] == QWEN2
    default = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    assert default == PRE_TOKENIZERS["llama-bpe"]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_the_text(tmp_path, pre):
    tiny.write_gguf(
        tmp_path / "m.gguf",
        tiny.config(layers=1),
        tokenizer=lambda writer: tiny.add_byte_level_tokenizer(writer, pre),
    )
    tokenizer = load_image(tmp_path / "m.gguf").tokenizer
    for text in TEXTS:
        nfc = tokenizer._library.normalizer
        want = nfc.normalize_str(text) if nfc is not None else text
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == want
    together = tokenizer.token_id("12") in tokenizer.encode("12")
    assert together == (PRE_TOKENIZERS[pre] == "" or r"\p{N}{1,3}" in PRE_TOKENIZERS[pre])


def test_llama3_begins_with_its_token_unless_told_otherwise(tmp_path):
    def write(extra):
        tiny.write_gguf(
            tmp_path / "m.gguf",
            tokenizer=lambda writer: tiny.add_byte_level_tokenizer(writer, "llama-bpe"),
            extra=extra,
        )
        return load_image(tmp_path / "m.gguf").tokenizer

    assert write(None).encode("hello", add_special=True)[0] == 1
    assert 1 not in write(lambda w: w.add_add_bos_token(False)).encode("hello", add_special=True)
    both = write(lambda w: w.add_add_eos_token(True)).encode("hello", add_special=True)
    assert (both[0], both[-1]) == (1, 2)


@pytest.mark.parametrize(
    "text, code",
    [
        ("", errno.EINVAL),
        ("{}", errno.EINVAL),
        ("[1]", errno.EINVAL),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}', errno.EINVAL),
        ('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}', errno.ENOEXEC),
        (
            '{"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}, "model": '
            '{"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}',
            errno.ENOEXEC,
        ),
    ],
)
def test_impossible_tokenizer_files(text, code):
    with pytest.raises(OSError) as caught:
        tokenizer_from_json("dir/tokenizer.json", text, None, None, ())
    assert caught.value.errno == code
    assert caught.value.strerror.startswith("dir/tokenizer.json: ")
