"""Which pictures a report shows, and that they come back as they were stored."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import DamagedFileError, UsageError
from vitrail.evaluate.predictions import Predictions
from vitrail.report.thumbnails import NAME, choose, data_uri, load, save


def table(targets, labels, confidences) -> Predictions:
    probabilities = np.zeros((len(labels), 3), np.float32)
    probabilities[np.arange(len(labels)), labels] = confidences
    return Predictions(
        paths=("",) * len(labels),
        ids=tuple(map(str, range(len(labels)))),
        split="test",
        targets=None if targets is None else np.asarray(targets),
        probabilities=probabilities,
        classes=("a", "b", "c"),
    )


def test_the_most_confident_mistakes_come_first_then_right_answers_class_by_class():
    given = table([0, 0, 0, 1, 1, 2, 2, -1], [0, 0, 1, 1, 0, 2, 0, 1], [0.9, 0.8, 0.6, 0.7, 0.99, 0.5, 0.7, 0.9])
    assert choose(given, 2).tolist() == [4, 6, 0, 3]
    assert choose(given, 9).tolist() == [4, 6, 2, 0, 3, 5, 1]


def test_nothing_is_shown_without_targets_or_rows():
    assert len(choose(table(None, [0, 1], [0.5, 0.5]), 4)) == 0
    assert len(choose(table([], np.zeros(0, int), []), 4)) == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_survive_the_file_and_the_page(channels, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 7, channels), dtype=np.uint8)
    save(tmp_path, images, np.array([4, 9]))
    again, indices = load(tmp_path)
    np.testing.assert_array_equal(again, images)
    assert indices.tolist() == [4, 9]
    kind, _, data = data_uri(images[0]).partition(",")
    assert kind == "data:image/png;base64"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), images[0].squeeze())


def test_a_run_without_thumbnails_shows_none(tmp_path):
    assert [len(part) for part in load(tmp_path)] == [0, 0]


def test_wrong_thumbnails_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"Got float32 \[2, 3, 3, 1\] and 2 indices"):
        save(tmp_path, np.zeros((2, 3, 3, 1), np.float32), np.zeros(2, int))
    with pytest.raises(UsageError, match=r"Got uint8 \[2, 3, 3, 1\] and 1 indices"):
        save(tmp_path, np.zeros((2, 3, 3, 1), np.uint8), np.zeros(1, int))
    (tmp_path / NAME).write_bytes(b"not an archive")
    with pytest.raises(DamagedFileError, match=r"thumbnails\.npz must hold the arrays"):
        load(tmp_path)
