"""The doctor's page: self-contained, escaped, with the pictures in question."""

from __future__ import annotations

import re

import numpy as np
import pytest

from unit.data.doctored import as_jpeg, of_arrays, textures
from unit.report.test_page import Balanced
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.report import check_page as page
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=8, width=8, channels=1)


@pytest.fixture(scope="module")
def built() -> str:
    originals = textures(20)
    pictures = [*originals, originals[0], as_jpeg(originals[1]), np.zeros((9, 9), np.uint8), np.zeros(3, np.uint8)]
    ids = tuple(f"<b>{number}.png" for number in range(24))
    source = of_arrays(*pictures, ids=ids, classes=("cat", "dog & <i>"))
    splits = {"train": np.arange(20), "val": np.arange(0), "test": np.arange(20, 24)}
    return page.render_check_page(check_dataset(source, splits, SPEC), source, SPEC)


def test_the_page_is_whole(built):
    reader = Balanced()
    reader.feed(built)
    assert reader.open == []
    assert "{{" not in built and "{%" not in built


def test_nothing_is_loaded_from_outside_and_nothing_runs(built):
    assert not re.search(r"<script|<link|@import|url\(|https?://|\son[a-z]+=", built)
    assert all(re.match(r"data:image/(png|jpeg);base64,", uri) for uri in re.findall(r'src="([^"]*)"', built))


def test_names_are_escaped(built):
    assert "<b>20.png" not in built and "&lt;b&gt;20.png" in built
    assert "dog &amp; &lt;i&gt;" in built


def test_copies_stand_side_by_side_and_the_unreadable_is_named(built):
    together = re.findall(r'<div class="together">(.*?)</div>', built, re.DOTALL)
    assert ["&lt;b&gt;20.png" in pair and "&lt;b&gt;0.png" in pair for pair in together].count(True) == 1
    assert ["&lt;b&gt;21.png" in pair and "&lt;b&gt;1.png" in pair for pair in together].count(True) >= 1
    assert "<td>&lt;b&gt;23.png</td>" in built


def test_a_page_without_findings_says_so(tmp_path):
    source = of_arrays(*textures(2, side=70), targets=np.array([0, 1]), ids=("x", "y"))
    splits = {"train": np.arange(2), "val": np.arange(0), "test": np.arange(0)}
    page.write_check_page(tmp_path / "check.html", check_dataset(source, splits, SPEC), source, SPEC)
    built = (tmp_path / "check.html").read_text(encoding="utf-8")
    assert "reasons to stop a training." in built


def test_labels_are_told_in_words():
    targets = np.array([[1, 0.2], [0.6, np.nan]], np.float32)
    pictures = np.zeros((2, 4, 4), np.uint8)
    labels = of_arrays(images=pictures, targets=targets, task="multilabel", ids=("x", "y"))
    assert [page.describe_label(labels, row) for row in range(2)] == ["a", "a"]
    numbers = of_arrays(images=pictures, targets=targets, task="regression", ids=("x", "y"))
    assert page.describe_label(numbers, 0) == "1, 0.2"
    soft = of_arrays(images=pictures, targets=np.array([[0.3, 0.7]] * 2, np.float32), ids=("x", "y"))
    assert page.describe_label(soft, 0) == "b"


def test_large_thumbnails_are_jpeg_and_small_ones_png():
    assert page.thumbnail_data_uri(np.zeros((400, 300, 3), np.uint8)).startswith("data:image/jpeg")
    assert page.thumbnail_data_uri(np.zeros((28, 28, 1), np.uint8)).startswith("data:image/png")
