"""Two machines that will behave alike have one digest: to look at each state only once."""

import io
import pickle
import types
from collections.abc import KeysView
from typing import Any

from tokenix.drivers.sim.faults import FaultPlan
from tokenix.kernel.answers import Rusage
from tokenix.kernel.copies import Copies
from tokenix.kernel.core import Kernel
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.stats import Counters
from tokenix.kernel.swapfile import SwapFile
from tokenix.kernel.trace import TraceRing
from tokenix.mm.evict import IdlePages, Known, Ranking
from tokenix.mm.page import Recount
from tokenix.mm.prefix import PrefixIndex
from tokenix.mm.space import AddressSpace
from tokenix.swap.tier import Tier

TOLD = (TraceRing, Rusage, FaultPlan, Recount, Known, Ranking)
"""What is written for others to read, or says that something is to be counted; decides nothing."""

CODE = (types.FunctionType, types.MethodType, types.BuiltinMethodType, types.LambdaType)

IGNORED: dict[type, frozenset[str]] = {
    PrefixIndex: frozenset({"now_s"}),
    AddressSpace: frozenset({"_recount", "_counts"}),
    Copies: frozenset({"stats"}),
    Tier: frozenset({"_written", "_returned", "_dropped", "_was_read"}),
    SwapFile: frozenset({"sunk_pages"}),
    Kernel: frozenset({"counters"}),
}
"""Fields that count what has been. The caches among them are `check_counts`'s business."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if obj is _name:
            return NotImplemented
        if isinstance(obj, TOLD):
            return _name, (type(obj).__name__,)
        if isinstance(obj, CODE):
            return _name, (obj.__name__,)
        if isinstance(obj, KeysView):
            return list, (list(obj),)
        if isinstance(obj, IdlePages):  # in what order they go, and not when they were used
            return list, ([known.page for known in obj],)
        if isinstance(obj, Counters):
            return _name, ("faulty" if obj.device_faults else "sound",)
        ignored = IGNORED.get(type(obj))
        if ignored is not None:
            state = {name: value for name, value in vars(obj).items() if name not in ignored}
            return _name, (type(obj).__name__,), state
        return NotImplemented


def _name(name: str) -> str:
    return name


def digest(*state: object) -> bytes:
    """Equal only if everything is equal that a decision may depend on, order and sharing too."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(state)
    return out.getvalue()


def check_counts(kernel: Lifecycle) -> None:
    """What address spaces remember of their pages is what there is."""
    for process in kernel.processes.values():
        space = process.space
        resident = [page for page in space.pages if page.pfn is not None]
        alone = [page for page in resident if page.active == (1 if space.active else 0)]
        assert space.missing == len(space.pages) - len(resident)
        assert space.exclusive == (len(alone) if space.active else 0)
        assert space.deep == sum(page.deep for page in space.pages)
        assert space.idle_resident == (0 if space.active else len(alone))
        dirty = [page for page in alone if not page.clean]
        assert space.exclusive_dirty == (len(dirty) if space.active else 0)
