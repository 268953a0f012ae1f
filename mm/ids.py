"""The integer names of the machine, as distinct types so that mypy refuses to mix them."""

from typing import NewType

Pid = NewType("Pid", int)
"""A process (one generation request). Counts up from 1 and is never reused."""

Pfn = NewType("Pfn", int)
"""Page frame number: the index of a KV block in device memory."""

Slot = NewType("Slot", int)
"""The index of a page-sized slot in the host tier."""

Block = NewType("Block", int)
"""The index of a page-sized block in the swap file."""

Ticket = NewType("Ticket", int)
"""Names one submitted device command until its completion comes back."""
