"""Animations have one page for us: their first frame."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from corpus.writing import encoded, photo
from vitrail.data.decoding.decode import parse_image
from vitrail.errors import DataError
from vitrail.spec import ImageSpec


def animation(kind: str) -> bytes:
    """Two frames, dark and bright."""
    dark, bright = (Image.fromarray(np.full((8, 8, 3), level, np.uint8)) for level in (20, 220))
    return encoded(dark, kind, save_all=True, append_images=[bright])


@pytest.mark.parametrize(("kind", "name"), [("GIF", "GIF"), ("WEBP", "WebP"), ("PNG", "animated PNG")])
def test_a_later_frame_of_an_animation_is_refused_and_not_silently_the_first(kind, name):
    data = animation(kind)
    with pytest.raises(
        DataError, match=rf"^of {name} files only the first frame is read, not the 2 that --image\.page"
    ):
        parse_image(data, ImageSpec(page=2))
    for page in (0, 1):
        found = parse_image(data, ImageSpec(page=page))
        assert found.values.max() < 40
        assert found.remarks == ("first of several frames",)


def test_a_page_means_nothing_to_a_png_without_frames():
    assert np.array_equal(parse_image(encoded(photo(), "PNG"), ImageSpec(page=2)).values, photo())
