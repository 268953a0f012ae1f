"""What several files of tests play against."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenix.syscalls.rehearsal import rehearse
from tokenix.syscalls.wire.server import serve


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with (
        rehearse(step_s=0.005) as k,
        serve(k.port, tmp_path_factory.mktemp("s") / "k.sock") as server,
    ):
        yield server.path
