"""The CPU as a device: six command queues over one frame arena. See README.md."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from tokenix.drivers.cpu import probe
from tokenix.drivers.cpu.arena import FrameArena, PageShape
from tokenix.drivers.cpu.dense import DenseKind
from tokenix.drivers.cpu.disk import DiskTier
from tokenix.drivers.cpu.faults import Faults
from tokenix.drivers.cpu.images import ImageTier
from tokenix.drivers.cpu.jit import Float32, check_process, get_threads, set_threads
from tokenix.drivers.cpu.queues import CommandQueue
from tokenix.drivers.cpu.sampling import sample_rows
from tokenix.drivers.cpu.slots import HostSlots
from tokenix.drivers.cpu.step import Chunk, ModelStep
from tokenix.drivers.cpu.tables import BlockTables
from tokenix.drivers.device import DeviceInfo
from tokenix.drivers.kvkind import KvKind
from tokenix.drivers.ops import (
    Command,
    Completion,
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    DeviceFault,
    Fetch,
    Forward,
    ForwardDone,
    LoadImage,
    OpenImages,
    PageOut,
    Poison,
    ReadImage,
    Row,
    RowFault,
    Sampled,
    SaveImage,
    Store,
    SwapChanged,
    SwapOff,
    SwapOn,
    UnlinkImage,
)
from tokenix.mm.ids import Pid
from tokenix.models.config import ModelConfig
from tokenix.models.weights import Weights


class CpuDevice:
    """Keeps `drivers.device.Device`.

    frames, host_slots: pages on the device and in the swap tier; page_tokens: a multiple of 16;
    kv_dtype and dense: storage of keys and values, and of weights; threads: None uses all that
    this process may; progress(stage, fraction) is called while loading; faults: tests only.
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
    ) -> None:
        check_process()
        self._arena = FrameArena(PageShape.of(config, page_tokens, kv_dtype), frames)
        self._slots = HostSlots(host_slots, self._arena.shape.frame_bytes)
        self._step = ModelStep(config, weights, self._arena, dense, progress)
        self._tables = BlockTables(frames)
        self._faults = faults or Faults()
        self._disk = DiskTier(self._slots, self._arena.shape.frame_bytes, self._faults)
        self._images = ImageTier(self._slots, self._arena.shape.frame_bytes, self._faults)
        self._ready: deque[Completion] = deque()
        self._wake: Callable[[], None] | None = None
        self._closed = False
        if progress is not None:
            progress("measuring", 0.0)
        measured: Future[DeviceInfo] = Future()

        def start() -> None:
            # On the compute thread: OpenMP keeps a team of threads for each thread that calls it,
            # and with more threads than cores all of them wait by sleeping (45 us a region).
            try:
                set_threads(threads if threads is not None else get_threads())
                measured.set_result(self._measure(config))
            except BaseException as error:
                measured.set_exception(error)

        self._compute = CommandQueue("tokenix-compute", self._run_compute, start)
        try:
            self._info = measured.result()
        except BaseException:
            self._compute.stop()
            raise
        self._out = CommandQueue("tokenix-swap-out", self._run_copy)
        self._in = CommandQueue("tokenix-swap-in", self._run_copy)
        self._store = CommandQueue("tokenix-store", self._run_disk)
        self._fetch = CommandQueue("tokenix-fetch", self._run_disk)
        self._image = CommandQueue("tokenix-image", self._run_image)

    def _measure(self, config: ModelConfig) -> DeviceInfo:
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
        )

    def info(self) -> DeviceInfo:
        return self._info

    def submit(self, command: Command, now_s: float) -> None:
        assert not self._closed, "submit to a closed device"
        match command:
            case CopyOut():
                self._out.put(command)
            case CopyIn():
                self._in.put(command)
            case Store() | SwapOn() | SwapOff():
                self._store.put(command)
            case Fetch():
                self._fetch.put(command)
            case OpenImages() | SaveImage() | ReadImage() | LoadImage() | UnlinkImage():
                self._image.put(command)
            case _:
                self._compute.put(command)

    def poll(self, now_s: float) -> list[Completion]:
        found: list[Completion] = []
        while self._ready:
            found.append(self._ready.popleft())
        return found

    def next_completion_s(self) -> float | None:
        return None

    def set_wake(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            queues = (
                self._compute, self._out, self._in, self._store, self._fetch, self._image,
            )  # fmt: skip
            for commands in queues:
                commands.stop()
            for commands in queues:
                commands.join()
            self._disk.close()
            self._images.close()
            del self._step, self._arena, self._slots, self._disk, self._images

    def _complete(self, completion: Completion) -> None:
        self._ready.append(completion)
        if self._wake is not None:
            self._wake()

    # On the compute thread.

    def _run_compute(self, command: Command) -> None:
        try:
            reason = self._faults.before(command)
            match command:
                case Forward():
                    assert reason is None, reason
                    self._complete(self._forward(command))
                case CopyFrame():
                    assert reason is None, reason
                    self._arena.copy_frame(command.src, command.dst)
                    self._complete(CopyDone(command.ticket))
                case Poison():
                    for pfn in command.frames:
                        self._arena.poison(pfn)
                case _:
                    raise AssertionError(f"{command} is not for the compute queue")
        except Exception as error:
            self._fail(command, f"{type(error).__name__}: {error}")

    def _fail(self, command: Command, reason: str) -> None:
        if isinstance(command, Forward):
            self._complete(DeviceFault(command.ticket, reason))
        elif isinstance(command, CopyFrame):
            self._complete(CopyFailed(command.ticket, (0,), reason))

    def _forward(self, command: Forward) -> ForwardDone:
        """Change the tables, run the rows that can be run, draw their tokens."""
        for pid in command.drop:
            self._tables.drop(pid)
        bad: dict[Pid, str] = {}
        for delta in command.tables:
            wrong = self._tables.apply(delta)
            if wrong is not None:
                bad[delta.pid] = wrong
        rows = command.all_rows()
        pids = [row.pid for row in rows]
        assert len(set(pids)) == len(pids), "two rows of one process in a forward"
        results: list[Sampled | RowFault | None] = []
        for row in rows:
            wrong = bad.get(row.pid) or self._reject(row)
            results.append(RowFault(wrong) if wrong is not None else None)
        good = [row for row, fault in zip(rows, results, strict=True) if fault is None]
        found: list[Float32] | None = [] if command.weigh else None
        chunks = [self._chunk(row) for row in good]
        logits = self._step.forward(self._tables.pages, chunks, found)
        asking = [(row.sample, row.end) for row in good if row.sample is not None]
        drawn = sample_rows(logits, [spec for spec, _ in asking], [end for _, end in asking])
        asked = [i for i, row in enumerate(rows) if results[i] is None and row.sample is not None]
        for i, result in zip(asked, drawn, strict=True):
            results[i] = result
        masses: list[tuple[float, ...]] = [()] * len(rows) if found else []
        for i, mass in zip(asked, found or (), strict=False):
            if isinstance(results[i], Sampled):
                masses[i] = tuple(mass.tolist())
        return ForwardDone(command.ticket, tuple(results), tuple(masses))

    def _chunk(self, row: Row) -> Chunk:
        wanted = None if row.sample is not None else False
        return Chunk(self._tables.row_of(row.pid), row.start, row.tokens, wanted)

    def _reject(self, row: Row) -> str | None:
        """Why a row cannot run; kernels check no bounds, so all are checked here."""
        end = row.end
        covered = self._tables.length(row.pid) * self._arena.shape.page_tokens
        if not row.tokens or row.start < 0:
            return f"pid {row.pid} runs {len(row.tokens)} tokens from position {row.start}"
        if end > covered:
            return f"pid {row.pid} needs {end} positions, its block table covers {covered}"
        if end > self._step.max_position:
            return f"pid {row.pid} passes the context of {self._step.max_position} tokens"
        vocab = self._step.config.vocab_tokens
        if min(row.tokens) < 0 or max(row.tokens) >= vocab:
            return f"pid {row.pid} has a token outside the vocabulary of {vocab}"
        return None

    # On the swap threads.

    def _run_copy(self, command: Command) -> None:
        assert isinstance(command, CopyOut | CopyIn), command
        failed = self._before(command)
        wrong: list[str | None] = [failed] * len(command.pages)
        if failed is None and isinstance(command, CopyIn):
            wrong = self._copy_in(command)
        elif failed is None and isinstance(command, CopyOut):
            wrong = [self._copy_out(page) for page in command.pages]
        reasons = [(i, why) for i, why in enumerate(wrong) if why is not None]
        if reasons:
            bad = tuple(i for i, _ in reasons)
            self._complete(CopyFailed(command.ticket, bad, reasons[0][1]))
        else:
            self._complete(CopyDone(command.ticket))

    def _before(self, command: Command) -> str | None:
        try:
            return self._faults.before(command)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _copy_in(self, command: CopyIn) -> list[str | None]:
        """What went wrong with each page, if anything."""
        try:
            return self._slots.load(command.pages, self._arena)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"] * len(command.pages)

    def _copy_out(self, page: PageOut) -> str | None:
        """What went wrong, if anything."""
        try:
            self._slots.publish(self._arena, page.pfn, page.slot, page.generation)
            self._faults.published(page, self._slots.peek(page.slot))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    # On the store and fetch threads.

    def _run_disk(self, command: Command) -> None:
        assert isinstance(command, Store | Fetch | SwapOn | SwapOff), command
        try:
            reason = self._faults.before(command)
            assert reason is None, reason
            match command:
                case SwapOn() | SwapOff():
                    self._complete(self._disk.change(command))
                    return
                case Store():
                    wrong = self._disk.store(command)
                case Fetch():
                    wrong = self._disk.fetch(command)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(command, SwapOn | SwapOff):
                self._complete(SwapChanged(command.ticket, 0, reason=reason))
                return
            wrong = dict.fromkeys(range(len(command.pages)), reason)
        if wrong:
            bad = tuple(sorted(wrong))
            self._complete(CopyFailed(command.ticket, bad, wrong[bad[0]]))
        else:
            self._complete(CopyDone(command.ticket))

    # On the image thread.

    def _run_image(self, command: Command) -> None:
        assert isinstance(command, OpenImages | SaveImage | ReadImage | LoadImage | UnlinkImage), (
            command
        )
        self._complete(self._images.done(command, self._before(command)))
