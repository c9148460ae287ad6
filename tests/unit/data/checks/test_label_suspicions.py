"""What tells the label without a look at the picture."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from unit.data.doctored import SPEC, of_arrays, textures
from vitrail.data.checks.image_stats import measure_images
from vitrail.data.checks.shortcuts import find_shortcuts
from vitrail.data.open import open_source
from vitrail.data.source import Source


def texts(source: Source) -> list[str]:
    return [each.text for each in find_shortcuts(source, measure_images(source, np.arange(len(source)), SPEC, 0))]


def test_a_size_and_format_of_one_class_is_a_shortcut(tmp_path):
    for kind, size, ending in (("cat", (20, 16), "jpg"), ("dog", (16, 16), "png")):
        (tmp_path / kind).mkdir()
        for number, values in enumerate(textures(12, side=20)):
            Image.fromarray(values).resize(size).save(tmp_path / kind / f"{number}.{ending}")
    assert texts(open_source(str(tmp_path))) == [
        "Shortcut: all 12 pictures of class 'cat' are 16 x 20 JPEG, no other is.",
        "Shortcut: all 12 pictures of class 'dog' are 16 x 16 PNG, no other is.",
    ]


def test_few_pictures_prove_nothing():
    small, large = textures(9, side=10), textures(40, side=12)
    assert texts(of_arrays(*small, *large, targets=np.array([0] * 9 + [1] * 40))) == []


def test_sizes_that_have_nothing_to_do_with_the_class_are_no_shortcut():
    generator = np.random.default_rng(0)
    pictures = [np.zeros((side, side), np.uint8) for side in generator.integers(8, 12, 200)]
    assert texts(of_arrays(*pictures, targets=generator.integers(0, 2, 200))) == []


def test_many_sizes_prove_nothing_by_being_many():
    generator = np.random.default_rng(0)
    pictures = [np.zeros(shape, np.uint8) for shape in generator.integers(8, 60, (300, 2)).tolist()]
    assert texts(of_arrays(*pictures, targets=generator.integers(0, 2, 300))) == []


def test_a_column_that_tells_most_labels_is_a_shortcut():
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 3, 300)
    scanner = [
        f"s{number if chance < 0.85 else 3}" for number, chance in zip(targets, generator.random(300), strict=True)
    ]
    source = of_arrays(
        images=np.zeros((300, 4, 4), np.uint8),
        classes=("a", "b", "c"),
        targets=targets,
        ids=tuple(map(str, range(300))),
        metadata={"scanner": scanner, "noise": [str(number) for number in generator.integers(0, 9, 300)]},
    )
    (found,) = texts(source)
    assert found.startswith("Shortcut: the column 'scanner' alone tells the class of 8")
    assert find_shortcuts(source, measure_images(source, np.arange(300), SPEC, 0), strata="scanner") == []


def test_a_column_of_numbers_is_tried_in_ranges():
    generator = np.random.default_rng(0)
    targets = np.repeat([0, 1], 100)
    dose = [f"{value:.4f}" for value in generator.random(200) + targets]
    source = of_arrays(
        images=np.zeros((200, 4, 4), np.uint8),
        targets=targets,
        ids=tuple(map(str, range(200))),
        metadata={"dose": dose},
    )
    assert texts(source)[0].startswith("Shortcut: the column 'dose' alone tells the class of 9")


def test_labels_are_tried_one_by_one_and_unknown_ones_left_out():
    targets = np.full((60, 2), np.nan, np.float32)
    targets[:40, 0] = np.repeat([0, 1], 20)
    targets[:, 1] = np.arange(60) % 2
    source = of_arrays(
        images=np.zeros((60, 4, 4), np.uint8),
        classes=("edema", "mass"),
        targets=targets,
        task="multilabel",
        ids=tuple(map(str, range(60))),
        metadata={"view": ["PA"] * 20 + ["AP"] * 40},
    )
    assert texts(source) == [
        "Shortcut: all 20 pictures without 'edema' are 'PA' by their column 'view', no other is.",
        "Shortcut: all 20 pictures with 'edema' are 'AP' by their column 'view', no other is.",
    ]


def test_numbers_that_a_feature_explains_are_told():
    generator = np.random.default_rng(0)
    sites = np.arange(90) % 3
    source = of_arrays(
        images=np.zeros((90, 4, 4), np.uint8),
        classes=("age",),
        targets=(sites * 10 + generator.normal(0, 1, 90)).astype(np.float32)[:, None],
        task="regression",
        ids=tuple(map(str, range(90))),
        metadata={"site": [f"s{site}" for site in sites], "noise": [str(v) for v in generator.integers(0, 9, 90)]},
    )
    (found,) = texts(source)
    assert found.startswith("Shortcut: the column 'site' alone explains 9")


@pytest.mark.parametrize(
    ("pattern", "expected"), [("{kind}_{n}", 0), ("{n}", 0), ("{site}_{n}", 2), ("x{n}_{site}", 2)]
)
def test_words_in_file_names_are_tried_unless_they_are_the_class(tmp_path, pattern, expected):
    for kind, site in (("healthy", "munich"), ("sick", "berlin")):
        (tmp_path / kind).mkdir()
        for n, values in enumerate(textures(12, side=8)):
            Image.fromarray(values).save(tmp_path / kind / (pattern.format(kind=kind, site=site, n=n) + ".png"))
    found = texts(open_source(str(tmp_path)))
    assert len(found) == expected
    assert all("'munich'" in text or "'berlin'" in text for text in found)
