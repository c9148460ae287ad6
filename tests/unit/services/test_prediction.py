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


def test_what_is_no_picture_is_named_by_its_place():
    with pytest.raises(DataError, match=r"picture 1: .*Got nothing"):
        parse_images([COLOUR, None])
