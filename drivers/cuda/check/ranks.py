"""Several GPUs of this machine as one device, where there are: what they draw beside what one
draws, and how much quicker a decode step is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tokenix.drivers.cuda.check.bench import Bench
from tokenix.drivers.cuda.check.model import Noise, time_decode
from tokenix.drivers.cuda.check.report import Report
from tokenix.drivers.cuda.check.setup import Setup
from tokenix.drivers.cuda.device import CudaDevice
from tokenix.drivers.cuda.kernels.abi import PAGE_TOKENS
from tokenix.drivers.cuda.probe import count_gpus
from tokenix.drivers.cuda.ranks.device import ParallelDevice
from tokenix.drivers.cuda.ranks.shard import list_counts
from tokenix.drivers.ops import Decodes, Forward, Row, Sampled, SampleSpec, TableDelta
from tokenix.drivers.sampling import SamplingParams
from tokenix.mm.ids import Pfn, Pid
from tokenix.models.config import ModelConfig

LAYERS = 8
"""Of the model, so that it is made quickly; a step is as many times longer as it has more."""

PROMPTS = 4
PROMPT_TOKENS = 3 * PAGE_TOKENS - 1

_FILLER = Pid(PROMPTS + 1)


def check_ranks(report: Report, setup: Setup) -> None:
    """Nothing but their number where there is one GPU."""
    report.section("several GPUs")
    gpus = count_gpus()
    report.add("GPUs", gpus)
    config = replace(setup.model, layers=min(LAYERS, setup.model.layers))
    counts = [count for count in list_counts(config) if 1 < count <= gpus]
    if not counts:
        return
    alone, steps = _measure(_open(setup, config, 1), setup)
    for ranks in counts:
        with report.row(f"{ranks} GPUs"):
            drawn, quicker = _measure(_open(setup, config, ranks), setup)
            apart = max(abs(a - b) for a, b in zip(alone, drawn, strict=True))
            report.add(f"{ranks} GPUs: log probabilities apart", apart, most=0.05)
            for batch, step_s in quicker.items():
                name = f"{ranks} GPUs: decode, batch {batch}, {config.layers} layers"
                report.add(name, step_s * 1e3, "ms")
                report.add(f"{name}: times one GPU", steps[batch] / step_s)


def _open(setup: Setup, config: ModelConfig, ranks: int) -> CudaDevice:
    device: Callable[..., CudaDevice] = CudaDevice
    if ranks > 1:
        device = partial(
            ParallelDevice,
            ranks=ranks,
            open_weights=partial(Noise, config),
            backend=setup.backend,
        )
    pages = setup.context // PAGE_TOKENS + 1
    return device(
        config, Noise(config), frames=max(setup.batches) * pages, host_slots=0,
        kv_dtype=setup.kind_kv, dense=setup.kind, dense_by=setup.dense_by,
        kernels_by=setup.kernels_by,
    )  # fmt: skip


def _measure(device: CudaDevice, setup: Setup) -> tuple[Sequence[float], dict[int, float]]:
    """Log probabilities of what some prompts draw; seconds of a step by batch. Closes it."""
    try:
        bench = Bench(device)
        drawn = _draw(bench, device.info().vocab_tokens)
        pages = setup.context // PAGE_TOKENS + 1
        for stream in range(max(setup.batches)):
            _fill(bench, setup.context, stream, pages)
        return drawn, {b: time_decode(bench, setup, pages, b) for b in setup.batches}
    finally:
        device.close()


def _fill(bench: Bench, context: int, stream: int, pages: int) -> None:
    """Keys and values into the frames of a stream: what is there is not even a number."""
    table = TableDelta(_FILLER, 0, tuple(Pfn(stream * pages + page) for page in range(pages)))
    bench.forward(Decodes(), (Row(_FILLER, 0, (1,) * context, None),), (table,))


def _draw(bench: Bench, vocab: int) -> list[float]:
    spec = SampleSpec(SamplingParams(logprobs=1), (), 0)
    pids = [Pid(1 + i) for i in range(PROMPTS)]
    rows = tuple(
        Row(pid, 0, tuple((7919 * pid + 31 * at) % vocab for at in range(PROMPT_TOKENS)), spec)
        for pid in pids
    )
    tables = tuple(
        TableDelta(pid, 0, tuple(Pfn(3 * i + page) for page in range(3)))
        for i, pid in enumerate(pids)
    )
    done = bench.run(rows, tables)
    bench.start(Forward(bench.ticket(), (), (), tuple(pids)))
    results = [result for result in done.results if isinstance(result, Sampled)]
    assert len(results) == PROMPTS, done
    return [result.logprob for result in results]
