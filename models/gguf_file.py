"""A GGUF file to a program image."""

from pathlib import Path

from tokenix.models.chat import ChatTemplate
from tokenix.models.gguf_config import default_sampling, model_config, optional_token
from tokenix.models.gguf_header import GgufHeader, read_header
from tokenix.models.gguf_tokenizer import gguf_tokenizer
from tokenix.models.gguf_weights import GgufWeights
from tokenix.models.image import ProgramImage, Progress, fingerprint, no_progress, stamp
from tokenix.models.tokenizer import Tokenizer

_TEMPLATE = "tokenizer.chat_template"
_STEPS = 4


def load_gguf(path: Path, name: str, progress: Progress = no_progress) -> ProgramImage:
    """Map a GGUF file. OSError: see `models.image_error`; every message names the file."""
    progress("header", 0, _STEPS)
    lies = stamp([path])
    header = read_header(path)
    config = model_config(header)
    progress("weights", 1, _STEPS)
    weights = GgufWeights(header, config)
    progress("tokenizer", 2, _STEPS)
    tokenizer = gguf_tokenizer(header, config.eos_tokens)
    progress("template", 3, _STEPS)
    image = ProgramImage(
        name=name,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat=_chat(header, tokenizer),
        default_sampling=default_sampling(header),
        path=path,
        format="gguf",
        size_bytes=len(header.data),
        fingerprint=fingerprint([path]),
        stamp=lies,
    )
    progress("model", _STEPS, _STEPS)
    return image


def _chat(header: GgufHeader, tokenizer: Tokenizer) -> ChatTemplate | None:
    if _TEMPLATE not in header.fields:
        return None
    special = {}
    for role, variable in (
        ("bos", "bos_token"),
        ("eos", "eos_token"),
        ("unknown", "unk_token"),
        ("padding", "pad_token"),
    ):
        token = optional_token(header, role)
        if token is not None:
            special[variable] = tokenizer.token_name(token)
    named = {
        key.removeprefix(f"{_TEMPLATE}."): header.text(key)
        for key in header.fields
        if key.startswith(f"{_TEMPLATE}.")
    }
    return ChatTemplate(header.text(_TEMPLATE), special, named=named)
