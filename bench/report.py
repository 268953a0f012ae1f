"""The report on policies: sections of experiments, their plots, and a text made of their figures.

Each section runs its experiments, draws, and says what the figures say. Nothing in the text is
written by hand but the words between the numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenix.bench.parallel import Job, Progress, run_jobs
from tokenix.bench.points import Placement, Point, Size
from tokenix.bench.simulate import Result
from tokenix.bench.sweep import AXES, SIZE, Sweep, sweep_jobs
from tokenix.bench.traces import Trace

OURS = "progress"
MAIN = ("progress", "fcfs", "fcfs+reject", "retract")
R1, CONV = "servegen_deepseek_r1", "azure_conv_2023"
TRACES = (R1, CONV)
QUICK = Size(arrivals_s=5.0, few=20, many=30, output_tokens=5_000)

BASES: Mapping[str, Point] = {
    R1: Point(R1, "h100", 1.0, 0.25, 10.0, 25.0),
    CONV: Point(CONV, "h100", 1.0, 0.25, 10.0, 25.0),
}


Bars = Callable[[int], AbstractContextManager[Progress | None]]


def _no_bars(runs: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(slots=True)
class Lab:
    """Where the sections work: traces, how much is run, where plots go."""

    traces: Mapping[str, Trace]
    out: Path
    size: Size = SIZE
    processes: int = 1
    bars: Bars = _no_bars
    """Told how many runs begin; what follows their progress."""
    swept: dict[tuple[str, Point, tuple[str, ...]], Sweep] = field(default_factory=dict)

    @property
    def quick(self) -> bool:
        return self.size is QUICK

    def values(self, what: str) -> tuple[float, ...]:
        every = AXES[what]
        return (every[0], every[-1]) if self.quick else every

    def policies(self, every: Sequence[str]) -> tuple[str, ...]:
        return tuple(every[:2] if self.quick else every)

    def place(self) -> Placement:
        return Placement(self.traces, self.size)

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        with self.bars(len(jobs)) as progress:
            return run_jobs(self.traces, jobs, self.processes, progress)

    def sweep(self, what: str, base: Point, policies: Sequence[str]) -> Sweep:
        """Each is run once, whoever asks for it."""
        policies = self.policies(policies)
        key = (what, base, policies)
        if key not in self.swept:
            values = self.values(what)
            jobs = sweep_jobs(what, base, self.traces[base.trace], policies, values, self.size)
            results = tuple(self.run(jobs))
            self.swept[key] = Sweep(what, base, values, policies, results)
        return self.swept[key]

    def image(self, name: str) -> Path:
        return self.out / f"{name}.png"


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    text: list[str]
    """Paragraphs of Markdown."""
    images: list[Path] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


Write = Callable[[Lab], Section]


def make_report(lab: Lab, sections: Mapping[str, Write], note: Callable[[str], None]) -> Path:
    """Run `sections` in order and write `policies.md`. OSError, ValueError."""
    lab.out.mkdir(parents=True, exist_ok=True)
    parts = [_head(lab)]
    for name, write in sections.items():
        note(f"section {name}")
        section = write(lab)
        parts.append("\n\n".join([f"## {section.title}", *section.text]))
        parts += [f"![{section.title}]({image.name})" for image in section.images]
        commands = section.commands or [f"tokenix sim report --out reports --only {name}"]
        parts.append("Made by\n\n" + "\n".join(f"    {command}" for command in commands))
    path = lab.out / "policies.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _head(lab: Lab) -> str:
    size = lab.size
    warning = "**A trial with too few requests to mean anything.**\n\n" if lab.quick else ""
    return (
        f"# Policies in simulation\n\n{warning}"
        "Made by `make sim-report` (`tokenix sim report`): the production kernel in virtual time "
        "on models of GPUs (`bench/README.md` says what is measured, `drivers/sim/presets.py` "
        "where the constants come from). Do not edit.\n\n"
        f"A run has {size.few} to {size.many} requests, about {size.arrivals_s:g} s of arrivals, "
        "of which the first quarter, in which the machine is filled with streams under way, is not "
        "counted. *Load* is in multiples of what `fcfs` sustains "
        "with that KV pool, *pool* a share of what 256 sequences need. *Goodput* is the share of "
        "all requests that got their first token within 1 s, finished, and never let their reader "
        "wait for more than 0.5 s; refused requests are failures. `fcfs+reject` has its default "
        "bound. Differences below about "
        f"{200 / (0.75 * size.many):.1f}-{200 / (0.75 * size.few):.1f} % are a request or two."
    )


# ---- words for figures ----


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(map(str, head)), ["---"] * len(head), *([str(x) for x in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def best_other(results: Mapping[str, Result]) -> tuple[str, Result]:
    """The policy but ours with the best goodput."""
    name = max((n for n in results if n != OURS), key=lambda n: (results[n].goodput, n))
    return name, results[name]


def by_policy(swept: Sweep, index: int) -> dict[str, Result]:
    """The results at one value."""
    return {policy: swept.of(policy)[index] for policy in swept.policies}


def sweep_table(swept: Sweep) -> str:
    """Goodput, P95 and stalls of each policy at each value."""
    rows = []
    for index, value in enumerate(swept.values):
        cells = [
            f"{r.goodput:.3f} / {seconds(r.ttft_p95_s)} / {100 * r.visible_stall_rate:.1f}"
            for r in by_policy(swept, index).values()
        ]
        rows.append([f"{value:g}", *cells])
    return table([swept.what, *swept.policies], rows)


def at(base: Point, **change: float) -> Point:
    return replace(base, **change)  # type: ignore[arg-type]
