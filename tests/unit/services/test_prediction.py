"""What a person may hand over to `Run.predict`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.errors import DataError, UsageError
from vitrail.services.prediction import parse_images

COLOUR = np.arange(6 * 9 * 3, dtype=np.uint8).reshape(6, 9, 3)


def test_pictures_of_every_kind_become_files_bytes_or_channels_last_arrays():
    encoded = io.BytesIO()
    Image.fromarray(COLOUR).save(encoded, "PNG")
    tensor = torch.from_numpy(COLOUR).permute(2, 0, 1)
    asked = parse_images(["a.png", Path("b.png"), encoded.getvalue(), COLOUR, tensor, Image.fromarray(COLOUR)])
    assert asked[:3] == [Path("a.png"), Path("b.png"), encoded.getvalue()]
    assert all(np.array_equal(picture, COLOUR) for picture in asked[3:])


def test_an_array_of_pictures_is_a_list_of_them():
    assert [picture.shape for picture in parse_images(np.stack([COLOUR, COLOUR]))] == [(6, 9, 3)] * 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (COLOUR, r"Got one array with 3 axes; write \[picture\]"),
        (torch.zeros(3, 4, 4), r"Got one array with 3 axes"),
        ("a.png", r"Got 'a\.png'; write \['a\.png'\]"),
        (Path("a.png"), r"a\.png"),
        (Image.new("L", (2, 2)), r"Got a Image; write \[a Image\]"),
        (b"\x89PNG", r"Got a bytes"),
    ],
)
def test_a_single_picture_is_not_taken_for_a_list_of_its_parts(given, words):
    with pytest.raises(UsageError, match=words):
        parse_images(given)


@pytest.mark.parametrize(
    "given",
    [
        np.array(["a.png", "b.png"]),
        np.array(["a.png", Path("b.png")], dtype=object),
        (name for name in ("a.png", "b.png")),
        map(Path, ["a.png", "b.png"]),
    ],
)
def test_columns_of_paths_and_iterators_are_lists_of_pictures(given):
    assert parse_images(given) == [Path("a.png"), Path("b.png")]


def test_a_series_is_a_list_of_pictures_whatever_its_index():
    pandas = pytest.importorskip("pandas")
    assert parse_images(pandas.Series(["a.png", "b.png"], index=[7, 7])) == [Path("a.png"), Path("b.png")]
    with pytest.raises(UsageError, match=r"Got one array with 2 axes; .*frame\['path'\] if it is a table"):
        parse_images(pandas.DataFrame({"path": ["a.png"]}))


@pytest.mark.parametrize("given", [[], (), np.zeros((0, 6, 9, 3), np.uint8), np.array([], dtype=str)])
def test_no_picture_at_all_is_refused_with_a_sentence(given):
    with pytest.raises(UsageError, match=r"^embed takes a list of pictures\. Got an empty \w+; name at least one\.$"):
        parse_images(given, "embed")


@pytest.mark.parametrize("given", [{"a.png", "b.png"}, {"a.png": 0}])
def test_what_has_no_order_is_no_list(given):
    with pytest.raises(UsageError, match="takes a list of pictures"):
        parse_images(given)


def test_an_address_is_never_taken_for_a_path():
    with pytest.raises(DataError, match=r"picture 1: 'https://host/a\.png' is an address, .*Fetch it first"):
        parse_images(["a.png", "https://host/a.png"])


def test_what_is_no_picture_is_named_by_its_place():
    with pytest.raises(DataError, match=r"picture 1: .*Got nothing"):
        parse_images([COLOUR, None])
