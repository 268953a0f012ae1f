"""A GPU as a device: the queues of `drivers/queued.py` over one context. See README.md."""

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from tokenix.drivers.cpu.checksum import checksum
from tokenix.drivers.cuda import rates
from tokenix.drivers.cuda.arena import FrameArena, FrameShape
from tokenix.drivers.cuda.arrival import Arrival
from tokenix.drivers.cuda.buffers import Inputs
from tokenix.drivers.cuda.dense import Dense, DenseKind, TorchDense
from tokenix.drivers.cuda.devicetables import DeviceTables
from tokenix.drivers.cuda.drawing import Drawing, Undrawn
from tokenix.drivers.cuda.driver import CudaDriver, CudaError, OutOfDeviceMemory
from tokenix.drivers.cuda.fence import Fence
from tokenix.drivers.cuda.hostmemory import pinned_address
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.kernels.registry import Shape
from tokenix.drivers.cuda.launcher import Kernel, Launcher
from tokenix.drivers.cuda.layers import Layers
from tokenix.drivers.cuda.matrix import Fp8Use, choose_fp8
from tokenix.drivers.cuda.passes import Pass
from tokenix.drivers.cuda.ranks.rank import ALONE, Rank
from tokenix.drivers.cuda.step import MAX_PASS_TOKENS, MAX_ROWS, ModelStep
from tokenix.drivers.cuda.swap import SwapLanes
from tokenix.drivers.cuda.trial import choose_kernels
from tokenix.drivers.cuda.weights import DeviceWeights
from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.faults import Faults
from tokenix.drivers.intake import Batch, Intake
from tokenix.drivers.kvkind import KvKind
from tokenix.drivers.ops import (
    Command,
    Completion,
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    Forward,
    ForwardDone,
    PageOut,
    Poison,
    Row,
    TableDelta,
)
from tokenix.drivers.queued import Answer, QueuedDevice
from tokenix.drivers.slots import HostSlots
from tokenix.mm.ids import Ticket
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights

SPARE_WORDS = 16 << 10
"""Room for changes of block tables in a step, in pages; what is more waits for the stream."""

MakeDense = Callable[[CudaDriver, Any], Dense]
MakeKernels = Callable[[CudaDriver, ModelConfig, FrameShape, DenseKind], Mapping[str, Kernel]]


def compiled_kernels(
    driver: CudaDriver, config: ModelConfig, shape: FrameShape, kind: DenseKind
) -> Mapping[str, Kernel]:
    """Kernels of the registry, the quickest here of each op, compiled now or kept from another
    time. OSError ENODEV if they cannot be compiled here."""
    try:
        return choose_kernels(driver, _kernel_shape(config, shape, kind))
    except CudaError:
        raise
    except RuntimeError as error:
        raise OSError(errno.ENODEV, f"{error}; boot with driver='cpu'") from None


def _kernel_shape(config: ModelConfig, shape: FrameShape, kind: DenseKind) -> Shape:
    """ValueError if there are no kernels for it."""
    return Shape(
        kv=shape.page.kind,
        x=kind,
        heads=config.heads,
        kv_heads=config.kv_heads,
        dim=config.head_dim,
        bias=config.qkv_bias,
        norm=config.qk_norm,
    )


def torch_dense(driver: CudaDriver, stream: Any) -> Dense:
    return TorchDense(driver.gpu.ordinal, stream)


class CudaDevice(QueuedDevice):
    """Keeps `drivers.device.Device`.

    frames, host_slots: pages on the GPU and in pinned host memory; kv_dtype and dense: storage of
    keys and values, and of weights and activations; fp8: which weights are in 8 bits, if the GPU
    multiplies those; progress(stage, fraction) is called while loading; rank: where config and
    weights are a shard's (`ranks/`); faults, dense_by, kernels_by: for tests.
    ValueError for a model that the kernels do not cover; OSError ENODEV without a usable GPU;
    MemoryError for what does not fit.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        frames: int,
        host_slots: int,
        page_tokens: int = PAGE_TOKENS,
        kv_dtype: KvKind = "bf16",
        dense: DenseKind = "bf16",
        fp8: Fp8Use = "stored",
        ordinal: int = 0,
        progress: Callable[[str, float], None] | None = None,
        rank: Rank = ALONE,
        faults: Faults | None = None,
        dense_by: MakeDense = torch_dense,
        kernels_by: MakeKernels = compiled_kernels,
    ) -> None:
        shape = FrameShape.of(config, page_tokens, kv_dtype)
        _kernel_shape(config, shape, dense)
        self._driver = CudaDriver(ordinal)
        self._rank = rank
        self._fp8, note = choose_fp8(fp8, weights, self._driver.gpu.capability, dense)
        self._notes = (note,) if note else ()
        page_bytes = rank.shard.count * shape.stride_bytes
        self._slots = HostSlots(host_slots, page_bytes, checksum, rank.memory)
        self._arrival: Arrival | None = None
        """The load by layers that was submitted last."""
        self._beside: dict[Ticket, Arrival] = {}
        """By forward that was not queued yet, the load that it runs beside."""
        self._parts = contextlib.ExitStack()
        self._parts.callback(self._driver.close)
        super().__init__(self._slots, faults)
        opened: Future[DeviceInfo] = Future()

        def start() -> None:
            # On the compute thread: torch has a current stream for each thread.
            try:
                self._build(config, weights, shape, frames, dense, progress, dense_by, kernels_by)
                if progress is not None:
                    progress("measuring", 0.0)
                opened.set_result(self._measure(config))
            except BaseException as error:
                opened.set_exception(_as_memory_error(error))

        self._open(start)
        try:
            self._info = opened.result()
        except BaseException:
            self.close()
            raise

    def _build(
        self,
        config: ModelConfig,
        weights: Weights,
        shape: FrameShape,
        frames: int,
        kind: DenseKind,
        progress: Callable[[str, float], None] | None,
        dense_by: MakeDense,
        kernels_by: MakeKernels,
    ) -> None:
        """Take memory, load kernels and weights. What was taken is given back by `_release`."""
        driver, later = self._driver, self._parts.callback
        driver.enter()
        self._stream = driver.stream()
        later(driver.destroy_stream, self._stream)
        dense = dense_by(driver, self._stream)
        dense.enter()
        launcher = Launcher(driver, self._stream, kernels_by(driver, config, shape, kind))
        later(launcher.close)
        max_position = min(config.max_context_tokens, frames * PAGE_TOKENS)
        self._arena = FrameArena(driver, shape, frames)
        later(self._arena.close)
        self._computed = Fence(driver, self._stream)
        self._last: Pass | None = None
        """The forward that was queued last."""
        later(self._computed.close)
        if self._slots.slots:
            memory = self._slots.memory
            driver.pin(pinned_address(memory), len(memory))
            later(driver.unpin, pinned_address(memory))
        self._lanes = self._open_lanes(self._rank.shard.index * shape.stride_bytes)
        later(self._lanes.close)
        self._tables = DeviceTables(driver, frames, -(-max_position // PAGE_TOKENS))
        later(self._tables.close)
        self._intake = Intake(self._tables.host, PAGE_TOKENS, config.vocab_tokens, max_position)
        placed = DeviceWeights(
            config, weights, dense, kind, max_position, progress, self._rank.shard, self._fp8
        )
        peers = None if self._rank.meet is None else self._rank.meet(dense)
        spare = max(SPARE_WORDS, self._tables.max_pages)
        self._inputs = Inputs(driver, dense, MAX_PASS_TOKENS, MAX_ROWS, spare)
        later(self._inputs.close)
        self._layers = Layers(
            driver, dense, launcher, config, placed, self._arena, self._tables, self._inputs,
            MAX_PASS_TOKENS, MAX_ROWS, max_position, peers,
        )  # fmt: skip
        later(self._layers.close)
        drawing: Drawing | Undrawn
        if self._rank.shard.index > 0:
            drawing = Undrawn(driver, self._stream)
        else:
            logits = self._layers.buffers.address("logits")
            drawing = Drawing(
                driver, launcher, self._inputs, logits, self._layers.buffers.address("drawn"),
                MAX_ROWS, config.vocab_tokens,
            )  # fmt: skip
        later(drawing.close)
        self._step = ModelStep(dense, launcher, self._tables, self._inputs, self._layers, drawing)
        later(driver.sync, self._stream)  # there may be a forward that nobody has waited for

    def _open_lanes(self, offset_bytes: int) -> SwapLanes:
        return SwapLanes(self._driver, self._arena, self._slots, self._computed, offset_bytes)

    def _find_rates(self) -> rates.Rates:
        def forward(tables: tuple[TableDelta, ...], rows: tuple[Row, ...]) -> None:
            self._forward(Forward(Ticket(0), rows, tables))

        frames, slots, context = self._arena.frames, self._slots.slots, self._intake.max_position
        found = rates.measure(forward, self._lanes, frames, slots, context)
        self._forward(Forward(Ticket(0), (), (), (rates.NOBODY,)))
        return found

    def _measure(self, config: ModelConfig) -> DeviceInfo:
        found = self._find_rates()
        return DeviceInfo(
            name="cuda",
            frames=self._arena.frames,
            page_tokens=PAGE_TOKENS,
            frame_bytes=self._rank.shard.count * self._arena.shape.frame_bytes,
            host_slots=self._slots.slots,
            vocab_tokens=config.vocab_tokens,
            max_context_tokens=self._intake.max_position,
            step_s=found.step_s,
            prefill_tokens_per_s=found.prefill_tokens_per_s,
            copy_in_s_per_page=found.copy_in_s_per_page,
            copy_out_s_per_page=found.copy_out_s_per_page,
            notes=self._notes,
            depth=2,
            covers_loads=self._rank.shard.count == 1,
        )

    def _release(self) -> None:
        """Of a lost GPU nothing can be given back; the end of the process does that."""
        with contextlib.suppress(CudaError):
            self._driver.enter()
        with contextlib.suppress(CudaError):
            self._parts.close()

    # ---- on any thread ----

    def submit(self, command: Command, now_s: float) -> None:
        if isinstance(command, CopyIn) and command.by_layers:
            self._arrival = Arrival(self._driver, command, self._arena.shape.layers)
        elif isinstance(command, Forward) and command.beside is not None:
            assert self._arrival is not None and self._arrival.ticket == command.beside
            self._beside[command.ticket] = self._arrival
        super().submit(command, now_s)

    def _complete(self, completion: Completion) -> None:
        arrival = self._arrival
        super()._complete(completion)
        if arrival is not None and completion.ticket == arrival.ticket:
            assert isinstance(completion, CopyDone | CopyFailed)
            arrival.tell(completion.bad if isinstance(completion, CopyFailed) else ())

    # ---- on the compute thread ----

    def _forward(self, command: Forward) -> ForwardDone:
        return self._queue(command).done()

    def _launch(self, command: Forward) -> Answer:
        queued = self._queue(command)

        def answer() -> ForwardDone:
            with self._all_or_quiet():
                return queued.done()

        return answer

    @contextlib.contextmanager
    def _all_or_quiet(self) -> Iterator[None]:
        """What fails inside has nothing to run afterwards: its frames are free for others then."""
        try:
            yield
        except BaseException:
            self._driver.sync(self._stream)
            raise

    def _tell(self, command: Forward, batch: Batch) -> Callable[[], None]:
        """Let other ranks run it too. What is returned waits for them."""
        return _nobody

    def _queue(self, command: Forward) -> Pass:
        """Change the tables, queue the rows that can be run and the drawing of their tokens."""
        before, self._last = self._last, None
        if before is not None and not (before.sure and len(command.all_rows()) <= MAX_ROWS):
            before.done()
        # Other ranks than the first never know tokens of their own device.
        running = before is not None and (before.is_running or self._rank.shard.index > 0)
        batch = self._intake.take(command, running)
        good, beside = batch.good(), self._beside.pop(command.ticket, None)
        spoiled = _find_none
        if beside is not None:
            readers = beside.find_readers(batch, self._tables.host, PAGE_TOKENS)
            spoiled = partial(beside.find_spoiled, readers)
        with self._all_or_quiet():
            others = self._tell(command, batch)
            if self._tables.update(command.tables, self._inputs, self._stream):
                self._layers.find_tables()
                self._step.forget_graphs()
            take = self._step.launch(good, before.places if before is not None else {}, beside)
        self._last = Pass(command, batch, take, others, self._step.is_sure(good), spoiled)
        return self._last

    def _copy_frame(self, command: CopyFrame) -> None:
        """Queued, not done: `_computed` holds back what uses either frame next."""
        source, to = self._arena.at(command.src), self._arena.at(command.dst)
        self._driver.copy(to, source, self._arena.shape.stride_bytes, self._stream)
        self._computed.rise()

    def _poison(self, command: Poison) -> None:
        shape = self._arena.shape
        for pfn in command.frames:
            words = shape.stride_bytes // 4
            self._driver.fill(self._arena.at(pfn), shape.poison, words, self._stream)
        self._computed.rise()

    # ---- on the swap threads ----

    def _copy_out(self, pages: Sequence[PageOut]) -> list[str | None]:
        self._driver.enter()
        wrong = self._lanes.publish(pages)
        for page, why in zip(pages, wrong, strict=True):
            if why is None:
                self._faults.published(page, self._slots.peek(page.slot))
        return wrong

    def _copy_in(self, command: CopyIn) -> list[str | None]:
        self._driver.enter()
        if not command.by_layers:
            return self._lanes.load(command.pages)
        assert self._arrival is not None and self._arrival.ticket == command.ticket
        return self._lanes.load_by_layers(command.pages, self._arrival)


def _find_none() -> Sequence[int]:
    """Who runs beside no load has read what is there."""
    return ()


def _nobody() -> None:
    """Who is alone waits for nobody."""


def _as_memory_error(error: BaseException) -> BaseException:
    """What our own allocations and torch's raise where the GPU is too small, as one kind."""
    import torch

    if isinstance(error, OutOfDeviceMemory | torch.OutOfMemoryError):
        return MemoryError(str(error).split("\n")[0])
    return error
