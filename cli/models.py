"""`tokenix list`: the models that have a name."""

import json

from tokenix.cli import stdout
from tokenix.cli.status import OK


def list_models(as_json: bool) -> int:
    """The command. Exit code."""
    from tokenix.models.registry import list_models as known

    rows = [
        {
            "name": model.name,
            "installed": model.path is not None,
            "summary": model.summary,
            "path": None if model.path is None else str(model.path),
            "size_bytes": None if model.path is None else model.path.stat().st_size,
        }
        for model in known()
    ]
    if as_json:
        stdout.write(json.dumps(rows) + "\n")
        return OK
    stdout.write(f"{'NAME':<12} {'SIZE':>8}  {'SUMMARY'}\n")
    for row in rows:
        size = row["size_bytes"]
        shown = f"{size / 1e6:.0f} MB" if isinstance(size, int) else "-"
        missing = "" if row["installed"] else " (not installed)"
        stdout.write(f"{row['name']:<12} {shown:>8}  {row['summary']}{missing}\n")
    return OK
