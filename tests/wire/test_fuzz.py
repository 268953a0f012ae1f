"""Nonsense on the socket; `fuzz.py` says what, and does more of it if run by itself."""

import pytest

from tokenix.kernel.calls import Principal
from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.wire.conftest import Serving
from tokenix.tests.wire.fuzz import LIMITS, fuzz


def test_a_few_thousand_inputs(serving: Serving, stage: Syscalls, seed: int) -> None:
    limits = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}
    server = serving(recognise=lambda _: Principal("fuzz"), **limits)
    figures = fuzz(stage, server, seed, 4000)
    assert figures["refused"] > 100


@pytest.mark.slow
def test_many_inputs(serving: Serving, stage: Syscalls, seed: int) -> None:
    limits = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}
    server = serving(recognise=lambda _: Principal("fuzz"), **limits)
    fuzz(stage, server, seed + 1000, 40_000)
