"""A Hugging Face model directory to a program image.

config.json   *.safetensors (model.safetensors.index.json)   tokenizer.json
and, if they exist: generation_config.json, tokenizer_config.json, special_tokens_map.json,
chat_template.jinja, chat_template.json, additional_chat_templates/*.jinja
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenix.models.chat import ChatTemplate
from tokenix.models.hf_config import hf_default_sampling, hf_model_config
from tokenix.models.hf_weights import HfWeights, weight_files
from tokenix.models.image import ProgramImage, Progress, fingerprint, no_progress, stamp
from tokenix.models.image_error import ENOENT, image_error
from tokenix.models.mapped_file import read_json, read_text
from tokenix.models.tokenizer import Tokenizer, tokenizer_from_json

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_STEPS = 4


def load_hf(folder: Path, name: str, progress: Progress = no_progress) -> ProgramImage:
    """Map a model directory. OSError: see `models.image_error`; messages name the file."""
    progress("config", 0, _STEPS)
    where = str(folder / "config.json")
    generation = read_json(folder / "generation_config.json", required=False)
    config = hf_model_config(where, name, read_json(folder / "config.json"), generation)
    progress("weights", 1, _STEPS)
    files = weight_files(folder)
    lies = stamp(files)
    weights = HfWeights(folder, config)
    progress("tokenizer", 2, _STEPS)
    settings = read_json(folder / "tokenizer_config.json", required=False)
    special = _special_names(folder, settings)
    tokenizer = _tokenizer(folder, special, config.eos_tokens)
    ends = tuple(token for token in tokenizer.eos_tokens if token < config.vocab_tokens)
    config = replace(config, eos_tokens=ends)
    progress("template", 3, _STEPS)
    image = ProgramImage(
        name=name,
        config=config,
        weights=weights,
        tokenizer=tokenizer,
        chat=_chat(folder, settings, special),
        default_sampling=hf_default_sampling(str(folder / "generation_config.json"), generation),
        path=folder,
        format="hf",
        size_bytes=sum(path.stat().st_size for path in files),
        fingerprint=fingerprint([folder / "config.json", folder / "tokenizer.json", *files]),
        stamp=lies,
    )
    progress("model", _STEPS, _STEPS)
    return image


def _tokenizer(folder: Path, special: Mapping[str, str], eos: tuple[int, ...]) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise image_error(
            ENOENT,
            f"{folder}: has no tokenizer.json; older tokenizer files are not read, save the "
            "tokenizer again with a current transformers",
        ) from None
    return tokenizer_from_json(
        str(path), text, special.get("bos_token"), special.get("eos_token"), eos
    )


def _special_names(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The names of the special tokens, "bos_token" and the like, that the model has."""
    older = read_json(folder / "special_tokens_map.json", required=False)
    names = {}
    for role in _SPECIAL:
        entry = settings.get(role, older.get(role))
        text = entry.get("content") if isinstance(entry, Mapping) else entry
        if isinstance(text, str):
            names[role] = text
    return names


def _chat(
    folder: Path, settings: Mapping[str, Any], special: Mapping[str, str]
) -> ChatTemplate | None:
    """A file of its own wins over the one in a JSON file, as in transformers."""
    named = {
        path.stem: read_text(path)
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    single = folder / "chat_template.jinja"
    if single.exists():
        return ChatTemplate(read_text(single), special, named=named)
    given = read_json(folder / "chat_template.json", required=False).get("chat_template")
    given = settings.get("chat_template", given)
    if isinstance(given, list):
        for entry in given:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                named.setdefault(str(entry.get("name")), entry["template"])
        given = named.pop("default", None)
    return ChatTemplate(given, special, named=named) if isinstance(given, str) else None
