"""`tokenix demo`: runs the showcase and shows it, live on a terminal, as plain text elsewhere."""

import json
import sys

from tokenix.bench.demo import CALIBRATION, DemoOptions, Observer, check_policies, run_demo
from tokenix.bench.drive import Sample
from tokenix.bench.metrics import Figures
from tokenix.bench.workload import Workload
from tokenix.cli import stdout
from tokenix.cli.status import FAILED, OK, UsageError, report
from tokenix.syscalls.types import Progress


def demo(
    model: str, policies: tuple[str, ...], seed: int, quick: bool, driver: str, as_json: bool
) -> int:
    """The command. Exit code 1 if outputs differ or a request failed."""
    try:
        chosen = check_policies(policies)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    options = DemoOptions(model, chosen, seed, quick, driver)
    if as_json:
        result = run_demo(options)
        stdout.write(json.dumps(result.as_json(), indent=2) + "\n")
    elif sys.stdout.isatty():
        from tokenix.cli.demo_live import LiveView
        from tokenix.cli.demo_report import show

        with LiveView(options) as view:
            result = run_demo(options, view)
        show(result)
    else:
        from tokenix.cli.demo_report import show

        result = run_demo(options, PlainView())
        show(result)
    for reason in result.problems():
        report(reason)
    return FAILED if result.problems() else OK


class PlainView(Observer):
    """One line when a run begins and one when it ends."""

    def booting(self, policy: str) -> Progress | None:
        if policy == CALIBRATION:
            stdout.write("Loading the model and measuring this machine ...\n")
        return None

    def started(self, policy: str, workload: Workload) -> None:
        stdout.write(
            f"{policy:<10} {len(workload.longs)} long streams and {len(workload.shorts)} short "
            f"requests on {workload.pool_pages} KV pages ...\n"
        )

    def sample(self, sample: Sample) -> None:
        return

    def finished(self, policy: str, figures: Figures) -> None:
        ttft = "-" if figures.ttft_p95_s is None else f"{figures.ttft_p95_s:.2f} s"
        stdout.write(
            f"{policy:<10} {figures.makespan_s:.1f} s, P95 to the first token of a short request "
            f"{ttft}, {figures.visible_stalls} visible stalls\n"
        )
