"""What the GPUs of a device tell each other in a pass: sums, rows of tensors and drawn tokens,
through torch.

NCCL on GPUs, ordered with the stream that torch has, so that graphs capture it; gloo where torch
is on the CPU. A peer that is gone leaves the others waiting on the GPU for ever: `abort` lets go of
them. Nothing here watches the time, and torch must not either: it would end the process.
"""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Backend = Literal["nccl", "gloo"]


class Peers:
    """One of `count` that meet by a file at `path`; they all must come within `patience_s`.

    Torch looks for the file again when the group is forgotten, at whatever time that is: nothing
    else may ever be at that path, and it must be gone by then (no /proc/self/fd/N).

    Called by the compute thread, by all ranks in the same order. RuntimeError when a peer is gone.
    """

    def __init__(
        self, backend: Backend, path: str, index: int, count: int, patience_s: float, device: Any
    ) -> None:
        from torch import distributed

        self.index = index
        store = distributed.FileStore(path, count)  # type: ignore[attr-defined]
        if backend == "nccl":
            self._group = _nccl(store, index, count, patience_s, device)
        else:
            self._group = _gloo(store, index, count, patience_s)
        self._gathering = distributed.GatherOptions()
        self._gathering.rootRank = 0
        self._sharing = distributed.BroadcastOptions()
        self._sharing.rootRank = 0

    def sum(self, x: "torch.Tensor") -> "torch.Tensor":
        """x, which becomes the sum of all ranks' x."""
        self._group.allreduce([x]).wait()
        return x

    def gather(self, part: "torch.Tensor") -> "torch.Tensor | None":
        """On rank 0 the columns of all ranks' parts side by side; None on others."""
        if self.index:
            self._group.gather([], [part], self._gathering).wait()
            return None
        parts = part.new_empty((self._group.size(), *part.shape))
        self._group.gather([list(parts.unbind(0))], [part], self._gathering).wait()
        return parts.transpose(0, 1).reshape(len(part), -1)

    def share(self, x: "torch.Tensor") -> None:
        """x becomes rank 0's x."""
        self._group.broadcast([x], self._sharing).wait()

    def abort(self) -> None:
        """Fail what is under way and all that comes. Any thread may."""
        self._group.abort()


def _gloo(store: Any, index: int, count: int, patience_s: float) -> Any:
    from torch import distributed

    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=patience_s)
    options._devices = [gloo.create_device(interface="lo")]
    return gloo(store, index, count, options)


def _nccl(store: Any, index: int, count: int, patience_s: float, device: Any) -> Any:
    from torch import distributed

    # Whoever is late is found by `team.py`; torch's own watchdogs end the process.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    nccl: Any = distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=patience_s)
    group = nccl(store, index, count, options)
    group.eager_connect_single_device(device)
    return group
