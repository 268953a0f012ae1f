"""What a rank's process must know to build its part of a device."""

from collections.abc import Callable
from dataclasses import dataclass

from tokenix.drivers.cuda.dense import DenseKind
from tokenix.drivers.cuda.device import MakeDense, MakeKernels
from tokenix.drivers.cuda.ranks.peers import Backend
from tokenix.drivers.cuda.ranks.shard import Shard
from tokenix.drivers.kvkind import KvKind
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """It is pickled: functions by their names. Sizes are those of the whole device."""

    index: int
    count: int
    config: ModelConfig
    open_weights: Callable[[], Weights]
    frames: int
    host_slots: int
    page_tokens: int
    kv_dtype: KvKind
    dense: DenseKind
    backend: Backend
    patience_s: float
    meeting_fd: int
    """A file in memory by which all meet."""
    slots_fd: int
    """Another one: the host slots."""
    dense_by: MakeDense
    kernels_by: MakeKernels

    @property
    def shard(self) -> Shard:
        return Shard(self.index, self.count)


def path_of(fd: int) -> str:
    """Of a file that this process has open."""
    return f"/proc/self/fd/{fd}"
