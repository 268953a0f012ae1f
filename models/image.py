"""A program image: everything of a model that is needed to run it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from tokenix.models.chat import ChatTemplate
from tokenix.models.config import ModelConfig
from tokenix.models.grammar import Grammars
from tokenix.models.image_error import read_error
from tokenix.models.mapped_file import map_file
from tokenix.models.tokenizer import Tokenizer
from tokenix.models.weights import Weights

Progress = Callable[[str, int, int], None]
"""(what is being done, steps done, steps in all)."""

_SAMPLE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProgramImage:
    """A loaded model. Weights are mapped; nothing is dequantized before it is asked for."""

    name: str
    """The name it was asked for by: a registry name, or the file's or directory's."""
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    """None if the model's publisher gives no template."""
    default_sampling: dict[str, float | int]
    """The publisher's settings by SamplingParams field; {} if there are none."""
    path: Path
    format: str
    """gguf or hf."""
    size_bytes: int
    """Bytes of the weight files."""
    fingerprint: str
    """Names the content: equal files have equal ones, and different models different ones. Made of
    samples, so it guards against mix-ups, not against malice."""
    stamp: str
    """Of the weight files as they lie there: what is written to them, or put in their place, has
    another one, even if samples do not show it. With `fingerprint`, a name for what is made of
    them and kept."""
    grammars: Grammars = field(init=False)
    """What outputs may be held to. Made ready when the first one is asked for."""

    def __post_init__(self) -> None:
        config = self.config
        grammars = Grammars(self.tokenizer, config.vocab_tokens, config.eos_tokens)
        object.__setattr__(self, "grammars", grammars)


def fingerprint(files: list[Path]) -> str:
    """32 hexadecimal digits over the sizes, beginnings, middles and ends of `files`."""
    digest = blake2b(digest_size=16)
    for path in files:
        data = map_file(path)
        size = len(data)
        digest.update(size.to_bytes(8, "little"))
        for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
            digest.update(data[start : start + _SAMPLE_BYTES])
    return digest.hexdigest()


def stamp(files: list[Path]) -> str:
    """Sizes of `files`, and when each was changed last: by the time that programs may set, and by
    the one that only the system sets. Asked for before they are mapped, so that what changes in
    between has another one. OSError: a file is missing or cannot be looked at."""
    digest = blake2b(digest_size=16)
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise read_error(path, error) from None
        digest.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    return digest.hexdigest()


def no_progress(stage: str, done: int, total: int) -> None:
    """The Progress that tells nobody."""
