"""A drawing as a file."""

import os
from io import BytesIO
from pathlib import Path
from typing import Any


def save(figure: Any, path: str | Path, **options: Any) -> None:
    """Write a figure of matplotlib; `options` are those of its `savefig`. What was at `path` stays
    until the new file is whole. OSError: it could not be written, and nothing is left of it."""
    place = Path(path).resolve()
    drawn = BytesIO()
    figure.savefig(drawn, format=place.suffix.removeprefix(".").lower(), **options)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        draft.write_bytes(drawn.getvalue())
        draft.replace(place)
    except OSError as why:
        draft.unlink(missing_ok=True)
        raise OSError(why.errno, f"cannot write {path}: {why.strerror}") from None
