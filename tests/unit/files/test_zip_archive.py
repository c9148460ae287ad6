"""Archives are judged by their directory. Most tricks are in tests/hostile_archives.py; here is what remains."""

from __future__ import annotations

import struct
import zipfile

import pytest

from vitrail.errors import DamagedFileError
from vitrail.files.zip_archive import ZipArchive


@pytest.fixture
def made(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("plain", b"abc")
        archive.writestr("folder/packed", b"abc" * 1000, zipfile.ZIP_DEFLATED)
    return ZipArchive(tmp_path / "a.zip")


def test_members_are_read_packed_or_not(made):
    assert made.read("plain", 3) == b"abc"
    assert made.read("folder/packed", 3000) == b"abc" * 1000
    assert made.read_prefix("folder/packed", 4) == b"abca" and made.read_prefix("plain", 2) == b"ab"
    assert made.memory[made.verify_uncompressed("plain").offset :][:3] == b"abc"


def test_a_member_that_is_asked_for_often_is_compared_once(made, monkeypatch):
    compared = []
    monkeypatch.setattr(ZipArchive, "_check_crc", lambda self, member, data: compared.append(member.name))
    assert made.verify_uncompressed("plain") == made.verify_uncompressed("plain") and compared == ["plain"]


def test_a_member_without_a_checksum_is_noticed(made):
    data = bytearray(made.path.read_bytes())
    assert made.has_checksums()
    place = data.index(b"PK\x01\x02") + 16
    data[place : place + 4] = bytes(4)
    made.path.write_bytes(data)
    assert not ZipArchive(made.path).has_checksums()


def test_no_more_than_the_limit_is_unpacked(made):
    with pytest.raises(DamagedFileError, match=r"folder/packed unpacks to 3000 bytes; at most 2999 are read"):
        made.read("folder/packed", 2999)


def test_what_is_not_there_or_packed_is_named(made):
    with pytest.raises(DamagedFileError, match="none is missing from it"):
        made.member("none")
    with pytest.raises(DamagedFileError, match="folder/packed is packed, which torch never does"):
        made.verify_uncompressed("folder/packed")


def test_a_large_archive_in_the_format_of_today_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, archive.open("x", "w", force_zip64=True) as file:
        file.write(b"abc")
    assert ZipArchive(tmp_path / "a.zip").read("x", 3) == b"abc"


def test_the_second_record_at_the_end_of_a_large_archive_is_read(made):
    data = made.path.read_bytes()
    entries, length, offset = struct.unpack("<HII", data[-12:-2])
    large = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, entries, entries, length, offset)
    signpost = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(data) - 22, 1)
    full = data[-22:-14] + b"\xff" * 12 + bytes(2)
    made.path.write_bytes(data[:-22] + large + signpost + full)
    assert ZipArchive(made.path).read("folder/packed", 3000) == b"abc" * 1000


def test_something_before_and_behind_an_archive_is_no_archive(tmp_path, made):
    data = made.path.read_bytes()
    for changed in (b"MZ" + data, data[:-1]):
        made.path.write_bytes(changed)
        with pytest.raises(DamagedFileError, match="is not a whole archive "):
            ZipArchive(made.path)
