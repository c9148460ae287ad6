"""An implausibly large model is refused before anything is built from its description."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitrail.checkpoints.validate import check_model_size
from vitrail.errors import DamagedFileError
from vitrail.model.config import ViTConfig, _estimate_parameters
from vitrail.model.vit import ViT

LARGEST = ViTConfig(image_size=(224, 224), patch=(14, 14), width=6144, depth=48, heads=48, mlp_width=24576)
"""The 22 billion parameters of Dehghani et al. 2023."""


def test_the_largest_published_model_passes():
    assert 21e9 < _estimate_parameters(LARGEST) < 23e9
    check_model_size(LARGEST, "x")


def test_the_count_is_that_of_a_real_model_but_for_norms_and_biases():
    config = ViTConfig(width=96, depth=3, heads=3, mlp_width=384, image_size=(64, 64))
    exact = sum(parameter.numel() for parameter in ViT(config).parameters())
    assert 0.97 * exact < _estimate_parameters(config) <= exact


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"depth": 10**9}, r"x: depth must be at most 256\. Got 1,000,000,000\."),
        ({"width": 2**40, "heads": 1}, "x: width must be at most 65,536"),
        ({"heads": 3072}, "x: heads must be at most 1,024"),
        ({"mlp_width": 10**12}, "x: mlp_width must be at most 1,048,576"),
        ({"outputs": 10**9}, "x: outputs must be at most 10,000,000"),
        ({"registers": 10**9}, "x: registers must be at most 1,024"),
        ({"channels": 10**6}, "x: channels must be at most 1,024"),
        ({"image_size": (14 * 2**20, 14)}, "x: image_size must be at most 1,048,576"),
        ({"image_size": (14 * 2**11, 14 * 2**11)}, "x: image_size and patch must make at most 1,048,576 tokens"),
        ({"patch": (2800, 14), "image_size": (2800, 14)}, "x: patch must be at most 1,024"),
        ({"depth": 200}, r"x: a model may have at most 30,000,000,000 parameters\. Width, depth"),
    ],
)
def test_what_is_too_large_is_refused_by_name(change, words):
    with pytest.raises(DamagedFileError, match=words):
        check_model_size(replace(LARGEST, **change), "x")
