"""What `boot` refuses, in one line, before anything is started."""

import errno
import math

import pytest

import tokenix

NONSENSE: list[dict[str, object]] = [
    {"device_pages": "x"}, {"device_pages": 2.5}, {"device_pages": True}, {"device_pages": 0},
    {"host_pages": math.nan}, {"host_pages": -1}, {"threads": 0}, {"threads": [2]},
    {"page_tokens": None}, {"page_tokens": 0}, {"page_tokens": 3}, {"kv_dtype": 3},
    {"policy": ["x"]}, {"policy": None}, {"params": 3}, {"tunables": 3}, {"tunables": {"x": 1}},
    {"tunables": {"margin_s": "a"}}, {"tunables": {"margin_s": math.nan}},
    {"tunables": {"margin_s": -1.0}},
]  # fmt: skip


@pytest.mark.parametrize("options", NONSENSE, ids=str)
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(OSError) as caught:
        tokenix.boot("smollm2", **options)  # type: ignore[arg-type]
    assert caught.value.errno == errno.EINVAL
    assert next(iter(options)).removesuffix("s") in caught.value.strerror


def test_no_model_has_an_empty_name() -> None:
    with pytest.raises(FileNotFoundError, match="no model or file ''"):
        tokenix.boot("")
