"""Plots are written whole or not at all."""

import resource
from pathlib import Path

import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")

from tokenix.bench.picture import save  # noqa: E402


@pytest.mark.parametrize("before", [None, b"of last week"])
def test_a_disk_without_room_leaves_what_was_there(tmp_path: Path, before: bytes | None) -> None:
    place = tmp_path / "out.png"
    if before is not None:
        place.write_bytes(before)
    figure, _ = pyplot.subplots()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .*out\.png: File too large"):
            save(figure, place, dpi=20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([before] if before else [])
    save(figure, place, dpi=20)
    assert place.read_bytes().startswith(b"\x89PNG")
    pyplot.close(figure)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.svg").symlink_to(tmp_path / "out.svg")
    figure, _ = pyplot.subplots()
    save(figure, tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink() and (tmp_path / "out.svg").stat().st_size
    pyplot.close(figure)
