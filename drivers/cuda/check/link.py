"""The link between host and GPU, and what a launch costs."""

import time
from collections.abc import Callable
from typing import Any

from tokenix.drivers.cuda.arguments import Block
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup
from tokenix.drivers.cuda.driver import CudaDriver
from tokenix.drivers.cuda.hostmemory import Staging
from tokenix.drivers.cuda.kernels.abi import COMBINE

LAUNCHES = 2000

Action = Callable[[], None]


def check_link(report: Report, driver: CudaDriver, setup: Setup) -> None:
    """Rates of pinned copies by the size of a piece, each way and both at once."""
    report.section("link, pinned memory")
    size = setup.link_bytes
    device, back = driver.alloc(size), driver.alloc(size)
    host, other = Staging(driver, size), Staging(driver, size)
    streams = driver.stream(), driver.stream()
    for piece in setup.pieces:
        count = min(size // piece, 4096)

        def bring(piece: int = piece, count: int = count) -> None:
            for i in range(count):
                driver.copy_in(device + i * piece, host.address + i * piece, piece, streams[0])

        def take(piece: int = piece, count: int = count) -> None:
            for i in range(count):
                driver.copy_out(other.address + i * piece, back + i * piece, piece, streams[1])

        moved = piece * count
        into = moved / _seconds(driver, streams, bring)
        out = moved / _seconds(driver, streams, take)

        def exchange(bring: Action = bring, take: Action = take) -> None:
            bring()
            take()

        both = 2 * moved / _seconds(driver, streams, exchange)
        name = f"{piece // 1024} KiB"
        report.add(f"{name} in", into / 1e9, "GB/s")
        report.add(f"{name} out", out / 1e9, "GB/s")
        least = 1.6 if setup.real and piece == 2 << 20 else None
        report.add(f"{name} both ways, of the slower one", both / min(into, out), least=least)
    for staging in (host, other):
        staging.close()
    for address in (device, back):
        driver.free(address)
    for stream in streams:
        driver.destroy_stream(stream)


def check_launches(report: Report, driver: CudaDriver, setup: Setup) -> None:
    """Processor time of a launch with an argument block that is kept, and with two values changed;
    and of a graph of many."""
    report.section("launches")
    launcher = setup.launcher(driver, setup.shapes[0])
    block = Block(COMBINE, {name: 0 for name, _ in COMBINE.args} | {"splits": 1, "heads": 1})
    nowhere = driver.alloc(1 << 20)
    block.set(parts=nowhere, stats=nowhere, positions=nowhere, out=nowhere)

    def launch() -> None:
        launcher.launch(block, 1)

    def change() -> None:
        block.set(items=0, splits=1)
        launcher.launch(block, 1)

    for name, action in (("kept block", launch), ("two values changed", change)):
        report.add(name, _cost_s(driver, launcher.stream, action) * 1e6, "us")
    driver.begin_capture(launcher.stream)
    for _ in range(100):
        launch()
    graph = driver.end_capture(launcher.stream)
    replay_s = _cost_s(driver, launcher.stream, lambda: driver.replay(graph, launcher.stream), 50)
    report.add("graph of 100 kernels", replay_s * 1e6, "us")
    driver.destroy_graph(graph)
    driver.free(nowhere)
    setup.close(driver, launcher)


def _seconds(driver: CudaDriver, streams: tuple[Any, Any], action: Action) -> float:
    """The best of three, from the first call to the end of the last copy."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        action()
        for stream in streams:
            driver.sync(stream)
        best = min(best, time.perf_counter() - began)
    return best


def _cost_s(driver: CudaDriver, stream: Any, action: Action, times: int = LAUNCHES) -> float:
    action()
    driver.sync(stream)
    began = time.perf_counter()
    for _ in range(times):
        action()
    spent = time.perf_counter() - began
    driver.sync(stream)
    return spent / times
