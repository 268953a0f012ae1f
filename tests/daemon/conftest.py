"""One daemon with the real model for the tests of a module, without a gateway."""

from collections.abc import Iterator

import pytest

from tokenix.tests.daemon.daemons import Daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    home = tmp_path_factory.mktemp("daemon")
    flags = ["--no-http", "--image-dir", str(home / "images")]
    with Daemon(home, *flags) as running:
        running.wait_ready()
        yield running


@pytest.fixture(autouse=True)
def _tidy_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a failed test has left running is not the next one's trouble."""
    yield
    if "daemon" in request.fixturenames:
        request.getfixturevalue("daemon").clear()
