"""The tokenizer that a GGUF file carries in its metadata."""

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from tokenix.models.gguf_config import optional_token
from tokenix.models.gguf_header import GgufHeader
from tokenix.models.image_error import EINVAL, ENOENT, ENOEXEC, image_error
from tokenix.models.tokenizer import SPACE_MARK, Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _WORD + r"\p{N}{1,3}" + _REST
QWEN2 = _WORD + r"\p{N}" + _REST
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# tokenizer.ggml.pre -> how a text is split into words before merging; "" is GPT-2's own pattern,
# and "digits" that after setting each digit apart.
PRE_TOKENIZERS = {
    "default": "",
    "gpt-2": "",
    "phi-2": "",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "codeshell": "digits",
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "smaug-bpe": LLAMA3,
    "dbrx": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": TEKKEN,
}
_WHOLE_WORDS_FIRST = (LLAMA3, TEKKEN)
"""Patterns whose vocabularies take a word that is a token as it is, without merging."""


def gguf_tokenizer(header: GgufHeader, eos_tokens: Sequence[int]) -> Tokenizer:
    """Build the tokenizer of a GGUF file; its vocabulary ids are the model's.

    Errors: OSError; ENOENT no tokenizer in the file, ENOEXEC a kind that is not supported, EINVAL
    contradicting metadata.
    """
    if "tokenizer.ggml.model" not in header.fields:
        raise image_error(
            ENOENT, f"{header.path}: has no tokenizer (tokenizer.ggml.model); convert it again"
        )
    kind = header.text("tokenizer.ggml.model")
    tokens = header.strings("tokenizer.ggml.tokens")
    types = [_NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in header.fields:
        types = [int(t) for t in header.numbers("tokenizer.ggml.token_type")]
    if len(types) != len(tokens):
        raise image_error(
            EINVAL, f"{header.path}: {len(tokens)} tokens but {len(types)} token types"
        )
    if kind not in ("gpt2", "llama"):
        raise image_error(
            ENOEXEC,
            f"{header.path}: tokenizer model {kind!r} is not supported; supported: gpt2 "
            "(byte-level BPE), llama (SentencePiece BPE)",
        )
    build = _byte_level if kind == "gpt2" else _sentencepiece
    try:
        library = build(header, tokens, types)
        _add_tokens(library, tokens, types)
        _surround(header, library, tokens, kind)
    except OSError:
        raise
    except Exception as error:
        raise image_error(EINVAL, f"{header.path}: impossible tokenizer: {error}") from None
    bos = optional_token(header, "bos")
    return Tokenizer(library, bos_token=bos, eos_tokens=eos_tokens)


def _byte_level(header: GgufHeader, tokens: list[str], types: list[int]) -> Library:
    pre = header.text("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise image_error(
            ENOEXEC,
            f"{header.path}: pre-tokenizer {pre!r} is not supported; supported: "
            f"{', '.join(PRE_TOKENIZERS)}",
        )
    pattern = PRE_TOKENIZERS[pre]
    merges = []
    for line in header.strings("tokenizer.ggml.merges"):
        left, _, right = line.partition(" ")
        merges.append((left, right))
    library = Library(
        BPE(_vocab(tokens, types), merges, ignore_merges=pattern in _WHOLE_WORDS_FIRST)
    )
    if pattern == QWEN2:
        library.normalizer = normalizers.NFC()
    library.pre_tokenizer = _byte_level_words(pattern)
    library.decoder = decoders.ByteLevel()
    return library


def _byte_level_words(pattern: str) -> pre_tokenizers.PreTokenizer:
    by_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if not pattern:
        return by_gpt2
    if pattern == "digits":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_gpt2])
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _sentencepiece(header: GgufHeader, tokens: list[str], types: list[int]) -> Library:
    scores = header.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise image_error(
            EINVAL, f"{header.path}: {len(tokens)} tokens but {len(scores)} token scores"
        )
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    library = Library(
        BPE(
            _vocab(tokens, types),
            _merges_by_score(tokens, types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    after: list[decoders.Decoder] = [
        decoders.Replace(SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if header.flag("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
        after.append(decoders.Strip(content=" ", left=1))
    library.normalizer = normalizers.Sequence(steps)
    library.decoder = decoders.Sequence(after)
    return library


def _merges_by_score(
    tokens: list[str], types: list[int], scores: list[float]
) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores highest, so every split of a token
    into two tokens is a merge, ranked by the score of the whole."""
    ids = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _NORMAL}
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for whole, token in ids.items():
        for cut in range(1, len(whole)):
            left, right = whole[:cut], whole[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[token], token, ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _vocab(tokens: list[str], types: list[int]) -> dict[str, int]:
    """Token text to id; unused ids have no text. The first of two equal tokens wins."""
    vocab: dict[str, int] = {}
    for token, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind != _UNUSED:
            vocab.setdefault(text, token)
    return vocab


def _add_tokens(library: Library, tokens: list[str], types: list[int]) -> None:
    """Tokens that are found in a text as a whole, before it is split into words."""
    added = [
        AddedToken(text, special=kind != _USER_DEFINED, normalized=False)
        for text, kind in zip(tokens, types, strict=True)
        if text and kind in (_CONTROL, _UNKNOWN, _USER_DEFINED)
    ]
    library.add_tokens(added)


def _surround(header: GgufHeader, library: Library, tokens: list[str], kind: str) -> None:
    """The begin and end of sequence tokens that `add_special` asks for."""
    pre = header.text("tokenizer.ggml.pre", "default")
    by_default = kind == "llama" or PRE_TOKENIZERS.get(pre) in _WHOLE_WORDS_FIRST
    bos, eos = optional_token(header, "bos"), optional_token(header, "eos")
    before = [bos] if header.flag("tokenizer.ggml.add_bos_token", by_default) else []
    after = [eos] if header.flag("tokenizer.ggml.add_eos_token", False) else []
    around = [(tokens[t], t) for t in (*before, *after) if t is not None]
    if not around:
        return
    first = [tokens[t] for t in before if t is not None]
    last = [tokens[t] for t in after if t is not None]
    library.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", "$B", *last],
        special_tokens=list(dict.fromkeys(around)),
    )
