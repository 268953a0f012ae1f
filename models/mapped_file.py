"""Files of a program image, opened so that every failure names the file in one line."""

import json
import mmap
from pathlib import Path
from typing import Any

from tokenix.models.image_error import EINVAL, ENOENT, image_error, read_error


def map_file(path: Path) -> mmap.mmap:
    """`path` mapped read-only; it stays mapped as long as an array refers to it.

    Errors: OSError; EINVAL an empty file, else what the operating system says. A file that is cut
    while it is mapped kills the process (SIGBUS), as with any mapping: replace files, do not
    rewrite them.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise read_error(path, error) from None
    except ValueError:
        raise image_error(EINVAL, f"{path}: the file is empty; download it again") from None


def read_text(path: Path) -> str:
    """The text of `path`. OSError: EINVAL not UTF-8, else what the operating system says."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise read_error(path, error) from None
    except UnicodeDecodeError:
        raise image_error(EINVAL, f"{path}: not UTF-8 text") from None


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """The JSON object in `path`; {} if there is no such file and it is not required.

    Errors: OSError; ENOENT, EINVAL for anything but a JSON object.
    """
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        if required:
            raise image_error(
                ENOENT, f"{path.parent}: has no {path.name}; give a complete model directory"
            ) from None
        return {}
    except (ValueError, RecursionError) as error:
        raise image_error(EINVAL, f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise image_error(EINVAL, f"{path}: not a JSON object")
    return value
