"""The CPU as a device: the queues of `drivers/queued.py` over one frame arena. See README.md."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tokenix.drivers.cpu import probe, sampling
from tokenix.drivers.cpu.arena import FrameArena, PageShape
from tokenix.drivers.cpu.chunks import Chunk
from tokenix.drivers.cpu.dense import DenseKind
from tokenix.drivers.cpu.jit import PARALLEL, Float32
from tokenix.drivers.cpu.packcache import PackCache
from tokenix.drivers.cpu.slots import ArenaSlots
from tokenix.drivers.cpu.step import ModelStep
from tokenix.drivers.cpu.team import check_process, get_threads, set_threads
from tokenix.drivers.cpu.touch import Toucher
from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.faults import Faults
from tokenix.drivers.intake import Intake
from tokenix.drivers.kvkind import KvKind
from tokenix.drivers.ops import CopyFrame, CopyIn, Forward, ForwardDone, PageOut, Poison, Row
from tokenix.drivers.queued import QueuedDevice
from tokenix.drivers.tables import BlockTables
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights


class CpuDevice(QueuedDevice):
    """Keeps `drivers.device.Device`.

    frames, host_slots: pages on the device and in the swap tier; page_tokens: a multiple of 16;
    kv_dtype and dense: storage of keys and values, and of weights; threads: None uses all that
    this process may; progress(stage, fraction) is called while loading; faults: tests only;
    keep: where packed weights are kept.
    ValueError for a model that the kernels do not cover.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        frames: int,
        host_slots: int,
        page_tokens: int = 16,
        kv_dtype: KvKind = "f16",
        dense: DenseKind = "f16",
        threads: int | None = None,
        progress: Callable[[str, float], None] | None = None,
        faults: Faults | None = None,
        keep: PackCache | None = None,
    ) -> None:
        check_process()
        self._arena = FrameArena(PageShape.of(config, page_tokens, kv_dtype), frames)
        self._slots = ArenaSlots(host_slots, self._arena.shape.frame_bytes)
        self._toucher = Toucher((self._arena.data, self._slots.peek_first(frames)), PARALLEL.locked)
        try:
            self._step = ModelStep(config, weights, self._arena, dense, progress, keep)
        except BaseException:
            self._toucher.close()
            raise
        self._intake = Intake(
            BlockTables(frames), page_tokens, config.vocab_tokens, self._step.max_position
        )
        self._notes = tuple(keep.notes) if keep is not None else ()
        super().__init__(self._slots, faults)
        if progress is not None:
            progress("measuring", 0.0)
        measured: Future[DeviceInfo] = Future()

        def start() -> None:
            # On the compute thread, whose passes the number is for.
            try:
                set_threads(threads if threads is not None else get_threads())
                measured.set_result(self._measure(config))
            except BaseException as error:
                measured.set_exception(error)

        self._open(start)
        try:
            self._info = measured.result()
        except BaseException:
            self.close()
            raise

    def _measure(self, config: ModelConfig) -> DeviceInfo:
        sampling.prepare()
        rates = probe.measure(self._step, self._arena, self._slots)
        return DeviceInfo(
            name="cpu",
            frames=self._arena.frames,
            page_tokens=self._arena.shape.page_tokens,
            frame_bytes=self._arena.shape.frame_bytes,
            host_slots=self._slots.slots,
            vocab_tokens=config.vocab_tokens,
            max_context_tokens=self._step.max_position,
            step_s=rates.step_s,
            prefill_tokens_per_s=rates.prefill_tokens_per_s,
            copy_in_s_per_page=rates.copy_in_s_per_page,
            copy_out_s_per_page=rates.copy_out_s_per_page,
            notes=self._notes,
        )

    def _release(self) -> None:
        self._toucher.close()
        del self._step, self._arena, self._slots, self._disk, self._images

    # On the compute thread.

    def _forward(self, command: Forward) -> ForwardDone:
        """Change the tables, run the rows that can be run, draw their tokens."""
        batch = self._intake.take(command)
        good = batch.good()
        found: list[Float32] | None = [] if command.weigh else None
        chunks = [self._chunk(row) for row in good]
        logits = self._step.forward(self._intake.tables.pages, chunks, found)
        asking = [(row.sample, row.end) for row in good if row.sample is not None]
        drawn = sampling.sample_rows(
            logits.rows, [spec for spec, _ in asking], [end for _, end in asking], logits.best
        )
        masses = [tuple(mass.tolist()) for mass in found or ()]
        return batch.done(command, drawn, masses)

    def _chunk(self, row: Row) -> Chunk:
        wanted = None if row.sample is not None else False
        return Chunk(self._intake.tables.row_of(row.pid), row.start, row.tokens, wanted)

    def _copy_frame(self, command: CopyFrame) -> None:
        self._arena.copy_frame(command.src, command.dst)

    def _poison(self, command: Poison) -> None:
        for pfn in command.frames:
            self._arena.poison(pfn)

    # On the swap threads.

    def _copy_in(self, command: CopyIn) -> list[str | None]:
        return self._slots.load(command.pages, self._arena)

    def _copy_out(self, pages: Sequence[PageOut]) -> list[str | None]:
        return [self._publish(page) for page in pages]

    def _publish(self, page: PageOut) -> str | None:
        """What went wrong, if anything."""
        try:
            self._slots.publish(self._arena, page.pfn, page.slot, page.generation)
            self._faults.published(page, self._slots.peek(page.slot))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None
