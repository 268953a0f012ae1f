"""What a rank's process must know to build its part of a device."""

from collections.abc import Callable
from dataclasses import dataclass

from tokenix.drivers.cuda.dense import DenseKind
from tokenix.drivers.cuda.device import MakeDense, MakeKernels
from tokenix.drivers.cuda.matrix import Fp8Use
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
    fp8: Fp8Use
    backend: Backend
    patience_s: float
    meeting: str
    """The path of a file by which all meet; see `Peers`."""
    slots_fd: int
    """Of a file in memory: the host slots."""
    dense_by: MakeDense
    kernels_by: MakeKernels

    @property
    def shard(self) -> Shard:
        return Shard(self.index, self.count)
