"""Which pictures a report shows, and that they come back as they were stored."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.report.image_selection import select_scored_images
from vitrail.report.thumbnails import (
    THUMBNAILS_FILE,
    load_thumbnails,
    save_thumbnails,
    select_class_images,
    to_data_uri,
)


def table(targets, labels, confidences) -> ClassificationPredictions:
    probabilities = np.zeros((len(labels), 3), np.float32)
    probabilities[np.arange(len(labels)), labels] = confidences
    return ClassificationPredictions(
        paths=("",) * len(labels),
        ids=tuple(map(str, range(len(labels)))),
        split="test",
        targets=None if targets is None else np.asarray(targets),
        probabilities=probabilities,
        classes=("a", "b", "c"),
    )


def test_the_most_confident_mistakes_come_first_then_right_answers_class_by_class():
    given = table([0, 0, 0, 1, 1, 2, 2, -1], [0, 0, 1, 1, 0, 2, 0, 1], [0.9, 0.8, 0.6, 0.7, 0.99, 0.5, 0.7, 0.9])
    assert select_class_images(given, 2).tolist() == [4, 6, 0, 3]
    assert select_class_images(given, 9).tolist() == [4, 6, 2, 0, 3, 5, 1]


def test_nothing_is_shown_without_targets_or_rows():
    assert len(select_class_images(table(None, [0, 1], [0.5, 0.5]), 4)) == 0
    assert len(select_class_images(table([], np.zeros(0, int), []), 4)) == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_survive_the_file_and_the_page(channels, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 7, channels), dtype=np.uint8)
    save_thumbnails(tmp_path, images, np.array([4, 9]), np.array([1.4, 0.5]))
    again = load_thumbnails(tmp_path)
    np.testing.assert_array_equal([one.image for one in again.values()], images)
    assert list(again) == [4, 9] and [one.aspect for one in again.values()] == pytest.approx([1.4, 0.5])
    assert again[4].uri == to_data_uri(images[0]) and again[4].small
    np.testing.assert_array_equal(drawn(to_data_uri(images[0]), "png"), images[0].squeeze())


def drawn(uri: str, kind: str) -> np.ndarray:
    """The pixels inside a text."""
    before, _, data = uri.partition(",")
    assert before == f"data:image/{kind};base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_a_picture_that_was_squashed_is_drawn_in_its_own_shape():
    tiny = np.random.default_rng(0).integers(0, 256, (8, 8, 1), dtype=np.uint8)
    wide = drawn(to_data_uri(tiny, 2.0), "png")
    assert wide.shape == (128, 256)
    np.testing.assert_array_equal(wide, tiny[..., 0].repeat(16, 0).repeat(32, 1), "sharp rectangles")
    tall = drawn(to_data_uri(tiny, 0.25), "png")
    assert tall.shape == (512, 128)
    photo = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    assert drawn(to_data_uri(photo, 4 / 3), "jpeg").shape == (168, 224, 3)
    assert drawn(to_data_uri(photo, 1.005), "jpeg").shape == (224, 224, 3)


def test_thumbnails_of_before_aspects_were_kept_have_the_models_shape(tmp_path):
    np.savez_compressed(tmp_path / THUMBNAILS_FILE, images=np.zeros((2, 5, 7, 1), np.uint8), indices=np.array([4, 9]))
    assert {row: one.aspect for row, one in load_thumbnails(tmp_path).items()} == {4: 1.4, 9: 1.4}


def test_a_run_without_thumbnails_shows_none(tmp_path):
    assert load_thumbnails(tmp_path) == {}


def test_wrong_thumbnails_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"Got float32 \[2, 3, 3, 1\], 2 indices and 2 aspects"):
        save_thumbnails(tmp_path, np.zeros((2, 3, 3, 1), np.float32), np.zeros(2, int), np.ones(2))
    with pytest.raises(UsageError, match=r"Got uint8 \[2, 3, 3, 1\], 1 indices and 2 aspects"):
        save_thumbnails(tmp_path, np.zeros((2, 3, 3, 1), np.uint8), np.zeros(1, int), np.ones(2))
    with pytest.raises(UsageError, match=r"Got uint8 \[2, 3, 3, 1\], 2 indices and 1 aspects"):
        save_thumbnails(tmp_path, np.zeros((2, 3, 3, 1), np.uint8), np.zeros(2, int), np.ones(1))
    (tmp_path / THUMBNAILS_FILE).write_bytes(b"not an archive")
    with pytest.raises(DamagedFileError, match=r"thumbnails\.npz must hold the arrays"):
        load_thumbnails(tmp_path)


def test_of_anomaly_scores_the_worst_of_both_kinds_come_first():
    scores = np.array([0.1, 0.9, 0.2, 0.8, 0.7, 0.3, 0.6, 0.05])
    targets = np.array([1, 0, 1, 1, 0, 0, 1, 0])
    called = (scores > 0.5).astype(int)
    # false alarms 1, 4; escapes 0, 2; right: defects 3, 6, good ones 5, 7
    assert select_scored_images(scores, targets, called, 4).tolist() == [1, 0, 4, 2, 3, 6, 5, 7]
    assert select_scored_images(scores, targets, called, 2).tolist() == [1, 0, 3, 5]
    assert select_scored_images(scores, np.zeros(8, int), called, 2).tolist() == [1, 3, 4, 6]
