"""A prompt behind a restored prefix: computed when that is loaded, and beside the load."""

import time
from collections.abc import Sequence

from tokenix.drivers.cuda.check.bench import Bench
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.ops import CopyIn, Forward, PageIn, Row, SampleSpec, TableDelta
from tokenix.drivers.sampling import SamplingParams
from tokenix.mm.ids import Pfn, Pid

TIMES = 3
"""The best of so many counts."""


def check_beside(
    report: Report, bench: Bench, pages: Sequence[PageIn], tokens: int, real: bool
) -> None:
    """pages: of the prefix, in slots that hold them. tokens: of the prompt behind it, whose pages
    are the first frames. real: whether figures have bounds."""
    begin, pid = len(pages) * PAGE_TOKENS, Pid(1)
    own = tuple(Pfn(i) for i in range(tokens // PAGE_TOKENS + 1))
    table = TableDelta(pid, 0, (*(page.pfn for page in pages), *own))
    row = Row(pid, begin, (1,) * tokens, SampleSpec(SamplingParams(), (), 0))

    def resume(by_layers: bool) -> float:
        load, forward = CopyIn(bench.ticket(), tuple(pages), by_layers), bench.ticket()
        began = time.perf_counter()
        bench.start(load)
        if not by_layers:
            bench.wait(load.ticket)
        beside = load.ticket if by_layers else None
        bench.start(Forward(forward, (row,), (table,), beside=beside))
        bench.finish(forward)
        return time.perf_counter() - began

    resume(by_layers=False)  # warms up
    name = f"{tokens} tokens behind {begin} that are loaded"
    after_s, beside_s = (min(resume(way) for _ in range(TIMES)) for way in (False, True))
    report.add(f"{name}, one after the other", after_s * 1e3, "ms")
    report.add(f"{name}, layer by layer beside the load", beside_s * 1e3, "ms")
    most = 1.0 if real else None
    report.add("beside the load: times one after the other", beside_s / after_s, most=most)
    bench.run((), (TableDelta(pid, 0, ()),))
