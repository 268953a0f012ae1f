"""The driver class over the fake: what is ordered and what is not, memory, errors, arguments."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tokenix.drivers.cuda.arena import FrameShape
from tokenix.drivers.cuda.arguments import Block, unpack
from tokenix.drivers.cuda.driver import LOST, CudaError, OutOfDeviceMemory
from tokenix.drivers.cuda.hostmemory import Staging, pinned_address
from tokenix.drivers.cuda.kernels.abi import OPS, SAMPLE
from tokenix.drivers.cuda.launcher import Launcher
from tokenix.drivers.swapfile import disk_memory
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.fake import twin_kernels

SIZE = 4096
SEEDS = range(12)


class Bench:
    """Device memory, pinned memory and two streams."""

    def __init__(self, driver):
        self.driver = driver
        self.device, self.other = driver.alloc(SIZE), driver.alloc(SIZE)
        self.source, self.found = Staging(driver, SIZE), Staging(driver, SIZE)
        self.source.data[:] = 7
        self.streams = driver.stream(), driver.stream()
        self.event = driver.event()

    def close(self):
        driver = self.driver
        for stream in self.streams:
            driver.destroy_stream(stream)
        driver.destroy_event(self.event)
        self.source.close()
        self.found.close()
        driver.free(self.device)
        driver.free(self.other)


@pytest.fixture
def bench(driver):
    bench = Bench(driver)
    yield bench
    bench.close()


def relay(bench, waits):
    """In on one stream, out on the other; what came out."""
    driver, (first, second) = bench.driver, bench.streams
    bench.found.data[:] = 0
    driver.fill(bench.device, 0, SIZE // 4, first)
    driver.sync(first)
    driver.copy_in(bench.device, bench.source.address, SIZE, first)
    driver.record(bench.event, first)
    if waits:
        driver.wait(second, bench.event)
    driver.copy_out(bench.found.address, bench.device, SIZE, second)
    driver.sync(second)
    driver.sync(first)
    return bench.found.data.copy()


def test_an_event_orders_two_streams(fake, bench):
    for seed in SEEDS:
        fake.draw(seed)
        assert (relay(bench, waits=True) == 7).all(), seed


def test_the_fake_shows_that_a_wait_is_missing(fake, bench):
    """Its own check: without it no test here could fail."""
    wrong = 0
    for seed in SEEDS:
        fake.draw(seed)
        wrong += not (relay(bench, waits=False) == 7).all()
    assert wrong >= len(SEEDS) // 3


def test_nothing_is_done_before_somebody_waits(fake, bench):
    fake.draw(1, eager_percent=0)
    driver, (first, _) = bench.driver, bench.streams
    driver.copy_in(bench.device, bench.source.address, SIZE, first)
    driver.copy_out(bench.found.address, bench.device, SIZE, first)
    driver.record(bench.event, first)
    assert not (bench.found.data == 7).any()
    driver.sync_event(bench.event)
    assert (bench.found.data == 7).all()


def test_memory_that_work_is_queued_for_is_not_freed(fake, bench):
    fake.draw(1, eager_percent=0)
    driver, (first, _) = bench.driver, bench.streams
    driver.copy_in(bench.device, bench.source.address, SIZE, first)
    for free in (lambda: driver.free(bench.device), bench.source.close):
        with pytest.raises(CudaError):
            free()
    driver.sync(first)


def test_only_pinned_memory_is_copied(bench):
    ordinary = ctypes.create_string_buffer(SIZE)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        bench.driver.copy_in(bench.device, ctypes.addressof(ordinary), SIZE, bench.streams[0])


def test_more_than_there_is(fake, driver):
    fake.machine(total_bytes=1 << 20)
    held = driver.alloc(1 << 19)
    with pytest.raises(OutOfDeviceMemory, match=r"OUT_OF_MEMORY \(2\) in cuMemAlloc") as raised:
        driver.alloc((1 << 19) + 1)
    assert not raised.value.lost
    driver.free(held)
    driver.free(driver.alloc(1 << 20))


def test_after_a_fault_everything_fails_and_says_what_to_do(fake, driver):
    bench = Bench(driver)
    fake.fault(700)
    driver.copy_in(bench.device, bench.source.address, SIZE, bench.streams[0])
    for _ in range(2):
        with pytest.raises(CudaError, match=r"ILLEGAL_ADDRESS.*restart it") as raised:
            driver.sync(bench.streams[0])
        assert raised.value.lost


def test_a_failure_of_one_call_is_no_end(fake, bench):
    fake.fail("cuMemcpyHtoDAsync_v2", 1, after=1)
    driver, (first, _) = bench.driver, bench.streams
    driver.copy_in(bench.device, bench.source.address, SIZE, first)
    with pytest.raises(CudaError) as raised:
        driver.copy_in(bench.device, bench.source.address, SIZE, first)
    assert not raised.value.lost
    driver.copy_in(bench.device, bench.source.address, SIZE, first)
    driver.sync(first)


def test_code_that_is_none_is_refused(driver):
    with pytest.raises(CudaError, match="cuModuleLoadData"):
        driver.load(b"broken")


def test_a_launcher_that_cannot_be_made_leaves_no_code(fake, driver):
    stream, shape = driver.stream(), FrameShape.of(rig.TINY, 16, "f32")
    before = fake.handles
    fake.fail("cuModuleGetFunction", 500, after=2)
    with pytest.raises(CudaError, match="cuModuleGetFunction"):
        Launcher(driver, stream, twin_kernels(driver, rig.TINY, shape, "f32"))
    assert fake.handles == before > 0


def test_what_was_not_given_back_ends_with_the_driver(fake, driver):
    fake.draw(1, eager_percent=0)
    bench = Bench(driver)
    driver.copy_in(bench.device, bench.source.address, SIZE, bench.streams[0])
    driver.record(bench.event, bench.streams[0])
    driver.begin_capture(bench.streams[1])
    driver.end_capture(bench.streams[1])
    driver.load(b"twin")
    driver.close()
    assert (fake.used_bytes, fake.pinned_bytes, fake.handles) == (0, 0, 0)


def test_results_after_which_all_is_lost_are_those_of_the_driver(driver):
    from cuda.bindings.driver import CUresult

    names = {CUresult(code).name.removeprefix("CUDA_ERROR_") for code in LOST}
    assert {"ILLEGAL_ADDRESS", "ECC_UNCORRECTABLE", "CONTAINED", "LAUNCH_FAILED"} <= names
    assert not names & {"INVALID_VALUE", "OUT_OF_MEMORY", "NOT_READY", "LAUNCH_OUT_OF_RESOURCES"}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_arguments_are_packed_as_c_has_them(op):
    """Against a ctypes structure of the same members."""
    kinds = {
        "f32": ctypes.c_float, "f64": ctypes.c_double, "i32": ctypes.c_int32,
        "u32": ctypes.c_uint32,
        "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    }  # fmt: skip
    members = [
        (name, ctypes.c_void_p if kind.endswith("*") else kinds[kind]) for name, kind in op.args
    ]
    like = type("Like", (ctypes.Structure,), {"_fields_": members})
    values = {name: 3 * i + 1 for i, (name, _) in enumerate(op.args)}
    block = Block(op, values)
    made = like(**values)
    end = getattr(like, op.args[-1].name)
    assert bytes(made)[: end.offset + end.size] == block._bytes.raw
    assert unpack(op, block._bytes.raw) == values


def test_a_block_is_read_when_the_launch_is_made(fake, driver):
    fake.draw(1, eager_percent=0)
    block = Block(SAMPLE, {arg.name: 1 for arg in SAMPLE.args})
    stream = driver.stream()
    function = driver.function(driver.load(b"twin"), "some")
    with fake.watched() as seen:
        driver.launch(function, (2, 3, 4), 64, 0, block.address, stream)
        block.set(vocab=9)
        driver.launch(function, (1, 1, 1), 64, 0, block.address, stream)
        assert not seen, "a launch does not wait"
        driver.sync(stream)
    assert [(symbol, grid) for symbol, grid, _ in seen] == [
        ("some", (2, 3, 4)), ("some", (1, 1, 1)),
    ]  # fmt: skip
    assert [unpack(SAMPLE, data)["vocab"] for _, _, data in seen] == [1, 9]
    driver.destroy_stream(stream)


def test_a_launch_that_cannot_be_is_refused(driver):
    stream = driver.stream()
    block = Block(SAMPLE, {arg.name: 1 for arg in SAMPLE.args})
    function = driver.function(driver.load(b"twin"), "some")
    for grid, threads in (((0, 1, 1), 64), ((1, 1, 1), 2048), ((1, 70000, 1), 64)):
        with pytest.raises(CudaError, match="cuLaunchKernel"):
            driver.launch(function, grid, threads, 0, block.address, stream)
    driver.destroy_stream(stream)


def test_what_is_captured_runs_when_it_is_replayed(fake, bench):
    driver, (first, _) = bench.driver, bench.streams
    driver.begin_capture(first)
    driver.copy_in(bench.device, bench.source.address, SIZE, first)
    driver.copy_out(bench.found.address, bench.device, SIZE, first)
    graph = driver.end_capture(first)
    driver.sync(first)
    assert not bench.found.data.any()
    for value in (7, 8):
        bench.source.data[:] = value
        driver.replay(graph, first)
        driver.sync(first)
        assert (bench.found.data == value).all()


def test_a_thread_that_has_not_entered_can_do_nothing(driver):
    """Each thread says which context is its own; a closed driver's is nobody's any more."""
    with ThreadPoolExecutor(1) as other:
        with pytest.raises(CudaError, match=r"\(201\) in cuMemAlloc"):
            other.submit(driver.alloc, SIZE).result()
        other.submit(driver.enter).result()
        driver.free(other.submit(driver.alloc, SIZE).result())
    driver.close()
    with pytest.raises(CudaError, match=r"\(201\)"):
        driver.alloc(SIZE)


@pytest.mark.parametrize("spoil", ["alloc", "pin", "upload", "load", "wait"])
def test_what_may_not_be_captured_spoils_the_capture(driver, spoil):
    """Of the thread that captures; others go on."""
    bench = Bench(driver)
    first, second = bench.streams
    memory = disk_memory(SIZE)
    action = {
        "alloc": lambda: driver.alloc(SIZE),
        "pin": lambda: driver.pin(pinned_address(memory), SIZE),
        "upload": lambda: driver.upload(bench.device, bench.source.address, SIZE),
        "load": lambda: driver.load(b"twin"),
        "wait": lambda: driver.sync(second),
    }[spoil]
    driver.begin_capture(first)
    with pytest.raises(CudaError, match=r"\(900\)"):
        action()
    with ThreadPoolExecutor(1, initializer=driver.enter) as other:
        other.submit(driver.sync, second).result()
    with pytest.raises(CudaError, match=r"\(901\) in cuStreamEndCapture"):
        driver.end_capture(first)
    driver.sync(first)
    bench.close()


def test_much_shared_memory_has_to_be_allowed(driver):
    stream, block = driver.stream(), Block(SAMPLE, {arg.name: 1 for arg in SAMPLE.args})
    function = driver.function(driver.load(b"twin"), "some")
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        driver.launch(function, (1, 1, 1), 64, (48 << 10) + 1, block.address, stream)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        driver.allow_shared(function, 1 << 20)
    driver.allow_shared(function, 100 << 10)
    driver.begin_capture(stream)  # of which nothing runs
    driver.launch(function, (1, 1, 1), 64, 100 << 10, block.address, stream)
    driver.end_capture(stream)
    driver.destroy_stream(stream)


def test_memory_is_pinned_once(driver):
    memory = disk_memory(SIZE)
    driver.pin(pinned_address(memory), SIZE)
    with pytest.raises(CudaError, match=r"\(712\)"):
        driver.pin(pinned_address(memory), SIZE)
    driver.unpin(pinned_address(memory))


def test_pinned_memory_is_page_aligned_and_zero(driver):
    staging = Staging(driver, 100)
    assert staging.address % 4096 == 0
    assert staging.data.shape == (100,) and staging.data.dtype == np.uint8
    assert not staging.data.any()
    staging.close()


def test_an_upload_is_there_when_it_returns(fake, driver):
    """The call itself returns when the source is staged, and no stream waits for the rest."""
    source = np.arange(SIZE, dtype=np.uint8)
    for seed in SEEDS:
        fake.draw(seed, eager_percent=0)
        address = driver.alloc(SIZE)
        driver.upload(address, source.ctypes.data, SIZE)
        assert (
            np.frombuffer((ctypes.c_ubyte * SIZE).from_address(address), np.uint8) == source
        ).all()
        driver.free(address)


def test_rows_are_copied_at_their_distance(bench):
    driver, (stream, _) = bench.driver, bench.streams
    driver.fill(bench.device, 0, SIZE // 4, stream)
    driver.copy_in_rows(bench.device + 64, bench.source.address + 128, 32, 3, 1024, stream)
    driver.copy_out(bench.found.address, bench.device, SIZE, stream)
    driver.sync(stream)
    places = [1024 * row + 64 + at for row in range(3) for at in range(32)]
    assert np.flatnonzero(bench.found.data).tolist() == places and set(bench.found.data) == {0, 7}
