"""The doctor reports everything at once and changes nothing."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

from unit.data.doctored import SPEC, codes, everything, of_arrays, textures
from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.open import open_source
from vitrail.data.source import Source


def test_every_bad_file_is_named_with_its_reason(draw):
    root = draw("cat/1.png", "cat/2.jpg", "dog/1.png", "dog/2.png")
    (root / "cat/3.jpg").write_bytes(b"<html>")
    (root / "dog/3.png").write_bytes((root / "dog/1.png").read_bytes()[:50])
    os.mkfifo(root / "dog/4.png")
    source = open_source(str(root))
    findings = check_dataset(source, everything(source), SPEC)
    reasons = dict(findings.bad_images)
    assert list(reasons) == ["cat/3.jpg", "dog/3.png", "dog/4.png"]
    assert reasons["cat/3.jpg"].startswith("not a picture Vitrail reads (it looks like HTML)")
    assert reasons["dog/3.png"].startswith("truncated")
    assert "pipe, socket or device" in reasons["dog/4.png"]
    assert [source.ids[row] for row in findings.bad_indices.tolist()] == list(reasons)
    assert all(name in findings.table() for name in reasons)
    assert (root / "dog/3.png").stat().st_size == 50


def test_sizes_are_measured():
    source = of_arrays(np.zeros((9, 9), np.uint8), np.zeros((3, 20), np.uint8), np.zeros((30, 20, 3), np.uint8))
    findings = check_dataset(source, everything(source), SPEC)
    assert (findings.smallest.id, findings.largest.id) == ("b", "c")
    assert "smallest 3 high, 20 wide (b)" in findings.table()
    assert "largest 30 high, 20 wide (c)" in findings.table()


def test_arrays_that_are_no_pictures_are_bad():
    source = of_arrays(np.zeros((9, 9), np.uint8), np.zeros(9), np.full((2, 2), np.nan))
    findings = check_dataset(source, everything(source), SPEC)
    assert [name for name, _ in findings.bad_images] == ["b", "c"]
    assert "Got shape (9,)" in findings.bad_images[0][1]
    assert findings.bad_images[1][1].startswith("4 of 4 values are not finite numbers")


def test_what_the_model_could_not_read_is_bad():
    pictures = np.zeros((4, 4, 2), np.uint8), np.full((4, 4), 4000, np.uint16), np.full((4, 4), 200, np.uint16)
    source = of_arrays(*pictures)
    (first, channels), (second, values) = check_dataset(source, everything(source), SPEC).bad_images
    assert (first, channels) == ("a", "The model reads 1 channel, the picture has 2.")
    assert (second, values[:38]) == ("b", "Values 0 to 255 become black to white.")


def test_a_stack_that_the_model_could_not_read_is_bad_as_a_whole():
    stack = of_arrays(images=np.zeros((2, 4, 4, 2), np.uint8), targets=np.array([0, 1]), ids=("a", "b"))
    assert len(check_dataset(stack, everything(stack), SPEC).bad_images) == 2


def test_class_counts_are_told_per_split(draw):
    source = open_source(str(draw("train/cat/1.png", "train/dog/1.png", "train/dog/2.png", "val/dog/3.png")))
    splits = {"train": source.splits["train"], "val": source.splits["val"], "test": np.arange(0)}
    findings = check_dataset(source, splits, SPEC)
    assert findings.class_counts == {
        "train": {"cat": 1, "dog": 2},
        "val": {"cat": 0, "dog": 1},
        "test": {"cat": 0, "dog": 0},
    }
    assert "Few pictures in val: 'cat' (0)." in findings.table()
    assert f"cat  {1:>9}{0:>9}{0:>9}" in findings.table()


def test_what_stops_comes_first_and_counts_as_a_stop():
    source = of_arrays(*textures(4), targets=np.zeros(4, np.int64))
    findings = check_dataset(source, everything(source), SPEC)
    assert findings.issues[0].severity == "stop"
    (stop,) = findings.blocking_reasons
    assert stop.startswith("All training pictures are of one class, 'a'. There is nothing to tell apart; add pictures")
    ranks = [("stop", "warning", "hint").index(concern.severity) for concern in findings.issues]
    assert ranks == sorted(ranks)


def test_findings_can_be_kept_as_json(draw):
    root = draw("cat/1.png", "dog/1.png")
    (root / "dog/2.png").write_bytes(b"")
    source = open_source(str(root))
    kept = json.loads(json.dumps(check_dataset(source, everything(source), SPEC).to_json(), allow_nan=False))
    assert kept["bad"][0]["id"] == "dog/2.png"
    assert kept["smallest"] == {"height": 6, "width": 5, "id": "cat/1.png"}
    assert (kept["pictures"], kept["looked_at"]) == (3, 3)


def test_a_source_without_pictures_in_its_splits_is_no_error():
    source = of_arrays(np.zeros((4, 4), np.uint8), np.ones((4, 4), np.uint8))
    findings = check_dataset(source, {"train": np.arange(0), "val": np.arange(0), "test": np.arange(0)}, SPEC)
    assert (findings.image_count, findings.smallest, findings.issues) == (0, None, ())


def test_with_little_time_some_pictures_are_looked_at_and_it_says_so(monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    source = of_arrays(*textures(40, side=16))
    findings = check_dataset(source, everything(source), SPEC, time_limit=10)
    assert 0 < findings.checked_count < 40
    assert findings.notes[-1].startswith(f"The check had 10 s and looked at {findings.checked_count} of 40 pictures")
    assert "of them looked at" in findings.table()


@pytest.mark.parametrize("kind", ["files", "stack"])
def test_soft_labels_and_labels_and_numbers_are_checked_too(kind):
    pictures = np.stack(textures(6, side=16)) if kind == "stack" else tuple(textures(6, side=16))
    soft = np.array([[0.9, 0.1], [0.2, 0.8]] * 3, np.float32)
    labels = np.array([[1, np.nan], [0, 1]] * 3, np.float32)
    for task, targets in (("classification", soft), ("multilabel", labels), ("regression", labels)):
        source = of_arrays(images=pictures, targets=targets, task=task, ids=tuple("abcdef"))
        findings = check_dataset(source, everything(source), SPEC)
        assert not findings.bad_images
        json.dumps(findings.to_json(), allow_nan=False)
    assert "all-values-equal" in codes(findings.issues)


def test_seventy_thousand_arrays_take_few_seconds():
    generator = np.random.default_rng(0)
    source = Source(
        name="many",
        classes=("a", "b"),
        images=generator.integers(0, 256, (70_000, 28, 28), dtype=np.uint8),
        targets=np.arange(70_000) % 2,
        ids=tuple(map(str, range(70_000))),
    )
    began = time.process_time()
    findings = check_dataset(source, everything(source), SPEC)
    assert (findings.image_count, findings.bad_images) == (70_000, [])
    assert time.process_time() - began < 6  # alone about 2
