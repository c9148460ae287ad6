"""Pairs, and pictures apart from labels: every kind of picture that a person holds in Python."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.decoding.decode import decode_image
from vitrail.data.open import open_source
from vitrail.data.preprocess import preprocess_image
from vitrail.data.settings import DataSettings
from vitrail.data.source import LazyImage
from vitrail.data.sources.image_input import load_image_input
from vitrail.errors import DataError, UsageError
from vitrail.spec import ImageSpec

RGB = ImageSpec(height=37, width=53)
LABELS = ["cat", "dog", "cat"]


def pixels(source, row: int, spec: ImageSpec = RGB) -> np.ndarray:
    return decode_image(source.images[row], spec)


def test_a_picture_may_be_a_path_an_array_a_tensor_or_of_pillow(photo, tmp_path):
    Image.fromarray(photo).save(tmp_path / "a.png")
    tensor = torch.from_numpy(photo).permute(2, 0, 1)
    given = [str(tmp_path / "a.png"), tmp_path / "a.png", photo, tensor, Image.fromarray(photo)]
    given += [Image.open(tmp_path / "a.png"), (tmp_path / "a.png").read_bytes()]
    labels = ["a", "b", "a", "b", "a", "b", "a"]
    for source in (open_source(list(zip(given, labels, strict=True))), open_source((given, labels))):
        assert source.classes == ("a", "b") and list(source.ids)[:2] == ["000000", "000001"]
        for row in range(len(given)):
            assert np.array_equal(pixels(source, row), photo), type(given[row])
            assert preprocess_image(source.images[row], RGB).shape == (3, 37, 53)


def test_paths_are_ids_where_they_differ(tmp_path):
    source = open_source([("a.png", 0), (Path("b.png"), 1)])
    assert list(source.ids) == ["a.png", "b.png"] and list(source.images) == [Path("a.png"), Path("b.png")]
    assert list(open_source([("a.png", 0), ("a.png", 1)]).ids) == ["000000", "000001"]
    for wrong in ("http://x.org/a.png", "a\0.png"):
        with pytest.raises(DataError, match="is no path of a file on this machine"):
            open_source([(wrong, 0), ("b.png", 1)])


def test_arrays_may_differ_in_size(photo):
    source = open_source([(photo, 0), (photo[:20], 1)])
    assert [picture.shape for picture in source.images] == [(37, 53, 3), (20, 53, 3)]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16"])
def test_a_pillow_picture_of_every_mode_is_what_its_file_is(photo, mode, tmp_path):
    grey = photo[..., 0]
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(photo).convert(mode)
    ending = "tif" if mode in ("CMYK", "YCbCr", "F", "I") else "png"
    image.save(tmp_path / f"a.{ending}")
    spec = RGB if mode not in ("I", "F", "I;16") else ImageSpec(high=65535.0 if mode == "I;16" else 255.0)
    source = open_source([(image, 0), (image, 1)])
    expected = decode_image(tmp_path / f"a.{ending}", spec)
    assert np.abs(pixels(source, 0, spec).astype(int) - expected).max() <= (1 if mode in ("CMYK", "YCbCr") else 0)


def test_opacity_is_laid_on_white_and_exif_turns(photo):
    alpha = np.concatenate([photo, np.full((37, 53, 1), 0, np.uint8)], -1)
    source = open_source([(Image.fromarray(alpha), 0), (Image.fromarray(alpha), 1)])
    assert (pixels(source, 0) == 255).all()
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(photo).save(file, "PNG", exif=exif)
    source = open_source([(Image.open(file), 0), (Image.open(file), 1)])
    assert np.array_equal(pixels(source, 1), np.rot90(photo, -1))


def test_pictures_in_memory_tell_their_kind_apart(photo):
    one, other = Image.fromarray(photo), Image.fromarray(photo[:10])
    first, second = open_source([(one, 0), (one, 1)]), open_source([(one, 0), (other, 1)])
    assert isinstance(first.images[0], LazyImage) and first.images[0].name == "000000"
    assert first.fingerprint() != second.fingerprint()
    assert first.fingerprint() == open_source([(one, 0), (one, 1)]).fingerprint()


@pytest.mark.parametrize("bfloat", [False, True])
def test_tensors_apart_from_labels(photo, bfloat):
    stack = torch.from_numpy(photo).permute(2, 0, 1)[None].repeat(3, 1, 1, 1)
    source = open_source((stack.bfloat16() if bfloat else stack, torch.tensor([0, 1, 1])))
    assert source.images.shape == (3, 37, 53, 3) and np.array_equal(source.images[1], photo) and not source.notes
    assert source.name == "arrays" and source.splits == {}


def test_a_list_of_two_is_two_pairs_unless_it_begins_with_many_pictures(photo):
    assert len(open_source([(photo, 0), (photo, 1)])) == len(open_source(((photo, 0), (photo, 1)))) == 2
    assert len(open_source([np.stack([photo] * 3), LABELS])) == len(open_source(([photo] * 3, LABELS))) == 3
    ragged = np.empty(3, object)
    ragged[:] = [photo, photo[:20], photo]
    assert len(open_source((ragged, LABELS))) == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, r"A int is no source of pictures\. Expected a list of \(picture, label\) pairs, a tuple"),
        ({"a": 1}, r"A dict is no source"),
        (np.zeros((3, 8, 8)), r"A ndarray is no source"),
        ([], r"The list of \(picture, label\) pairs is empty"),
        ([("a.png", 0), "b.png"], r"Row 1 of the list is a str, expected \(picture, label\)"),
        ([("a.png", 0, 1)], r"Row 0 of the list is a tuple of 3, expected"),
        ([("a.png", 0), (None, 1)], r"Picture 1 is nothing, expected a path"),
        ([("a.png", 0), (7, 1)], r"Picture 1 is a int, expected a path"),
        ((7, [1, 2]), r"Pictures must be an array, a tensor or a list\. Got a int"),
        ((["a.png"], [1, 2]), r"labels: 1 picture, but 2 labels"),
        ([(np.zeros((2, 2, 2, 2)), 0), (np.zeros((2, 2)), 1)], r"picture 0: a picture must have the shape"),
    ],
)
def test_what_is_no_source_is_refused_in_a_sentence(given, words):
    with pytest.raises(DataError, match=words):
        open_source(given)


def test_columns_cannot_be_named_where_there_are_none(photo):
    for name in ("path", "split", "group"):
        with pytest.raises(UsageError, match=rf"--(data\.)?{name} x names a column; what was given has no columns"):
            open_source([(photo, 0), (photo, 1)], DataSettings(**{name: "x"}))
    with pytest.raises(UsageError, match=r"--data\.targets x names a column"):
        open_source((np.stack([photo] * 3), LABELS), DataSettings(targets=("x",)))
    with pytest.raises(
        UsageError, match=r"--data\.keep_empty true keeps class folders .*; what was given has no folders"
    ):
        open_source([(photo, 0), (photo, 1)], DataSettings(keep_empty=True))


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ({"bytes": None, "path": "/nowhere/a.png"}, r"x: /nowhere/a\.png: cannot be read \(no such file"),
        ({"bytes": None, "path": None}, r"x: a picture must be a path.* Got nothing\."),
        ([1, 2], r"x: a picture must be a path.* Got a list\."),
        ("a\0b", r"x: a\x00b: cannot be read"),
        (np.array(["a"]), r"x: a picture must have the shape"),
        (np.array([["a"]]), r"x: pictures must hold integers or fractions"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(picture, words):
    with pytest.raises(DataError, match=words):
        load_image_input(picture, "x")
