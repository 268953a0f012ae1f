"""`tokenix list` and `show`: models that have a name, and what is known of one."""

import math
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.options import Json
from tokenix.cli.status import OK
from tokenix.cli.table import printable, size

if TYPE_CHECKING:
    from tokenix.models.image import ProgramImage


def list_command(*, json: Json = False) -> int:
    """List the models that have a name."""
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
    if json:
        stdout.write_json(rows)
        return OK
    stdout.write(f"{'NAME':<12} {'SIZE':>8}  {'SUMMARY'}\n")
    for row in rows:
        size_bytes = row["size_bytes"]
        shown = f"{size_bytes / 1e6:.0f} MB" if isinstance(size_bytes, int) else "-"
        missing = "" if row["installed"] else " (not installed)"
        stdout.write(f"{row['name']:<12} {shown:>8}  {row['summary']}{missing}\n")
    return OK


def show(
    model: Annotated[str, Parameter(help="Name, .gguf file or Hugging Face directory.")],
    *,
    json: Json = False,
) -> int:
    """Show what is known of a model, without loading it."""
    from tokenix.models.registry import load_image

    image = load_image(model)
    facts = facts_of(image)
    if json:
        stdout.write_json({**facts, "chat_template": image.chat and image.chat.source})
        return OK
    facts["parameters"] = f"{facts['parameters'] / 1e6:.1f}M"
    facts["size_bytes"] = size(image.size_bytes)
    facts["has_chat"] = "yes" if image.chat else "no"
    width = max(map(len, facts))
    stdout.write(
        "".join(f"{name:<{width}}  {printable(str(fact))}\n" for name, fact in facts.items())
    )
    return OK


def facts_of(image: "ProgramImage") -> dict[str, Any]:
    """What `show` says of a model."""
    from tokenix.models.tensor_names import expected_shapes
    from tokenix.syscalls.choices import default_weights

    config = image.config
    kinds = Counter(image.weights.kind(name) for name in image.weights.names())
    return {
        "name": image.name,
        "architecture": config.architecture,
        "parameters": sum(math.prod(shape) for shape in expected_shapes(config).values()),
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "ffn": config.ffn,
        "context_tokens": config.max_context_tokens,
        "vocab_tokens": config.vocab_tokens,
        "eos_tokens": list(config.eos_tokens),
        "quantization": ", ".join(f"{kind} ({n} tensors)" for kind, n in kinds.most_common()),
        "default_weights": default_weights(image),
        "has_chat": image.chat is not None,
        "default_sampling": image.default_sampling,
        "format": image.format,
        "size_bytes": image.size_bytes,
        "fingerprint": image.fingerprint,
        "path": str(image.path),
    }
