"""`tokenix bench storm`: its options and its table."""

import json as jsonlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import POSITIVE, check_image
from tokenix.cli.status import OK, UsageError

if TYPE_CHECKING:
    from tokenix.bench.storm import Line, Report


def storm(
    *,
    where: Annotated[
        Literal["sim", "cpu"], Parameter(help="A simulated H100, or the real model on the CPU.")
    ] = "sim",
    ratios: Annotated[
        str, Parameter(help="Documents, in device and host tiers, with commas; default: 0.5 to 4.")
    ] = "",
    demand: Annotated[
        float | None,
        Parameter(validator=POSITIVE, help="Documents asked about, over those computed in a time."),
    ] = None,
    seconds: Annotated[
        float | None, Parameter(validator=POSITIVE, help="Of each run that count.")
    ] = None,
    seed: Annotated[int, Parameter(help="Of who asks when about what.")] = 1,
    swap_dir: Annotated[Path, Parameter(help="--where cpu: where the swap file goes.")] = Path(),
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, Parameter(help="Write the curves to this image.")] = None,
) -> int:
    """More and more documents return: TTFT and stalls by what is missed, admission on and off."""
    from tokenix.bench import storm as measuring
    from tokenix.bench import stormruns

    check_image(plot)
    if not swap_dir.is_dir():
        raise UsageError(f"--swap-dir {swap_dir} is not a directory")
    simulated = where == "sim"
    load = stormruns.SIM_LOAD if simulated else stormruns.CPU_LOAD
    load = replace(
        load, demand=demand or load.demand, seconds=seconds or load.seconds, seed=seed
    )  # fmt: skip
    usual = measuring.RATIOS if simulated else stormruns.CPU_RATIOS
    sizes = _numbers("--ratios", ratios) if ratios else usual
    watch = _tell if sys.stderr.isatty() else None
    if simulated:
        report = stormruns.storm_sim(load=load, ratios=sizes, watch=watch)
    else:
        report = stormruns.storm_cpu(
            load=load, ratios=sizes, directory=str(swap_dir), watch=watch
        )  # fmt: skip
    if plot is not None:
        measuring.plot(report, plot)
    stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n" if json else _table(report))
    return OK


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number <= 64 for number in numbers):
        raise UsageError(f"{option} {text}: numbers above 0, at most 64, with commas between them")
    return numbers


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


HEAD = (
    "set", "admission", "documents", "visits", "missed", "host", "file", "computed", "P50 s",
    "P95 s", "P99 s", "stalled", "refused", "goodput",
)  # fmt: skip


def _table(report: "Report") -> str:
    lines = [
        f"{report.where}: {report.device_pages} + {report.host_pages} + {report.file_pages} pages, "
        f"{report.visits_per_s:.1f} visits/s",
        " ".join(f"{name:>9}" for name in HEAD),
    ]
    lines += [" ".join(f"{cell:>9}" for cell in _cells(line)) for line in report.lines]
    return "\n".join(lines) + "\n"


def _cells(line: "Line") -> list[str]:
    shares = (line.miss_rate, line.host_share, line.file_share, line.computed_share)
    ttfts = (line.ttft_p50_s, line.ttft_p95_s, line.ttft_p99_s)
    ends = (line.visible_stall_rate, line.refused_share, line.goodput)
    return [
        f"{line.set_ratio:g}",
        "on" if line.admission else "off",
        str(line.documents),
        str(line.visits),
        *(f"{share:.3f}" for share in shares),
        *("-" if ttft is None else f"{ttft:.3f}" for ttft in ttfts),
        *(f"{share:.3f}" for share in ends),
    ]
