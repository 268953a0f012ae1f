"""What an option of `boot` may be, for command lines. Cheap to import, unlike `types`."""

from tokenix.drivers.kvkind import KV_KINDS

__all__ = ["KV_KINDS"]
