import pytest

from tokenix.models.registry import load_image


@pytest.fixture(scope="session")
def smollm2():
    pytest.importorskip("gguf")
    try:
        return load_image("smollm2")
    except FileNotFoundError as error:
        pytest.skip(str(error))
