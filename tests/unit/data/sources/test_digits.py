"""The built-in example."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from vitrail.data.open import open_source


def test_the_digits_fill_the_grey_scale_and_have_no_split():
    source = open_source("digits")
    assert source.images.shape == (1797, 8, 8)
    assert source.images.dtype == np.uint8
    assert source.classes == tuple("0123456789")
    assert not source.splits
    stored = load_digits()
    assert np.array_equal(source.targets, stored.target)
    assert np.abs(source.images / 255 * 16 - stored.images).max() <= 16 / 255 / 2
    assert source.images.max() == 255
    assert len(set(source.ids)) == 1797
