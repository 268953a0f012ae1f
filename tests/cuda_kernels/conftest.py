"""Kernels of the CUDA driver, on a machine without a GPU."""

from pathlib import Path

import pytest

for needed in ("numba_cuda", "greenlet"):
    pytest.importorskip(needed, reason="the extras cuda and test bring it")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where C++ is compiled."""
    return tmp_path_factory.mktemp("cpp")


@pytest.fixture(params=range(2), ids="seed+{}".format)
def seed(seed: int, request: pytest.FixtureRequest) -> int:
    """Numbers, and the order of threads."""
    return seed + int(request.param)
