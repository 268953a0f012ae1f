"""The command lines that make a run again, so that every figure can be asked for."""

import shlex
from collections.abc import Sequence

from tokenix.bench.parallel import Job
from tokenix.bench.points import Point

TRACES = "../shared/traces"


def sim_command(job: Job, policies: Sequence[str], folder: str = TRACES) -> str:
    """Of one window under some policies."""
    setup = job.setup
    machine, window = setup.machine, setup.window
    words = ["tokenix", "sim", "--trace", f"{folder}/{job.trace}.csv", "--device", machine.device]
    words += ["--policy", ",".join(policies), "--rate-scale", repr(window.rate_scale)]
    words += ["--kv-pages", str(machine.kv_pages), "--link-gbps", f"{machine.link_gb_per_s:g}"]
    words += ["--reader", f"{setup.reader:g}", "--start", repr(window.start_s)]
    words += ["--duration", repr(window.duration_s), "--seed", str(window.seed)]
    words += ["--warmup", repr(setup.warmup_s), "--drain", f"{setup.drain_s:g}"]
    if setup.fill:
        words.append("--fill")
    if setup.hidden:
        words.append("--hidden")
    if machine.copy_contention is not None:
        words += ["--copy-contention", f"{machine.copy_contention:g}"]
    return shlex.join(words)


def sweep_command(
    what: str, base: Point, values: Sequence[float], policies: Sequence[str], folder: str = TRACES
) -> str:
    words = ["tokenix", "sim", "sweep", "--what", what, "--trace", f"{folder}/{base.trace}.csv"]
    words += ["--values", ",".join(f"{value:g}" for value in values)]
    words += ["--policy", ",".join(policies), "--device", base.device, "--load", f"{base.load:g}"]
    words += ["--pool", f"{base.pool:g}", "--reader", f"{base.reader:g}"]
    words += ["--link-gbps", f"{base.link:g}", "--host-pools", f"{base.host:g}"]
    words += ["--seed", str(base.seed)]
    return shlex.join(words)
