"""Files of a shard become samples by WebDataset's rule, and what fits no rule is said."""

from __future__ import annotations

import tarfile

import pytest

from tar_files import END, filled, header, picture, write_tar
from vitrail.data.sources.tar_index import TarShard
from vitrail.data.sources.webdataset import index_samples
from vitrail.errors import DataError

PNG = picture(9)


def samples(tmp_path, files, picture="", labels=("cls", "json", "txt")):
    path = write_tar(tmp_path / "a.tar", files)
    return index_samples(str(tmp_path), [("a.tar", TarShard.from_path(path))], labels, picture)


def names(found):
    return [member.name.rpartition("a.tar/")[2] for member in found.images]


def test_a_sample_is_all_files_of_one_name_up_to_its_first_dot(tmp_path):
    files = {"x/1.png": PNG, "x/1.cls": b"0", "y/1.png": PNG, "y/1.cls": b"1", "2.png": PNG, "2.json": b"{}"}
    found = samples(tmp_path, files)
    assert list(found.ids) == ["a.tar/x/1", "a.tar/y/1", "a.tar/2"]
    assert found.labels["cls"].present_rows().tolist() == [0, 1] and found.labels["json"].present_rows().tolist() == [2]
    assert not found.notes


def test_files_of_a_sample_need_not_follow_each_other(tmp_path):
    files = {"1.png": PNG, "2.png": picture(2), "2.cls": b"two", "1.cls": b"one"}
    found = samples(tmp_path, files)
    cls = found.labels["cls"]
    data = (tmp_path / "a.tar").read_bytes()
    texts = [data[start : start + size] for start, size in zip(cls.offsets, cls.sizes, strict=True)]
    assert (list(found.ids), texts) == (["a.tar/1", "a.tar/2"], [b"one", b"two"])
    assert found.images[1].fetch() == picture(2)


def test_labels_may_come_before_pictures_and_endings_in_capitals(tmp_path):
    found = samples(tmp_path, {"1.CLS": b"0", "1.PNG": PNG, "2.cls": b"1", "2.JPEG": PNG})
    assert names(found) == ["1.png", "2.jpeg"] and len(found.labels["cls"].present_rows()) == 2


def test_of_several_pictures_the_first_kind_is_taken_whatever_the_order(tmp_path):
    found = samples(tmp_path, {"1.png": PNG, "1.jpg": picture(1), "2.jpg": picture(2), "2.png": PNG, "2.seg.png": PNG})
    assert names(found) == ["1.jpg", "2.jpg"]
    assert [member.fetch() for member in found.images] == [picture(1), picture(2)]
    assert found.notes == ("Did not read 3 other files of the samples: 2 x '.png', 1 x '.seg.png'.",)


def test_pictures_of_equal_right_ask_for_a_choice(tmp_path):
    files = {"1.left.png": picture(1), "1.right.png": picture(2)}
    words = r"a\.tar/1 has several pictures, \.left\.png and \.right\.png\..*--data\.path left\.png"
    with pytest.raises(DataError, match=words):
        samples(tmp_path, files)
    assert samples(tmp_path, files, picture="right.png").images[0].fetch() == picture(2)
    assert samples(tmp_path, files, picture=".Left.PNG").images[0].fetch() == picture(1)


def test_names_with_many_dots_ask_for_a_choice_and_quote_the_rule(tmp_path):
    with pytest.raises(DataError, match=r"\.2021\.01\.png and \.2021\.02\.png.*up to its first dot"):
        samples(tmp_path, {"photo.2021.01.png": PNG, "photo.2021.02.png": PNG})


def test_a_choice_that_no_sample_has_lists_what_there_is(tmp_path):
    with pytest.raises(DataError, match=r"no pictures found.*ending in \.jpg, as --data\.path says; got .*1 x '\.png'"):
        samples(tmp_path, {"1.png": PNG}, picture="jpg")


def test_shards_without_pictures_list_what_there_is(tmp_path):
    with pytest.raises(DataError, match=r"a\.tar: no pictures found\. Expected .*\.jpg, .*; got .*2 x '\.mp4'"):
        samples(tmp_path, {"1.mp4": b"", "2.mp4": b"", "1.cls": b"0"})
    with pytest.raises(DataError, match=r"no pictures found.*got nothing of the kind"):
        samples(tmp_path, {})


@pytest.mark.parametrize("name", ["1.png", "1.cls"])
def test_a_name_that_stands_twice_is_refused(name, tmp_path):
    files = [("1.png", PNG), ("1.cls", b"0"), ("2.png", PNG), (name, b"x")]
    with pytest.raises(DataError, match=rf"a\.tar holds '{name}' twice, the second at byte [0-9,]+; which one"):
        samples(tmp_path, files)


def test_samples_without_a_picture_are_left_out_and_named(tmp_path):
    files = {"0.cls": b"7", "1.png": PNG, "1.cls": b"0"} | {f"x{number}.cls": b"0" for number in range(7)}
    found = samples(tmp_path, files)
    assert list(found.ids) == ["a.tar/1"] and found.labels["cls"].offsets.tolist() == [512 * 5]
    assert found.notes == (
        "Left out 8 samples that have no picture: a.tar/0, a.tar/x0, a.tar/x1, a.tar/x2, a.tar/x3 and 3 more.",
    )


def test_D3_litter_of_file_managers_is_left_out_and_counted(tmp_path):
    litter = {
        ".DS_Store": b"",
        "x/._1.png": PNG,
        "__MACOSX/x/1.png": PNG,
        "@eaDir/1.png": PNG,
        "Thumbs.db": b"",
        ".hidden.png": PNG,
    }
    found = samples(tmp_path, {"x/1.png": PNG, **litter})
    assert names(found) == ["x/1.png"]
    assert found.notes == ("Left out 6 hidden or system files.",)


def test_links_are_left_out_and_say_how_to_pack_what_they_lead_to(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"1.png": PNG})
    with tarfile.open(path, "a") as tar:
        entry = tarfile.TarInfo("2.png")
        entry.type, entry.linkname = tarfile.SYMTYPE, "../../../etc/passwd"
        tar.addfile(entry)
    found = index_samples(str(tmp_path), [("a.tar", TarShard.from_path(path))], ())
    assert names(found) == ["1.png"]
    assert (
        found.notes[0].startswith("Left out 1 link or device, which holds no picture")
        and "--hard-dereference" in found.notes[0]
    )


def test_D13_names_that_lead_elsewhere_become_harmless_text(tmp_path):
    hostile = ["/etc/passwd.png", "../../up.png", "./here.png", "a//b.png", "x/../y.png", "two\nlines.png"]
    found = samples(tmp_path, dict.fromkeys(hostile, PNG))
    assert list(found.ids) == [
        *("a.tar/etc/passwd", "a.tar/__/__/up", "a.tar/here", "a.tar/a/b", "a.tar/x/__/y", r"a.tar/two\nlines"),
    ]
    assert all(member.name.startswith(str(tmp_path / "a.tar")) and "\n" not in member.name for member in found.images)


def test_names_in_no_known_encoding_become_text_that_any_file_can_hold(tmp_path):
    (tmp_path / "a.tar").write_bytes(header(b"caf\xe9.png", len(PNG)) + filled(PNG) + END)
    found = index_samples(str(tmp_path), [("a.tar", TarShard.from_path(tmp_path / "a.tar"))], ())
    assert list(found.ids) == [r"a.tar/caf\xe9"]


def test_equal_names_in_different_shards_are_different_samples(tmp_path):
    paths = [write_tar(tmp_path / f"{name}.tar", {"1.png": picture(number)}) for number, name in enumerate("ab")]
    found = index_samples(str(tmp_path), [(path.name, TarShard.from_path(path)) for path in paths], ())
    assert list(found.ids) == ["a.tar/1", "b.tar/1"] and found.shard_indices.tolist() == [0, 1]
    assert [member.fetch() for member in found.images] == [picture(0), picture(1)]
