"""What names a model's files: what is in them, and how they lie there."""

import os
import shutil
import time

import pytest

from tokenix.models.image import stamp
from tokenix.models.registry import load_image
from tokenix.tests.models import tiny_models as tiny


def let_clock_tick(path):
    """File systems know of changes to some milliseconds only."""
    other, ends_s = path.with_suffix(".clock"), time.monotonic() + 60
    while time.monotonic() < ends_s:
        other.write_bytes(b"")
        if other.stat().st_ctime_ns > path.stat().st_ctime_ns + 20_000_000:
            return
    raise AssertionError("its clock stands still")


def rewrite(path):
    """Other bytes far from what samples see, the same size, and the time put back."""
    let_clock_tick(path)
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def replace(path):
    """By a copy: the same bytes."""
    let_clock_tick(path)
    shutil.copy2(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


@pytest.mark.parametrize("change", [rewrite, replace])
def test_files_that_were_touched_have_another_stamp(tmp_path, change):
    path, link = tmp_path / "m", tmp_path / "link"
    path.write_bytes(bytes(300_000))
    link.symlink_to(path)
    before = stamp([path])
    assert stamp([link]) == stamp([path]) == before  # a path is no matter
    change(path)
    assert stamp([path]) == stamp([link]) != before


def test_images_have_the_stamp_of_all_of_their_weight_files(tmp_path):
    tiny.write_gguf(tmp_path / "m.gguf", tiny.config())
    tiny.write_hf(tmp_path / "m", shards=2)
    for name, files in (
        ("m.gguf", ["m.gguf"]),
        ("m", sorted((tmp_path / "m").glob("*.safetensors"))),
    ):
        before = load_image(tmp_path / name).stamp
        assert load_image(tmp_path / name).stamp == before
        for file in files:
            replace(tmp_path / file)
            after = load_image(tmp_path / name).stamp
            assert after != before
            before = after


def test_a_file_that_is_gone_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"m\.gguf: no such file"):
        stamp([tmp_path / "m.gguf"])
