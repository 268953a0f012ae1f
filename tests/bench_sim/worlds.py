"""Small traces and runs for the tests of the simulator."""

from tokenix.bench.simulate import Setup
from tokenix.bench.traces import Request, Trace, Window
from tokenix.syscalls.simulation import SimOptions


def make_trace(count: int = 40, gap_s: float = 0.2, prompt: int = 300, output: int = 60) -> Trace:
    """Requests of different lengths at a steady rate."""
    requests = tuple(
        Request(i * gap_s, prompt + 37 * (i % 7), output + 11 * (i % 5), tenant=f"t{i % 3}")
        for i in range(count)
    )
    return Trace("made", "shared", requests)


def make_setup(policy: str = "progress", **machine: object) -> Setup:
    """A tight pool on an H100, so that processes are paused."""
    options = {"kv_pages": 150, "device": "h100", **machine}
    return Setup(SimOptions(policy=policy, **options), Window(rate_scale=4.0))
