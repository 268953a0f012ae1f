"""What a wheel brings: machine code of the kernels of models that many run, so that a machine with
a GPU needs no compiler for them. All else is compiled when it is used first.

    python -m tokenix.drivers.cuda.kernels.shipping [folder]        (`make cuda-aot`)
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenix.drivers.cuda.kernels.build import Arch
from tokenix.drivers.cuda.kernels.cubins import SHIPPED, file_name, read_cubin, write_cubin
from tokenix.drivers.cuda.kernels.registry import Recipe, Shape, find_recipes
from tokenix.drivers.kvkind import KvKind

ARCHS: tuple[Arch, ...] = ((8, 0), (9, 0))
"""Ampere, whose code Ada runs too, and Hopper."""

PAGES: tuple[KvKind, ...] = ("f16", "bf16")
"""Of keys and values: what `boot` takes where nobody says, and what models are trained in."""

SHAPES = tuple(
    Shape(kv, "bf16", group * kv_heads, kv_heads, dim, bias, norm)
    for kv in PAGES
    for group, kv_heads, dim, bias, norm in (
        (4, 8, 128, False, False),  # Llama 3 8B, Mistral 7B
        (8, 8, 128, False, False),  # Llama 3 70B
        (3, 8, 128, False, False),  # Llama 3.2 3B
        (4, 8, 64, False, False),  # Llama 3.2 1B
        (3, 3, 64, False, False),  # SmolLM2 135M, 360M
        (1, 32, 64, False, False),  # SmolLM2 1.7B
        (7, 2, 64, True, False),  # Qwen2.5 0.5B
        (6, 2, 128, True, False),  # 1.5B
        (8, 2, 128, True, False),  # 3B, 72B
        (7, 4, 128, True, False),  # 7B
        (5, 8, 128, True, False),  # 14B, 32B
        (2, 8, 128, False, True),  # Qwen3 0.6B, 1.7B
        (4, 8, 128, False, True),  # 4B, 8B
        (5, 8, 128, False, True),  # 14B
        (8, 8, 128, False, True),  # 32B
    )
)


def list_recipes(
    shapes: Iterable[Shape] = SHAPES, archs: Sequence[Arch] = ARCHS
) -> Iterator[tuple[str, Recipe, Arch]]:
    """(file name, recipe, architecture) of all that is shipped, each once."""
    seen: set[str] = set()
    for shape in shapes:
        for recipe in (recipe for recipes in find_recipes(shape).values() for recipe in recipes):
            for arch in archs:
                name = file_name(recipe.name, recipe.variant, arch)
                if name not in seen:
                    seen.add(name)
                    yield name, recipe, arch


def ship(folder: Path, items: Iterable[tuple[str, Recipe, Arch]]) -> tuple[int, int]:
    """Compile into `folder` what is not there, and remove from it what is not shipped (any more).
    (Files, files that are new). RuntimeError, with the compiler's words, if it refuses one."""
    wanted: set[str] = set()
    new = 0
    for name, recipe, arch in items:
        wanted.add(name)
        if read_cubin(folder / name) is None:
            write_cubin(folder / name, recipe.compile(arch))
            new += 1
    for path in folder.glob("*"):
        if path.name not in wanted:
            path.unlink()
    return len(wanted), new


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED
    count, fresh = ship(where, list_recipes())
    size = sum(path.stat().st_size for path in where.glob("*.cubin"))
    sys.stdout.write(f"{count} kernels, {fresh} compiled now, {size >> 10} KiB in {where}\n")
