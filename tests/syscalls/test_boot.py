"""What `boot` refuses, in one line, before anything is started."""

import errno
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tokenix
from tokenix.drivers.cpu import blockpack, pack
from tokenix.drivers.cpu import device as cpu
from tokenix.drivers.cpu.arena import PageShape
from tokenix.drivers.imagestore import ImageStore
from tokenix.drivers.kvkind import KV_KINDS
from tokenix.kernel import boot
from tokenix.tests.device.tiny import tiny_config
from tokenix.tests.models import tiny_models

NONSENSE: list[dict[str, object]] = [
    {"device_pages": "x"}, {"device_pages": 2.5}, {"device_pages": True}, {"device_pages": 0},
    {"host_pages": math.nan}, {"host_pages": -1}, {"threads": 0}, {"threads": [2]},
    {"page_tokens": None}, {"page_tokens": 0}, {"page_tokens": 3}, {"kv_dtype": 3},
    {"kv_dtype": "int3"}, {"kv_dtype": ["int8"]}, {"weights": "q4"}, {"weights": None},
    {"image_dir": 3}, {"swap_resume": 1, "image_dir": "x"}, {"swap_resume": True},
    {"weight_cache": 1},
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


@pytest.mark.parametrize(
    ("directory", "number", "words"),
    [
        ("", errno.EINVAL, "name a directory"),
        ("x\0y", errno.EINVAL, "no null character"),
        ("file", errno.ENOTDIR, "Not a directory"),
        ("no/such/parent", errno.ENOENT, "No such file or directory"),
        ("taken", errno.EBUSY, "another kernel keeps its images there"),
    ],
)
def test_an_image_directory_that_cannot_be_is_refused_before_the_model_is_loaded(
    tmp_path: Path, directory: str, number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    other = ImageStore()
    other.open("taken")
    with pytest.raises(OSError, match=words) as caught:
        tokenix.boot("no such model", image_dir=directory)
    assert caught.value.errno == number and "no images can be kept in" in caught.value.strerror
    other.close()


@pytest.mark.parametrize("pages", [10**11, 10**17])
@pytest.mark.parametrize("name", ["device_pages", "host_pages"])
def test_more_pages_than_any_machine_has(name: str, pages: int) -> None:
    with pytest.raises(OSError, match="ask for fewer") as caught:
        tokenix.boot("smollm2", **{"device_pages": 8, name: pages})
    assert caught.value.errno == errno.ENOMEM
    assert f"{name} {pages}" in caught.value.strerror


def test_the_default_pool_reckons_with_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CpuDevice", lambda config, weights, **options: options["frames"])
    config = replace(tiny_config(), max_context_tokens=1 << 30)
    image: Any = SimpleNamespace(config=config, weights=None)
    frames = {
        kind: boot._open_device(
            boot.BootOptions(kv_dtype=kind, weights="exact", weight_cache=False), image, None
        )
        for kind in KV_KINDS
    }
    for kind, count in frames.items():
        frame_bytes = PageShape.of(config, 16, kind).frame_bytes
        assert count * frame_bytes <= boot.DEFAULT_POOL_BYTES < (count + 1) * frame_bytes
    assert frames["f32"] < frames["f16"] < frames["int8"] < frames["int4"]


@pytest.mark.parametrize(("dtype", "kept"), [("BF16", ("bf16", "exact")), ("F16", ("exact",))])
def test_a_model_in_16_bits_is_not_rounded_to_8(
    tmp_path: Path, dtype: str, kept: tuple[str, ...]
) -> None:
    """Unless that is asked for."""
    tiny_models.write_hf(tmp_path / "m", dtype=dtype)

    def serve(weights: str) -> tuple[str, list[int]]:
        with tokenix.boot(str(tmp_path / "m"), device_pages=8, host_pages=0, weights=weights) as k:
            pid = k.spawn("Hello", raw=True, max_tokens=16, ignore_eos=True)
            said: list[int] = []
            while len(said) < 16:
                said += [output.token for output in k.read(pid, max_tokens=16).outputs]
            return k.machine.kernel.images.weights, said

    found, said = serve("auto")
    assert found in kept and serve(found) == (found, said)
    assert serve("native")[0] == "native"


def test_packed_weights_are_kept_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless nobody wants them. What is wrong with the file is told, and no harm."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "tokenix" / "weights"

    def serve(**options: bool) -> tuple[str, tuple[str, ...]]:
        with tokenix.boot("smollm2", device_pages=20, host_pages=20, **options) as k:
            text = "".join(k.stream(k.spawn("Hello", max_tokens=8, ignore_eos=True)))
            return text, k.machine.warnings

    said = serve(weight_cache=False)
    assert said[1] == () and not folder.exists()
    assert serve() == said
    (path,) = folder.iterdir()
    with monkeypatch.context() as patch:
        for packer in (pack, blockpack):
            patch.setattr(packer, "pack_all", None)  # nobody packs
        assert serve() == said
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    text, (warning,) = serve()
    assert text == said[0] and str(path) in warning and "packed again" in warning


def test_no_model_has_an_empty_name() -> None:
    with pytest.raises(FileNotFoundError, match="no model or file ''"):
        tokenix.boot("")


def test_h3_a_host_tier_below_the_device_s_is_warned_of() -> None:
    """H3: it churns. Whoever boots is told, and it is the first thing in the trace."""
    with tokenix.boot("smollm2", device_pages=20, host_pages=8) as k:
        (warning,) = k.machine.warnings
        assert "8 pages" in warning and "20" in warning and "host_pages" in warning
        first = k.trace(limit=1)[0]
        assert first.kind == "warning" and dict(first.detail)["text"] == warning
    for host_pages in (0, 20):
        with tokenix.boot("smollm2", device_pages=20, host_pages=host_pages) as k:
            assert k.machine.warnings == ()
