"""What options of `boot` may be, for command lines. Cheap to import, unlike `types`."""

from typing import TYPE_CHECKING

from tokenix.drivers.kvkind import KV_KINDS
from tokenix.drivers.weightkind import WEIGHT_KINDS, WeightKind

if TYPE_CHECKING:
    from tokenix.models.image import ProgramImage

__all__ = ["KV_KINDS", "WEIGHT_KINDS", "WeightKind", "default_weights"]


def default_weights(image: "ProgramImage") -> WeightKind | None:
    """What `weights="auto"` is for a model on this machine's processor; None without the cpu
    driver."""
    try:
        from tokenix.drivers.cpu.dense import choose_weights
    except ImportError:
        return None
    return choose_weights("auto", image.weights)
