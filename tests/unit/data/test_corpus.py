"""Part C of the checklist: each of 64 kinds of file has its outcome in training and check, and none is a surprise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from corpus import limits, places
from corpus.all_cases import CASES, of
from corpus.case import Case
from corpus.damaged import jpeg
from vitrail.data.decoding.decode import decode_image, read_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec

OTHER_ENDING = "ending does not match contents"


def kinds(*numbers: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", of(*numbers), ids=str)


def comes_out(case: Case, folder: Path) -> None:
    """As its table says: refused by a sentence that names the file, or read with these remarks and these pixels."""
    path = folder / case.name
    path.write_bytes(case.make())
    spec = ImageSpec(low=case.low, high=case.high)
    if case.says:
        with pytest.raises(DataError) as caught:
            decode_image(path, spec)
        assert str(caught.value).startswith(f"{path}: ")
        assert re.search(case.says, str(caught.value).removeprefix(f"{path}: ")), str(caught.value)
        return
    assert tuple(remark for remark in read_image(path, spec).remarks if remark != OTHER_ENDING) == case.remarks
    pixels = decode_image(path, spec)
    assert pixels.dtype == np.uint8
    if case.golden is not None:
        expected = case.golden()
        assert pixels.shape == expected.shape
        assert np.abs(pixels.astype(int) - expected).max() <= case.within


@kinds(*range(1, 7))
def test_C1_to_C6_what_is_no_picture_is_named(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(7, 13))
def test_C7_to_C12_a_cut_file_is_truncated_and_a_missing_end_marker_is_remarked(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(13, 17))
def test_C13_to_C16_checksums_are_believed_where_there_are_any(case, tmp_path):
    comes_out(case, tmp_path)


def test_C11_a_jpeg_without_its_end_marker_has_all_its_pixels(tmp_path):
    (tmp_path / "a.jpg").write_bytes(of(11)[0].make())
    (tmp_path / "b.jpg").write_bytes(jpeg())
    cut, whole = (decode_image(tmp_path / name, ImageSpec()) for name in ("a.jpg", "b.jpg"))
    assert np.array_equal(cut, whole)


def test_C13_a_flipped_bit_in_a_jpeg_gives_other_pixels_and_no_error(tmp_path):
    (tmp_path / "a.jpg").write_bytes(of(13)[0].make())
    (tmp_path / "b.jpg").write_bytes(jpeg())
    flipped, whole = (decode_image(tmp_path / name, ImageSpec()) for name in ("a.jpg", "b.jpg"))
    assert not np.array_equal(flipped, whole)


@kinds(*range(17, 23))
def test_C17_to_C22_bombs_are_refused(case, tmp_path):
    comes_out(case, tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="measures in child processes")
def test_C17_to_C22_bombs_are_refused_in_50_ms_and_64_mib(tmp_path):
    files = [tmp_path / case.name for case in of(*range(17, 23))]
    for path, case in zip(files, of(*range(17, 23)), strict=True):
        path.write_bytes(case.make())
    words = [sys.executable, limits.__file__, *map(str, files)]
    tests = {**os.environ, "PYTHONPATH": str(Path(limits.__file__).parents[1])}
    answers = [json.loads(line) for line in subprocess.check_output(words, text=True, env=tests).splitlines()]
    assert [answer["name"] for answer in answers] == [path.name for path in files]
    for answer in answers:
        assert answer["says"], answer
        assert answer["seconds"] < 0.05, answer
        assert answer["mebibytes"] < 64, answer


@kinds(*range(23, 27))
def test_C23_to_C26_odd_sizes_are_read_and_no_size_is_refused(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(27, 34))
def test_C27_to_C33_every_mode_has_its_golden_pixels(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(34, 40))
def test_C34_to_C39_deep_pictures_are_scaled_and_never_clipped(case, tmp_path):
    comes_out(case, tmp_path)


@pytest.mark.parametrize("number", [34, 35, 36, 37, 38])
def test_C34_to_C38_a_ramp_keeps_at_least_255_levels(number, tmp_path):
    case = of(number)[0]
    (tmp_path / case.name).write_bytes(case.make())
    assert len(np.unique(decode_image(tmp_path / case.name, ImageSpec(low=case.low, high=case.high)))) >= 255


@kinds(*range(40, 44))
def test_C40_to_C43_cmyk_and_lab_are_within_three_levels_and_never_inverted(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(44, 47))
def test_C44_to_C46_colour_profiles_are_ignored_and_counted(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(47, 56))
def test_C47_to_C55_pictures_come_upright_and_odd_exif_costs_no_picture(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(56, 59))
def test_C56_to_C58_of_an_animation_the_first_frame_is_read_and_pages_want_a_choice(case, tmp_path):
    comes_out(case, tmp_path)


@kinds(*range(59, 64))
def test_C59_to_C63_contents_decide_and_foreign_formats_are_never_opened(case, tmp_path):
    comes_out(case, tmp_path)


def test_C59_an_ending_that_lies_is_remarked(tmp_path):
    (tmp_path / "png.jpg").write_bytes(of(59)[0].make())
    assert read_image(tmp_path / "png.jpg", ImageSpec()).remarks == (OTHER_ENDING,)
    (tmp_path / "UPPER.PNG").write_bytes(of(59)[0].make())
    assert read_image(tmp_path / "UPPER.PNG", ImageSpec()).remarks == ()


def test_C62_no_parser_is_started_for_foreign_formats(tmp_path, monkeypatch):
    from vitrail.data.decoding import decode

    monkeypatch.setattr(decode, "PARSERS", {})
    for case in (case for case in of(61, 62) if case.says):
        with pytest.raises(DataError, match="not a picture"):
            decode.parse_image(case.make(), ImageSpec())


@pytest.mark.timeout(20)
def test_C64_what_is_no_plain_file_never_blocks_and_is_named(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    places.build(folder)
    for name, says in places.SAYS.items():
        rights = places.as_nobody() if name == "closed.png" else nullcontext()
        with pytest.raises(DataError, match=rf"{name}: .*{says}"), rights:
            read_image(folder / name, ImageSpec())
    assert decode_image(folder / "linked.png", ImageSpec()).shape == (36, 52, 3)


def test_every_kind_has_its_case():
    assert {case.number for case in CASES} == set(range(1, 64))
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.status for case in CASES if not case.says} == {200}
    assert not {case.status for case in CASES if case.says} & {200, 500}
