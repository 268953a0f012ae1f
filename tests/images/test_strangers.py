"""What others put into an image directory, or take out of it: no work waits for it, it is never
listed and never counted, and names whose file has gone are free again."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokenix.drivers.imagefile import BadImage
from tokenix.drivers.imagestore import ImageStore
from tokenix.kernel.images import sorted_out
from tokenix.tests.images.test_store import HEAD, PAGES, PATH, load, names

LIMIT_S = 100.0
"""What takes longer hangs."""
pytestmark = pytest.mark.timeout(LIMIT_S, func_only=True)

OTHER = "saved/t-red/two.img"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    store = ImageStore()
    store.open(str(tmp_path))
    store.save(PATH, HEAD, PAGES)
    yield store
    store.close()


THINGS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: path.symlink_to("one.img"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("thing", THINGS)
def test_what_is_no_file_is_refused_at_once(store: ImageStore, tmp_path: Path, thing: str) -> None:
    THINGS[thing](tmp_path / OTHER)
    with pytest.raises((BadImage, OSError)) as why:
        store.read(OTHER)
    assert why.value.errno in (errno.EBADMSG, errno.ELOOP)
    with pytest.raises((BadImage, OSError)):
        store.load(OTHER, b"", [])
    found = store.open(str(tmp_path))
    assert found.images == ((PATH, HEAD.file_bytes),) and found.strays == (OTHER,)
    if thing == "a folder":
        for act in (store.unlink, lambda path: store.save(path, HEAD, PAGES)):
            with pytest.raises(IsADirectoryError):
                act(OTHER)
    else:
        store.unlink(OTHER)
        assert not os.path.lexists(tmp_path / OTHER)
    assert load(store)[0] == bytes(PAGES[0])


def test_a_pipe_where_a_draft_would_be(store: ImageStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "saved/t-red/.tmp-two.img")
    os.mkfifo(tmp_path / "saved/t-red/.tmp-one.img")
    store.save(OTHER, HEAD, PAGES)
    assert load(store, OTHER)[0] == bytes(PAGES[0])
    assert store.open(str(tmp_path)).strays == ("saved/t-red/.tmp-one.img",)


def test_odd_places_and_names_are_left_alone(store: ImageStore, tmp_path: Path) -> None:
    deep = tmp_path / "saved/a/b/c"
    deep.mkdir(parents=True)
    odd = (
        b"saved/stray.img", b"saved/a/b/c/y.img", b"saved/t-red/\xfe.img", b"saved/t-red/notes",
        b"saved/t-red/.hidden.img", b"idle/9.img.x",
    )  # fmt: skip
    for path in odd:
        (tmp_path / os.fsdecode(path)).write_bytes(b"x")
    found = store.open(str(tmp_path))
    assert found.images == ((PATH, HEAD.file_bytes),)
    assert found.strays == (
        "idle/9.img.x", "saved/a/b", "saved/stray.img", "saved/t-red/.hidden.img",
        "saved/t-red/\\xfe.img", "saved/t-red/notes",
    )  # fmt: skip
    for path in odd:
        assert (tmp_path / os.fsdecode(path)).exists()


@pytest.mark.parametrize(
    "path",
    [
        "saved/red/one.img", "saved/t-red/%FE.img", "saved/t-red/%6Fne.img", "saved/t-/.img",
        "saved/t-red/a b.img", "saved/t-red/" + "n" * 201 + ".img", "idle/x.img", "idle/0.img",
        "idle/-1.img", "idle/\u00b2.img", "idle/01.img", "idle/" + "9" * 19 + ".img",
    ],
)  # fmt: skip
def test_places_that_no_kernel_writes_to(path: str) -> None:
    good = {PATH: 3, "saved/t-red/%C3%A9%20b.img": 4, "idle/7.img": 5}
    assert sorted_out([*good.items(), (path, 1)]) == (good, [path])


@pytest.mark.parametrize("folder", ["saved", "idle"])
def test_a_folder_that_is_none(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).write_bytes(b"")
    with pytest.raises(NotADirectoryError, match=f"'{folder}' there is no folder; move it away"):
        ImageStore().open(str(tmp_path))


@pytest.mark.parametrize("lock", ["a pipe", "a folder", "a link"])
def test_a_lock_that_is_none(tmp_path: Path, lock: str) -> None:
    THINGS[lock](tmp_path / ".lock")
    if lock == "a pipe":
        first = ImageStore()
        first.open(str(tmp_path))
        with pytest.raises(OSError, match="another kernel"):
            ImageStore().open(str(tmp_path))
        first.close()
        return
    with pytest.raises(OSError):
        ImageStore().open(str(tmp_path))


def test_a_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    root = tmp_path / "images"
    store = ImageStore()
    store.open(str(root))
    store.save(PATH, HEAD, PAGES)
    shutil.rmtree(root)
    with pytest.raises(FileNotFoundError):
        store.read(PATH)
    store.save(OTHER, HEAD, PAGES)
    assert names(root) == [".lock", OTHER]
    with pytest.raises(OSError, match="another kernel"):
        ImageStore().open(str(root))
    shutil.rmtree(root)
    root.write_bytes(b"")
    with pytest.raises(OSError, match=r"is gone \(.*\); bring it back"):
        store.save(OTHER, HEAD, PAGES)


def test_another_kernel_that_has_taken_it_meanwhile_keeps_it(tmp_path: Path) -> None:
    root = tmp_path / "images"
    first, second = ImageStore(), ImageStore()
    first.open(str(root))
    shutil.rmtree(root)
    second.open(str(root))
    with pytest.raises(OSError, match="another kernel"):
        first.save(PATH, HEAD, PAGES)
    second.save(PATH, HEAD, PAGES)
