"""The file format of images: every byte of a head counts."""

import errno
import struct

import pytest

from tokenix.drivers.imagefile import (
    ALIGNMENT,
    MAGIC,
    PREAMBLE_BYTES,
    BadImage,
    Head,
    cut,
    file_bytes,
    measure,
    parse,
)

HEAD = Head(b"what the kernel says" * 7, (3, 1 << 63, 0), 5000)


def test_a_head_comes_back_as_it_was() -> None:
    packed = HEAD.pack()
    assert len(packed) == ALIGNMENT and HEAD.offset(0) == ALIGNMENT
    assert HEAD.offset(2) == 5 * ALIGNMENT and HEAD.file_bytes == 7 * ALIGNMENT
    assert file_bytes(len(HEAD.meta), 3, 5000) == HEAD.file_bytes
    assert measure(packed[:PREAMBLE_BYTES], HEAD.file_bytes) == len(packed)
    found = parse(packed)
    assert (found.meta, found.checksums, found.page_bytes) == (HEAD.meta, HEAD.checksums, 5000)
    assert found.digest and parse(Head(HEAD.meta, (4,), 5000).pack()).digest != found.digest


def test_an_image_may_have_no_pages() -> None:
    assert parse(Head(b"", (), 0).pack()).pages == 0


def test_every_flipped_byte_is_refused() -> None:
    packed = HEAD.pack()
    for place in range(len(packed)):
        for bit in (1, 0x80):
            bad = bytearray(packed)
            bad[place] ^= bit
            with pytest.raises(BadImage) as refused:
                parse(bytes(bad))
            assert refused.value.errno in (errno.EBADMSG, errno.EINVAL)


def test_every_length_but_the_right_one_is_refused() -> None:
    packed = HEAD.pack()
    for size in [*range(0, len(packed), 37), len(packed) - 1]:
        with pytest.raises(BadImage):
            parse(packed[:size])
    with pytest.raises(BadImage):
        parse(packed + b"\0")


def test_a_head_is_never_longer_than_its_file() -> None:
    """However large the sizes in it are: nobody allocates what they say."""
    packed = HEAD.pack()
    for fields in ((1 << 30, 5000, 10), (3, 5000, 1 << 60), (3, 0, 10)):
        preamble = struct.pack("<8sIIQQ", MAGIC, 1, *fields) + packed[32:PREAMBLE_BYTES]
        with pytest.raises(BadImage, match="damaged or cut off"):
            measure(preamble, HEAD.file_bytes)


def test_another_version_is_told_apart() -> None:
    packed = bytearray(HEAD.pack())
    packed[8] = 2
    with pytest.raises(BadImage, match="version 2 of the format, this is version 1"):
        parse(bytes(packed))


def test_pages_end_at_the_first_that_cannot_be_read() -> None:
    assert cut([1, 2, None, 4]) == (1, 2) and cut([None]) == () and cut([1, 2]) == (1, 2)
