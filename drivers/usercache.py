"""The user's cache folder: compiled code, packed weights, all that can be made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/tokenix, or ~/.cache/tokenix; it may not exist yet. A path that is not
    absolute counts as none (XDG Base Directory Specification): there would be a cache in each
    folder that somebody starts in. RuntimeError: the user has no home directory."""
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = shared if shared.is_absolute() else Path("~/.cache").expanduser()
    return base / "tokenix"
