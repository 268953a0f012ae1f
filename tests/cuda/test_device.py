"""The device on the fake GPU: faults of a process and of the GPU, memory, what is given back."""

import pytest

from tokenix.drivers.cuda.device import CudaDevice
from tokenix.drivers.cuda.devicetables import DeviceTables
from tokenix.drivers.cuda.driver import CudaDriver, CudaError
from tokenix.drivers.cuda.hostmemory import pinned_address
from tokenix.drivers.ops import (
    CopyDone,
    CopyFailed,
    CopyFrame,
    CopyIn,
    CopyOut,
    DeviceFault,
    Forward,
    ForwardDone,
    PageIn,
    PageOut,
    Poison,
    RowFault,
    Sampled,
    TableDelta,
)
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.bench import CudaBench
from tokenix.tests.device.bench import row


@pytest.fixture
def bench(fake):
    bench = CudaBench()
    yield bench
    bench.close()


def test_info_is_that_of_the_model(bench):
    info = bench.device.info()
    assert (info.name, info.frames, info.host_slots, info.page_tokens) == ("cuda", 32, 16, 16)
    assert info.frame_bytes == 2 * 2 * 1 * 16 * 64 * 4
    assert (info.vocab_tokens, info.max_context_tokens) == (256, 512)


def test_all_memory_is_given_back(fake):
    assert fake.used_bytes == 0
    bench = CudaBench()
    assert fake.used_bytes > 32 * bench.device.info().frame_bytes
    assert fake.pinned_bytes >= 16 * bench.device.info().frame_bytes
    bench.draw(row(1, [1, 2, 3]), tables=(TableDelta(1, 0, (0,)),))
    bench.device.submit(Forward(99, (row(1, [4], 3),)), 0.0)
    bench.close()
    assert (fake.used_bytes, fake.pinned_bytes, fake.handles) == (0, 0, 0)


def test_a_page_is_one_run_of_bytes_of_all_layers(bench):
    """K and V of 16 tokens in each layer, in the frame that the table names and in no other."""
    arena, size = bench.device._arena, bench.device.info().frame_bytes
    assert arena.at(9) - arena.at(8) == arena.shape.stride_bytes >= size
    bench.do(Forward, ())
    for pfn in range(32):
        bench.frame(pfn)[:] = 0xA5
    bench.draw(row(1, range(20)), tables=(TableDelta(1, 0, (8, 3)),))
    assert not (bench.frame(8).view("u4") == 0xA5A5A5A5).any()
    parts = bench.frame(3).view("u4").reshape(2 * 2, 16, 64)  # layers, K and V; tokens; numbers
    written = (parts != 0xA5A5A5A5).all(2)
    assert written[:, :4].all() and (parts[:, 4:] == 0xA5A5A5A5).all()
    for pfn in set(range(32)) - {3, 8}:
        assert (bench.frame(pfn) == 0xA5).all(), pfn


def test_host_slots_are_pinned_as_one(fake, monkeypatch):
    """And left to the machine again, in one piece."""
    calls = []
    for name in ("pin", "unpin"):
        plain = getattr(CudaDriver, name)

        def noted(driver, *args, name=name, plain=plain):
            calls.append((name, *args))
            plain(driver, *args)

        monkeypatch.setattr(CudaDriver, name, noted)
    bench = CudaBench()
    slots = bench.device._slots
    address = pinned_address(slots.memory)
    assert ("pin", address, len(slots.memory)) in calls
    assert len(slots.memory) == 16 * slots.padded_bytes
    bench.close()
    assert [call for call in calls if call[1] == address][1:] == [("unpin", address)]


@pytest.mark.parametrize(
    "call",
    [
        "cuMemAlloc_v2", "cuMemHostRegister_v2", "cuStreamCreate", "cuEventCreate",
        "cuModuleLoadData", "cuModuleGetFunction", "cuMemcpyHtoD_v2",
    ],
)  # fmt: skip
def test_a_device_that_cannot_be_opened_leaves_nothing(fake, call):
    """Whichever call of that name fails."""
    for after in range(30):
        fake.reset()
        fake.fail(call, 1, after)
        try:
            device = rig.device()
        except CudaError as error:
            assert call.removesuffix("_v2") in str(error)
            assert (fake.used_bytes, fake.pinned_bytes, fake.handles) == (0, 0, 0), after
        else:
            device.close()
            break
    assert 0 < after < 29


@pytest.mark.parametrize("total_bytes", [1 << 12, 1 << 20, 6 << 20])
def test_what_does_not_fit_leaves_nothing(fake, total_bytes):
    fake.machine(total_bytes=total_bytes)
    with pytest.raises(MemoryError, match="OUT_OF_MEMORY"):
        rig.device(frames=4096)
    assert (fake.used_bytes, fake.pinned_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"page_tokens": 32}, "pages of 16 tokens"),
        ({"config": {"head_dim": 48}}, "head dim of 48 is not supported on GPUs; 64, 80"),
        ({"config": {"heads": 34}}, "1 to 16 for each are"),
    ],
)
def test_a_model_without_kernels_is_refused(fake, options, words):
    from dataclasses import replace

    config = replace(rig.TINY, **options.pop("config", {}))
    with pytest.raises(ValueError, match=words):
        CudaDevice(config, None, frames=8, host_slots=0, kernels_by=None, **options)


COMMANDS = [
    (Forward, (row(1, range(20)),), (TableDelta(1, 0, (3, 4)),)),
    (Forward, (row(1, [5], 20),)),
    (CopyFrame, 3, 9),
    (CopyOut, (PageOut(3, 0, 1), PageOut(7, 1, 1))),
    (CopyIn, (PageIn(0, 1, 12), PageIn(1, 1, 14))),
]
"""In this order: a prompt, a decode from a graph, and what happens to pages."""


def calls_of(commands):
    """What each calls of the driver API, and what comes of it."""
    bench, calls = CudaBench(), []
    driver = bench.device._driver
    plain = driver._check
    driver._check = lambda call, *args: (calls.append(call), plain(call, *args))[1]
    found = []
    for command in commands:
        calls.clear()
        found.append((bench.do(*command), [call for call in calls if call != "cuCtxSetCurrent"]))
    bench.close()
    return found


@pytest.mark.parametrize("at", range(len(COMMANDS)))
def test_whichever_call_fails_its_command_fails_and_no_other(fake, at):
    wanted, calls = calls_of(COMMANDS[: at + 1])[-1]
    assert len(calls) >= 2
    for n, call in enumerate(calls):
        fake.draw(1)
        bench = CudaBench()
        for command in COMMANDS[:at]:
            bench.do(*command)
        fake.fail(fake.symbol(call), 1, after=calls[:n].count(call))
        failed = bench.do(*COMMANDS[at])
        assert isinstance(failed, DeviceFault if COMMANDS[at][0] is Forward else CopyFailed), call
        assert f"INVALID_VALUE (1) in {call}" in failed.reason and "lost" not in failed.reason
        again = bench.do(*COMMANDS[at])
        assert type(again) is type(wanted), call
        if isinstance(again, ForwardDone):
            assert again.results == wanted.results, call
        bench.close()
        assert (fake.used_bytes, fake.pinned_bytes, fake.handles) == (0, 0, 0), call


def test_nothing_of_a_failed_pass_runs_later(fake):
    """Its frames are free for others when it is told: whichever call of it has failed."""
    prompt = COMMANDS[0]
    ((_, calls),) = calls_of([prompt])
    for n, call in enumerate(calls):
        bench = CudaBench(seed=n, eager_percent=0)
        bench.do(Forward, ())
        bench.frame(3)[:] = 0x33
        bench.do(CopyOut, (PageOut(3, 0, 1),))
        fake.fail(fake.symbol(call), 1, after=calls[:n].count(call))
        assert isinstance(bench.do(*prompt), DeviceFault)
        bench.do(CopyIn, (PageIn(0, 1, 3),))
        bench.do(Forward, ())
        assert (bench.frame(3) == 0x33).all(), (n, call)
        bench.close()


def test_a_lost_gpu_fails_all_commands_and_hangs_none(fake):
    for code, after in ((700, 5), (719, 0), (700, 12)):
        bench = CudaBench()
        tables = (TableDelta(1, 0, (3, 4)),)
        fake.fault(code, after)
        fault = bench.do(Forward, (row(1, range(20)),), tables)
        assert isinstance(fault, DeviceFault)
        assert "the GPU is lost to this process: restart it" in fault.reason
        assert isinstance(bench.do(Forward, (row(1, [1], 20),)), DeviceFault)
        assert isinstance(bench.do(CopyFrame, 1, 2), CopyFailed)
        failed = bench.do(CopyOut, (PageOut(1, 1, 1), PageOut(2, 2, 1)))
        assert failed.bad == (0, 1) and "lost" in failed.reason
        bench.device.close()
        fake.reset()


def test_a_lost_gpu_in_a_copy_is_a_failed_copy(fake):
    bench = CudaBench(eager_percent=0)
    fake.fault(700)
    failed = bench.do(CopyOut, (PageOut(1, 1, 1),))
    assert isinstance(failed, CopyFailed) and "ILLEGAL_ADDRESS" in failed.reason
    bench.device.close()
    fake.reset()


@pytest.mark.parametrize(
    ("bad", "delta", "word"),
    [
        (row(2, [1] * 17), TableDelta(2, 0, (5,)), "block table covers 16"),
        (row(2, [1]), None, "block table covers 0"),
        (row(2, [1]), TableDelta(2, 0, (32,)), "names frame 32"),
        (row(2, [1]), TableDelta(2, 1, (5,)), "keeps 1 pages of 0"),
        (row(2, [1], 512), TableDelta(2, 0, (5,) * 33), "passes the context of 512"),
        (row(2, [256]), TableDelta(2, 0, (5,)), "outside the vocabulary of 256"),
    ],
)
def test_an_impossible_row_fails_alone(bench, bad, delta, word):
    good = row(1, range(20))
    tables = (TableDelta(1, 0, (3, 4)), *([delta] if delta else []))
    (alone,) = bench.draw(good, tables=tables[:1])
    fault, drawn = bench.draw(bad, good, tables=tables)
    assert isinstance(fault, RowFault) and word in fault.reason
    assert drawn == alone


def test_numbers_that_are_none_are_a_fault_of_their_row(bench):
    tables = (TableDelta(1, 0, (3, 4)), TableDelta(2, 0, (5, 6)))
    drawn = bench.draw(row(1, range(20)), row(2, range(20)), tables=tables)
    bench.device.submit(Poison((3,)), 0.0)
    results = bench.draw(row(1, [7], 20), row(2, [7], 20))
    assert isinstance(results[0], RowFault) and "not finite" in results[0].reason
    assert isinstance(results[1], Sampled)
    assert bench.draw(row(1, range(20)), row(2, range(20))) == drawn


def test_more_processes_than_the_tables_had_room_for(bench):
    """They move to a larger place; what was captured with the old one is forgotten."""
    one = (TableDelta(1, 0, (0,)),)
    first = bench.draw(row(1, range(10)), tables=one)
    again = [bench.draw(row(1, [9], 9)) for _ in range(3)]
    last_one = DeviceTables.FIRST_SLOTS + 9
    many = tuple(TableDelta(pid, 0, (pid % 30 + 1,)) for pid in range(2, last_one + 1))
    assert isinstance(bench.do(Forward, (), many), ForwardDone)
    assert bench.draw(row(1, [9], 9)) == again[-1] == first
    last = bench.draw(row(last_one, range(10)))
    assert last == first
    assert bench.draw(row(last_one, [9], 9)) == first


def test_a_table_that_changes_is_followed(bench):
    """Pages moved, grown and cut: the device reads where the newest delta says."""
    tokens = list(range(40))
    drawn = bench.draw(row(1, tokens), tables=(TableDelta(1, 0, (3, 4, 5)),))
    for source, target in ((3, 13), (4, 14), (5, 15)):
        assert isinstance(bench.do(CopyFrame, source, target), CopyDone)
    bench.device.submit(Poison((3, 4, 5)), 0.0)
    assert bench.draw(row(1, [39], 39), tables=(TableDelta(1, 0, (13, 14, 15)),)) == drawn
    bench.device.submit(Poison((13,)), 0.0)
    assert isinstance(bench.draw(row(1, [39], 39))[0], RowFault)
