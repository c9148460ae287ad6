"""Tar archives by their headers: what the standard library finds, and errors where it would say nothing."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import time

import pytest

from tar_files import END, filled, header, picture, write_tar
from vitrail.data.sources.tar_index import iter_tar_entries, quote_tar_name
from vitrail.errors import DataError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
FILES = {"a.png": b"1" * 700, "empty.cls": b"", "folder/b.jpg": b"22", "c.txt": b"3" * 512, "last.json": b"{}" * 9999}


def found(path):
    return [(entry.name, entry.offset, entry.size, entry.kind) for entry in iter_tar_entries(path)]


def as_the_library_finds(path):
    with tarfile.open(path) as tar:
        return [(each.name, each.offset_data, each.size, "file") for each in tar if each.isreg()]


@pytest.mark.parametrize("layout", FORMATS.values(), ids=FORMATS)
def test_every_file_is_found_where_the_standard_library_finds_it(layout, tmp_path):
    path = write_tar(tmp_path / "a.tar", FILES, layout)
    assert found(path) == as_the_library_finds(path)
    with path.open("rb") as file:
        for (_, offset, size, _), contents in zip(found(path), FILES.values(), strict=True):
            file.seek(offset)
            assert file.read(size) == contents


@pytest.mark.parametrize("layout", ["gnu", "pax"])
def test_names_that_fit_into_no_header_are_read(layout, tmp_path):
    names = ["x" * 99, "x" * 100, "x" * 101, "long/" * 60 + "b.png", "é" * 80 + ".png", "雪/🐈.png", "c.png"]
    path = write_tar(tmp_path / "a.tar", dict.fromkeys(names, b"12"), FORMATS[layout])
    assert [entry.name for entry in iter_tar_entries(path)] == names
    assert found(path) == as_the_library_finds(path)


def test_names_of_up_to_256_bytes_are_joined_from_both_fields_of_old_headers(tmp_path):
    names = ["folder/" * 20 + "b.png", "a" * 100]
    path = write_tar(tmp_path / "a.tar", dict.fromkeys(names, b"12"))
    assert [entry.name for entry in iter_tar_entries(path)] == names


def test_names_in_no_known_encoding_survive(tmp_path):
    (tmp_path / "a.tar").write_bytes(header(b"caf\xe9.png", 1) + filled(b"x") + END)
    assert found(tmp_path / "a.tar") == [("caf\udce9.png", 512, 1, "file")]


def test_folders_links_and_devices_are_told_from_files(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        kinds = {"d": tarfile.DIRTYPE, "s": tarfile.SYMTYPE, "h": tarfile.LNKTYPE, "p": tarfile.FIFOTYPE}
        for name, kind in kinds.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "f" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            tar.addfile(entry)
        entry = tarfile.TarInfo("f")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    assert [(entry.name.rstrip("/"), entry.kind) for entry in iter_tar_entries(path)] == [
        ("d", "folder"), ("s", "link"), ("h", "link"), ("p", "other"), ("f", "file"),
    ]  # fmt: skip


def test_archives_from_before_1988_are_read(tmp_path):
    blocks = header(b"old/", 0, b"\0", b"") + header(b"old/a.png", 2, b"\0", b"") + filled(b"xy")
    (tmp_path / "a.tar").write_bytes(blocks + END)
    assert found(tmp_path / "a.tar") == [("old/", 512, 0, "folder"), ("old/a.png", 1024, 2, "file")]


def test_sizes_in_binary_are_read(tmp_path):
    (tmp_path / "a.tar").write_bytes(header(b"a.png", b"\x80" + (3).to_bytes(11)) + filled(b"abc") + END)
    assert found(tmp_path / "a.tar") == [("a.png", 512, 3, "file")]


def test_a_damaged_header_in_the_middle_is_an_error_and_not_the_end(tmp_path):
    path = write_tar(tmp_path / "a.tar", FILES)
    data = bytearray(path.read_bytes())
    place = found(path)[2][1] - 512
    data[place + 5] ^= 1
    path.write_bytes(data)
    assert len(as_the_library_finds(path)) == 2  # and three files are lost without a word
    with pytest.raises(DataError, match=rf"a\.tar is damaged: there is no readable header at byte {place:,}\. Fetch"):
        found(path)


def test_no_changed_byte_of_a_header_goes_unnoticed(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a.png": b"1", "b.png": b"2"})
    before, whole = found(path), path.read_bytes()
    noticed = 0
    for place in [*range(0, 512, 2), *range(1025, 1536, 2)]:
        data = bytearray(whole)
        data[place] ^= 0x11
        path.write_bytes(data)
        try:
            assert found(path) == before  # only in the blanks around the checksum itself
        except DataError:
            noticed += 1
    assert noticed >= 508


def test_a_file_cut_off_anywhere_is_noticed(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a.png": b"1" * 600, "b.png": b"2" * 30})
    whole = path.read_bytes()
    end = 512 + 1024 + 512 + 512
    for length in [*range(0, end + 512, 13), end, end + 511]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"a\.tar (is cut off|lacks the empty|is damaged|is not a tar file)"):
            found(path)
    path.write_bytes(whole[: end + 512])
    assert len(found(path)) == 2


def test_what_is_cut_off_says_how_much_is_missing(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a.png": b"1" * 6000})
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"cut off: 'a\.png' should end at byte 6,512, but the file has 1,000 bytes\."):
        found(path)


def test_a_missing_end_says_how_to_close_the_file(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(header(b"a.png", 1) + filled(b"x"))
    with pytest.raises(DataError, match=r"lacks the empty blocks .* `head -c 1024 /dev/zero >> a\.tar` closes it"):
        found(path)
    path.write_bytes(path.read_bytes() + END)
    assert len(found(path)) == 1


def test_two_archives_joined_by_cat_are_refused(tmp_path):
    first, second = (write_tar(tmp_path / f"{name}.tar", {f"{name}.png": b"1"}) for name in "ab")
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(DataError, match=r"ends at byte 1,024, yet more follows.*tar --concatenate"):
        found(first)


@pytest.mark.parametrize(("kind", "pack"), [("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)])
def test_a_packed_archive_says_how_to_unpack_it(kind, pack, tmp_path):
    path = write_tar(tmp_path / "a.tar", FILES)
    path.write_bytes(pack(path.read_bytes()))
    with pytest.raises(DataError, match=rf"packed with {kind}.*`{kind} -dc a\.tar > unpacked\.tar`"):
        found(path)


def test_what_is_no_archive_is_named(tmp_path):
    path = tmp_path / "a.tar"
    for data in (picture(7), b"hello", bytes(range(256)) * 4):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.tar is not a tar file\. Fetch"):
            found(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"is not a tar file, it is empty\."):
        found(path)


def test_pipes_folders_and_missing_files_do_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    (tmp_path / "folder.tar").mkdir()
    for name in ("pipe.tar", "folder.tar"):
        with pytest.raises(DataError, match=rf"{name} is a folder, pipe, socket or device"):
            found(tmp_path / name)
    with pytest.raises(DataError, match=r"gone\.tar cannot be read \(no such file or directory\)"):
        found(tmp_path / "gone.tar")


def pax(*lines: bytes, kind: bytes = b"x") -> bytes:
    data = b"".join(lines)
    return header(b"told", len(data), kind) + filled(data)


def line(text: bytes) -> bytes:
    length = len(text) + 2
    while len(b"%d %s\n" % (length, text)) != length:
        length += 1
    return b"%d %s\n" % (length, text)


HOSTILE = {
    "old sparse": (header(b"a.png", 1, b"S") + filled(b"x"), r"holds a sparse file \(pack it without --sparse\): 'a"),
    "new sparse": (pax(line(b"GNU.sparse.major=1")) + header(b"a.png", 1) + filled(b"x"), r"holds a sparse file at"),
    "second volume": (header(b"a.png", 1, b"M") + filled(b"x"), r"second part of a file \(join the volumes\)"),
    "a size below zero": (header(b"a.png", b"-0000000005\0"), r"is not a tar file"),
    "a binary size below zero": (header(b"a.png", b"\xff" * 12), r"is not a tar file"),
    "a size beyond all disks": (header(b"a.png", b"\x80" + b"\xff" * 11), r"is cut off: 'a\.png' should end at byte"),
    "a size of letters": (header(b"a.png", b"12x4\0".ljust(12)), r"is not a tar file"),
    "a told size of letters": (pax(line(b"size=1e9")) + header(b"a.png", 1), r"says that 'a\.png' is '1e9' bytes"),
    "a told size beyond": (pax(line(b"size=99999")) + header(b"a.png", 1) + filled(b"x"), r"is cut off: 'a\.png'"),
    "one name for all": (pax(line(b"path=a.png"), kind=b"g") + END, r"gives all of its files one path \(byte 0\)"),
    "a line of no length": (pax(b"0 a=b\n") + END, r"is damaged: there is no readable header at byte 0|not a tar"),
    "a line beyond the header": (pax(b"99 a=b\n") + END, r"is damaged: there is no readable header at byte 0"),
    "a line without a name": (pax(b"6 ab\n\n") + END, r"is damaged"),
    "a long header": (header(b"l", 2**21, b"L") + bytes(2**21) + END, r"a header of 2,097,152 bytes at byte 0, limit"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_headers_are_refused_in_words(data, words, tmp_path):
    (tmp_path / "a.tar").write_bytes(data + END)
    with pytest.raises(DataError, match=words):
        found(tmp_path / "a.tar")


def test_comments_for_all_files_are_harmless(tmp_path):
    data = pax(line(b"comment=made by git"), kind=b"g") + header(b"a.png", 1) + filled(b"x") + END
    (tmp_path / "a.tar").write_bytes(data)
    assert [entry.name for entry in iter_tar_entries(tmp_path / "a.tar")] == ["a.png"]


def test_a_header_of_many_small_lines_takes_no_long_time(tmp_path):
    (tmp_path / "a.tar").write_bytes(pax(b"6 a=b\n" * 43_000) + header(b"a.png", 1) + filled(b"x") + END)
    begun = time.process_time()
    assert len(found(tmp_path / "a.tar")) == 1
    assert time.process_time() - begun < 5


def test_names_in_messages_stay_on_one_line():
    assert quote_tar_name("a\nb\x1b[31m\udce9") == r"'a\nb\x1b[31m\\xe9'"
    assert len(quote_tar_name("x" * 5000)) < 210
