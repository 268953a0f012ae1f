import pytest

from tokenix.models.registry import load_image


@pytest.fixture(scope="session")
def smollm2():
    return load_image("smollm2")
