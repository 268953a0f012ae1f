"""Presets by name: forgiving look-up, and files with more of them.

[device.my-box]                  every field of `presets.Gpu`; `base` names what to start from
base = "rtx4090"
bandwidth_efficiency = 0.87

[model.my-model]                 every field of `presets.Llm`; `base` likewise
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from tokenix.drivers.sim.presets import GPUS, MODELS, Gpu, Llm

Preset = TypeVar("Preset", Gpu, Llm)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All presets that are known."""

    gpus: Mapping[str, Gpu]
    models: Mapping[str, Llm]

    def gpu(self, name: str) -> Gpu:
        """ValueError: no such device, or more than one."""
        return _find(self.gpus, name, "device")

    def model(self, name: str) -> Llm:
        """ValueError: no such model, or more than one."""
        return _find(self.models, name, "model")


def builtin() -> Catalog:
    return Catalog(GPUS, MODELS)


def load_presets(path: str | Path) -> Catalog:
    """The built-in presets and those of a TOML file, which win. OSError, ValueError: one line."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
        raise ValueError(f"{path}: {why}") from None
    unknown = sorted(set(tables) - {"device", "model"})
    if unknown:
        raise ValueError(f"{path}: no table [{unknown[0]}.*]; there are [device.*] and [model.*]")
    try:
        return Catalog(
            _merge(GPUS, tables.get("device", {}), Gpu, "device"),
            _merge(MODELS, tables.get("model", {}), Llm, "model"),
        )
    except ValueError as why:
        raise ValueError(f"{path}: {why}") from None


def _merge(
    known: Mapping[str, Preset], tables: Mapping[str, Any], kind: type[Preset], word: str
) -> dict[str, Preset]:
    if not isinstance(tables, dict):
        raise ValueError(f"{word} must be tables, [{word}.NAME]")
    merged = dict(known)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f"{word}.{name} must be a table")
        values = dict(table)
        base = values.pop("base", None)
        _check_types(name, values, kind, word)
        values["name"] = name
        if base is not None:
            merged[name] = replace(_find(merged, str(base), word), **values)
            continue
        try:
            merged[name] = kind(**{"source": "given by the user", **values})
        except TypeError as why:
            missing = str(why).partition("__init__() ")[2] or str(why)
            raise ValueError(f"{word}.{name} {missing}; or start from a base") from None
    return merged


def _check_types(name: str, values: Mapping[str, Any], kind: type[Preset], word: str) -> None:
    known = {f.name: f.type for f in fields(kind)}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{word}.{name} has no field {key!r}; there are {', '.join(known)}")
        wanted = known[key]
        fits: type | tuple[type, ...] = wanted if isinstance(wanted, type) else object
        if wanted is float:
            fits = (int, float)
        if not isinstance(value, fits) or (isinstance(value, bool) and wanted is not bool):
            raise ValueError(f"{word}.{name}: {key} cannot be {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{word}.{name}: {key} must be finite, not {value}")


def _find(known: Mapping[str, Preset], name: str, word: str) -> Preset:
    """By name, whatever its case and punctuation; or by a part that only one name has."""
    wanted = _plain(name)
    exact = [preset for key, preset in known.items() if _plain(key) == wanted]
    if exact:
        return exact[0]
    close = [
        preset
        for key, preset in known.items()
        if wanted and (wanted in _plain(key) or _plain(key) in wanted)
    ]
    if len(close) == 1:
        return close[0]
    problem = f"{name!r} may be {' or '.join(p.name for p in close)}" if close else f"no {name!r}"
    raise ValueError(f"{word}: {problem}; there are {', '.join(known)}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
