"""Kernels of the CUDA driver, on a machine without a GPU."""

import pytest

for needed in ("numba_cuda", "greenlet"):
    pytest.importorskip(needed, reason="the extras cuda and test bring it")
