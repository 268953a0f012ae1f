"""The miss storm (`storm.py`) on a machine: in virtual time, or on the real model."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tokenix
from tokenix.bench.drive import Outcome, drive
from tokenix.bench.storm import (
    OPEN,
    RATIOS,
    Line,
    Load,
    Report,
    Seen,
    Visit,
    count_documents,
    make_prompt,
    make_tokens,
    make_visits,
    measure,
)
from tokenix.bench.workload import Arrival
from tokenix.syscalls.simulation import Ended, SimMachine, SimOptions
from tokenix.syscalls.types import Syscalls

PAGE = 16
SETTLE_S = 1.0
"""After all documents were read, so that the tiers below can take them."""
DRAIN_S = 600.0
"""The last visit has so long to end."""
TIMED = 8
"""Documents that are computed to find out how long one takes."""

Tell = Callable[[str], None]

SIM = SimOptions(kv_pages=6144, host_pools=1.0, file_pools=2.0, prefix_cache=True)
"""An H100 with Llama-3.1-8B, of which 13 GB hold KV; the file holds as much as the two above it."""
SIM_LOAD = Load(
    document_tokens=2000, question_tokens=48, answer_tokens=8, tokens_per_s=10.0, demand=2.5,
    seconds=10.0, warmup_s=4.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CpuPools:
    """Pages of each tier of the real machine."""

    device: int = 192
    host: int = 192
    file: int = 384


CPU_LOAD = Load(
    document_tokens=256, question_tokens=16, answer_tokens=8, tokens_per_s=10.0, demand=2.5,
    seconds=8.0, warmup_s=3.0,
)  # fmt: skip
CPU_RATIOS = (0.5, 1.0, 2.0, 4.0)
"""With these, both ways of admission take four minutes where a document takes 0.2 s."""


def storm_sim(
    options: SimOptions = SIM,
    load: Load = SIM_LOAD,
    ratios: Sequence[float] = RATIOS,
    watch: Tell | None = None,
) -> Report:
    """All ratios with admission on, then off, in virtual time. ValueError: what cannot be."""
    tell = watch or (lambda _: None)
    lines: list[Line] = []
    machine = SimMachine(options)
    host_pages = int(options.host_pools * machine.kv_pages)
    per_s = load.demand * machine.roofline.prefill_tokens_per_s() / load.document_tokens
    for admission in (True, False):
        tunables = dict(options.tunables) | ({} if admission else OPEN)
        for ratio in ratios:
            tell(_title(ratio, admission))
            documents = count_documents(ratio, machine.kv_pages + host_pages, load, PAGE)
            fresh = SimMachine(replace(options, tunables=tunables))
            _read_all_sim(fresh, load, documents)
            seen = _visit_sim(fresh, load, make_visits(load, documents, per_s))
            lines.append(measure(load, ratio, admission, documents, seen))
    return Report(
        where=f"simulated {options.device}, {options.model}",
        device_pages=machine.kv_pages,
        host_pages=host_pages,
        file_pages=int(options.file_pools * machine.kv_pages),
        visits_per_s=per_s,
        load=load,
        lines=tuple(lines),
    )


def _read_all_sim(machine: SimMachine, load: Load, documents: int) -> None:
    """One after the other."""
    for number in range(documents):
        machine.spawn(make_tokens("document", number, load.document_tokens), 1)
        while machine.living:
            machine.advance(machine.now_s + 0.05)
    machine.advance(machine.now_s + SETTLE_S)
    machine.take_ended()


def _visit_sim(machine: SimMachine, load: Load, visits: Sequence[Visit]) -> list[Seen]:
    start_s = machine.now_s
    seen = {visit.number: Seen(visit, refused=True) for visit in visits}
    living: dict[int, int] = {}

    def note() -> None:
        for end in machine.take_ended():
            number = living.pop(end.pid)
            seen[number] = _seen_sim(seen[number].visit, end, start_s)

    for visit in visits:
        machine.advance(start_s + visit.at_s)
        pid = machine.spawn(make_prompt(load, visit), load.answer_tokens, load.tokens_per_s)
        if pid is not None:
            living[pid] = visit.number
        note()
    end_s = machine.now_s + DRAIN_S
    while living and machine.now_s < end_s:
        machine.advance(machine.now_s + 1.0)
        note()
    machine.terminate()
    note()
    return list(seen.values())


def _seen_sim(visit: Visit, end: Ended, start_s: float) -> Seen:
    return Seen(
        visit,
        finished=end.complete,
        refused=end.refused,
        times_s=tuple(time_s - start_s for time_s in end.times_s),
        cached=end.cached_tokens,
        host=end.cached_host_tokens,
        file=end.cached_file_tokens,
    )


def storm_cpu(
    pools: CpuPools | None = None,
    load: Load = CPU_LOAD,
    ratios: Sequence[float] = CPU_RATIOS,
    directory: str | None = None,
    watch: Tell | None = None,
    **boot: Any,
) -> Report:
    """The same on the real model, in real time. `directory`: where the swap file goes (None: a
    temporary one); `boot`: of `tokenix.boot`."""
    tell = watch or (lambda _: None)
    pools = pools or CpuPools()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        tell("how long a document takes")
        with _boot(pools, folder, True, boot) as k:
            document_s = _read_all(k, load, TIMED)
            page_bytes = int(k.vmstat()["frames.page_bytes"])
        per_s = load.demand / document_s
        for admission in (True, False):
            for ratio in ratios:
                tell(_title(ratio, admission))
                documents = count_documents(ratio, pools.device + pools.host, load, PAGE)
                visits = make_visits(load, documents, per_s)
                with _boot(pools, folder, admission, boot) as k:
                    k.swapon(folder, pools.file * page_bytes)
                    _read_all(k, load, documents)
                    time.sleep(SETTLE_S)
                    seen = _visit(k, load, visits)
                lines.append(measure(load, ratio, admission, documents, seen))
    return Report(
        where="SmolLM2-135M, the CPU driver",
        device_pages=pools.device,
        host_pages=pools.host,
        file_pages=pools.file,
        visits_per_s=per_s,
        load=load,
        lines=tuple(lines),
    )


def _boot(pools: CpuPools, folder: str, admission: bool, boot: dict[str, Any]) -> Syscalls:
    return tokenix.boot(
        device_pages=pools.device,
        host_pages=pools.host,
        tunables={} if admission else OPEN,
        **boot,
    )


def _read_all(k: Syscalls, load: Load, documents: int) -> float:
    """One after the other; the median of seconds."""
    seconds = []
    for number in range(documents):
        prompt = make_tokens("document", number, load.document_tokens)
        pid = k.spawn(prompt, max_tokens=1, ignore_eos=True)
        while not k.read(pid).eof:
            pass
        ttft_s = k.wait(pid).rusage.ttft_s
        seconds.append(ttft_s or 0.0)
    return statistics.median(seconds)


def _visit(k: Syscalls, load: Load, visits: Sequence[Visit]) -> list[Seen]:
    arrivals = [
        Arrival(
            str(visit.number), visit.at_s, make_prompt(load, visit), load.answer_tokens, "stream",
            load.tokens_per_s,
        )
        for visit in visits
    ]  # fmt: skip
    run = drive(k, arrivals, "progress", limit_s=DRAIN_S)
    return [_seen(visit, outcome) for visit, outcome in zip(visits, run.outcomes, strict=True)]


def _seen(visit: Visit, outcome: Outcome) -> Seen:
    usage = outcome.rusage
    return Seen(
        visit,
        finished=outcome.finished,
        refused=bool(outcome.refused),
        times_s=outcome.times_s,
        cached=usage.cached_tokens,
        host=usage.cached_host_tokens,
        file=usage.cached_file_tokens,
    )


def _title(ratio: float, admission: bool) -> str:
    return f"{ratio:g} x memory, admission {'on' if admission else 'off'}"
