"""Pages go into an image and come back, whatever else happens to the slots they were in."""

import errno
from pathlib import Path

import pytest

from tokenix.drivers.device import Device
from tokenix.drivers.ops import (
    CopyDone,
    ImageCommand,
    ImageDone,
    LoadImage,
    OpenImages,
    PageLoad,
    PageSave,
    ReadImage,
    SaveImage,
    UnlinkImage,
)
from tokenix.drivers.sim import SimDevice
from tokenix.mm.ids import Slot
from tokenix.tests.device.machine import Machine, Proc
from tokenix.tests.device.test_forward import NEW, agree, alone, prompts

PATH, META = "saved/t-red/one.img", b"all there is to say"


def do(machine: Machine, command: ImageCommand) -> ImageDone:
    done = machine.wait(machine.submit(command))
    assert isinstance(done, ImageDone)
    return done


def save(machine: Machine, *slots: tuple[int, int]) -> ImageDone:
    pages = tuple(PageSave(Slot(slot), generation) for slot, generation in slots)
    return do(machine, SaveImage(machine.ticket(), PATH, META, pages))


def load(machine: Machine, digest: bytes, *pages: tuple[int, int, int]) -> ImageDone:
    """(index, slot, generation)s."""
    parts = tuple(PageLoad(index, Slot(slot), generation) for index, slot, generation in pages)
    return do(machine, LoadImage(machine.ticket(), PATH, digest, parts))


def read(machine: Machine) -> ImageDone:
    return do(machine, ReadImage(machine.ticket(), PATH))


def flip(device: Device, directory: Path, place: int) -> None:
    """Damage a byte of the file."""
    if isinstance(device, SimDevice):
        device.images.flip(PATH, place)
        return
    data = bytearray((directory / PATH).read_bytes())
    data[place] ^= 1
    (directory / PATH).write_bytes(data)


@pytest.fixture
def full(machine: Machine, tmp_path: Path) -> Proc:
    """A process of three full pages in frames 0, 1, 2 and slots 0, 1, 2 of generation 1, and an
    image directory."""
    assert do(machine, OpenImages(machine.ticket(), str(tmp_path))) == ImageDone(
        machine._tickets  # type: ignore[arg-type]
    )
    (prompt,) = prompts(machine, 3 * machine.page_tokens + 1)
    proc = machine.proc(prompt, [0, 1, 2, 3, 4])
    machine.step(proc)
    assert isinstance(machine.swap_out((0, 0, 1), (1, 1, 1), (2, 2, 1)), CopyDone)
    return proc


def bury(machine: Machine) -> None:
    """Nothing but the image holds the full pages any more."""
    other = machine.proc(prompts(machine, machine.page_tokens, machine.page_tokens)[1], [30, 31])
    machine.step(other)
    machine.swap_out(*((30, slot, 50) for slot in range(3)))
    machine.wipe(0, 1, 2)


def test_pages_come_back_as_they_were(machine: Machine, full: Proc) -> None:
    saved = save(machine, (0, 1), (1, 1), (2, 1))
    assert (saved.error, saved.pages) == (0, 3) and saved.size_bytes > 3 * 4096
    bury(machine)
    found = read(machine)
    assert (found.error, found.meta, found.pages) == (0, META, 3)
    done = load(machine, found.digest, (2, 9, 7), (0, 7, 7), (1, 8, 8))
    assert (done.error, done.bad) == (0, ())
    assert isinstance(machine.swap_in((7, 7, 12), (8, 8, 11), (9, 7, 10)), CopyDone)
    full.move([12, 11, 10, 3, 4])
    machine.decode(full, tokens=NEW)
    assert agree(machine, full, alone(machine, full.tokens[: full.prompt], NEW + 1))


def test_slots_that_hold_something_else_are_not_saved(machine: Machine, full: Proc) -> None:
    """Nor what is behind them."""
    assert save(machine, (0, 1), (1, 4), (2, 1)).pages == 1
    assert save(machine, (3, 1), (2, 1)).pages == 0
    found = read(machine)
    assert (found.meta, found.pages) == (META, 0), "the newer one has taken its place"


def test_a_damaged_page_is_bad_and_its_slot_holds_nothing(
    machine: Machine, full: Proc, tmp_path: Path
) -> None:
    size = save(machine, (0, 1), (1, 1), (2, 1)).size_bytes
    found = read(machine)
    page = (size - 4096) // 3
    flip(machine.device, tmp_path, 4096 + page + 19)
    assert load(machine, found.digest, (0, 7, 7), (1, 8, 8), (2, 9, 9)).bad == (1,)
    machine.expects_breach = True
    assert machine.swap_in((8, 8, 11)) != CopyDone(machine._tickets)  # type: ignore[arg-type]


def test_a_damaged_head_is_refused(machine: Machine, full: Proc, tmp_path: Path) -> None:
    save(machine, (0, 1))
    digest = read(machine).digest
    for place in (0, 9, 20, 40, 60, 4095):
        flip(machine.device, tmp_path, place)
        assert read(machine).error in (errno.EBADMSG, errno.EINVAL)
        done = load(machine, digest, (0, 7, 7))
        assert done.error and done.bad == (0,)
        flip(machine.device, tmp_path, place)
    assert not load(machine, digest, (0, 7, 7)).error


def test_pages_of_another_image_are_refused(machine: Machine, full: Proc) -> None:
    save(machine, (0, 1))
    digest = read(machine).digest
    save(machine, (1, 1))
    done = load(machine, digest, (0, 7, 7))
    assert (done.error, done.bad) == (errno.EBADMSG, (0,))


def test_pages_that_an_image_does_not_have(machine: Machine, full: Proc) -> None:
    save(machine, (0, 1))
    assert load(machine, read(machine).digest, (0, 7, 7), (1, 8, 8), (99, 9, 9)).bad == (1, 2)


def test_images_are_listed_and_removed(machine: Machine, full: Proc, tmp_path: Path) -> None:
    size = save(machine, (0, 1)).size_bytes
    again = do(machine, OpenImages(machine.ticket(), str(tmp_path / "." / "")))
    if not again.error:  # the real disk is locked, by this device itself
        assert again.files == ((PATH, size),)
    assert not do(machine, UnlinkImage(machine.ticket(), PATH)).error
    for command in (ReadImage(machine.ticket(), PATH), UnlinkImage(machine.ticket(), PATH)):
        assert do(machine, command).error == errno.ENOENT
    assert load(machine, b"", (0, 7, 7)).error == errno.ENOENT
