"""What all tests share: one seed, and GPU tests that skip themselves where there is no GPU."""

import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SEED_VARIABLE = "TOKENIX_SEED"


def pytest_configure() -> None:
    """A shell that runs us in the background lets us ignore Ctrl-C. The programs that tests start
    would inherit that, and some are sent one. How long drawing takes says only how busy the machine
    is."""
    settings.register_profile(
        "tokenix", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("tokenix")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run, for tests that draw. The header shows it; the environment sets it."""
    return int(os.environ.get(SEED_VARIABLE, "1"))


def pytest_report_header() -> str:
    value = os.environ.get(SEED_VARIABLE, "1")
    return f"seed: {value} ({SEED_VARIABLE}={value} repeats this run)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if Path("/dev/nvidia0").exists():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU on this machine")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
