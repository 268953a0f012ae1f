"""What options of `boot` may be, for command lines. Cheap to import, unlike `types`."""

from tokenix.drivers.kvkind import KV_KINDS
from tokenix.drivers.weightkind import WEIGHT_KINDS, WeightKind

__all__ = ["KV_KINDS", "WEIGHT_KINDS", "WeightKind"]
