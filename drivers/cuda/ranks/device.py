"""Several GPUs of this host as one device: rank 0 here, the others in processes of their own."""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.dense import Dense, DenseKind
from tokenix.drivers.cuda.device import (
    CudaDevice,
    MakeDense,
    MakeKernels,
    compiled_kernels,
    torch_dense,
)
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.matrix import Fp8Use
from tokenix.drivers.cuda.probe import check_count
from tokenix.drivers.cuda.ranks.lanes import LeadingLanes
from tokenix.drivers.cuda.ranks.messages import forward_of
from tokenix.drivers.cuda.ranks.peers import Backend, Peers
from tokenix.drivers.cuda.ranks.rank import Rank
from tokenix.drivers.cuda.ranks.shard import Shard, ShardWeights, check_shards
from tokenix.drivers.cuda.ranks.spec import MemberSpec
from tokenix.drivers.cuda.ranks.team import RanksLost, Team
from tokenix.drivers.cuda.swap import SwapLanes
from tokenix.drivers.faults import Faults
from tokenix.drivers.intake import Batch
from tokenix.drivers.kvkind import KvKind
from tokenix.drivers.ops import CopyFrame, DeviceFault, Forward, ForwardDone, Poison
from tokenix.drivers.queued import Answer
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights

PATIENCE_S = 60.0
"""A rank that has not done a command for so long is lost: many times what the longest takes."""


def check_ranks(config: ModelConfig, ranks: int) -> ModelConfig:
    """The part of a model that each rank computes. OSError EINVAL if there are no such parts,
    ENODEV if there are too few GPUs."""
    check_shards(config, ranks)
    if ranks > 1:
        check_count(ranks)
    return Shard(0, ranks).config(config)


class ParallelDevice(CudaDevice):
    """Keeps `drivers.device.Device`, as `CudaDevice` does with one GPU; GPUs 0 to `ranks` - 1.

    frames, host_slots: whole pages, of which each GPU has its part. open_weights: makes `weights`
    again in another process (a function at the top of a module, or a partial of one). patience_s:
    from a command to calling a rank lost. backend, faults, dense_by, kernels_by: for tests.
    OSError EINVAL for a model that cannot be divided so, ENODEV for too few GPUs, and what another
    rank has failed with; else as CudaDevice.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        ranks: int,
        open_weights: Callable[[], Weights],
        frames: int,
        host_slots: int,
        page_tokens: int = PAGE_TOKENS,
        kv_dtype: KvKind = "bf16",
        dense: DenseKind = "bf16",
        fp8: Fp8Use = "stored",
        progress: Callable[[str, float], None] | None = None,
        patience_s: float = PATIENCE_S,
        backend: Backend = "nccl",
        faults: Faults | None = None,
        dense_by: MakeDense = torch_dense,
        kernels_by: MakeKernels = compiled_kernels,
    ) -> None:
        part, shard = check_ranks(config, ranks), Shard(0, ranks)
        shape = FrameShape.of(part, page_tokens, kv_dtype)
        with TemporaryDirectory(prefix="tokenix-") as place, _memory_file("slots") as slots:
            meeting = f"{place}/meeting"
            os.ftruncate(slots, max(1, host_slots * ranks * shape.stride_bytes))
            memory = mmap.mmap(slots, 0)
            specs = [
                MemberSpec(
                    index, ranks, config, open_weights, frames, host_slots, page_tokens, kv_dtype,
                    dense, fp8, backend, patience_s, meeting, slots, dense_by, kernels_by,
                )
                for index in range(1, ranks)
            ]  # fmt: skip
            self._team = Team(specs, [slots], patience_s)

            def meet(dense: Dense) -> Peers:
                self._team.meet()
                try:
                    peers = Peers(backend, meeting, 0, ranks, patience_s, dense.device)
                except RuntimeError as error:
                    raise self._team.lose(error) from None
                self._team.guard(peers.abort)
                return peers

            try:
                super().__init__(
                    part, ShardWeights(weights, shard), frames=frames, host_slots=host_slots,
                    page_tokens=page_tokens, kv_dtype=kv_dtype, dense=dense, fp8=fp8,
                    progress=progress, rank=Rank(shard, memory, meet), faults=faults,
                    dense_by=dense_by, kernels_by=kernels_by,
                )  # fmt: skip
            except RanksLost as lost:
                raise OSError(lost.errno, str(lost)) from None
            except BaseException:
                self._team.close()
                raise

    def _open_lanes(self, offset_bytes: int) -> SwapLanes:
        return LeadingLanes(self._driver, self._arena, self._slots, self._computed, self._team)

    def _release(self) -> None:
        self._team.close()
        super()._release()

    # ---- on the compute thread ----

    def _forward(self, command: Forward) -> ForwardDone:
        with self._losing():
            return super()._forward(command)

    def _launch(self, command: Forward) -> Answer:
        with self._losing():
            answer = super()._launch(command)

        def wait() -> ForwardDone | DeviceFault:
            with self._losing():
                return answer()

        return wait

    def _tell(self, command: Forward, batch: Batch) -> Callable[[], None]:
        """Tokens that are known by now are put in; what cannot run here runs nowhere."""
        return self._team.ask(forward_of(command, batch)).wait

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """The others are in the middle of a pass that fails here, or whose end nobody awaits."""
        try:
            yield
        except Exception as error:
            raise self._team.lose(error) from None

    def _copy_frame(self, command: CopyFrame) -> None:
        asked = self._team.ask(command)
        super()._copy_frame(command)
        asked.wait()

    def _poison(self, command: Poison) -> None:
        self._team.tell(command)
        super()._poison(command)


@contextmanager
def _memory_file(name: str) -> Iterator[int]:
    """The descriptor of a file that no directory has, for as long as it is open."""
    fd = os.memfd_create(f"tokenix-{name}")
    try:
        yield fd
    finally:
        os.close(fd)
