"""The doctor reports everything at once and changes nothing."""

from __future__ import annotations

import json
import os
import time

import numpy as np

from vitrail.data.check import check
from vitrail.data.open import open_source
from vitrail.data.source import Source
from vitrail.data.splits import complete
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=8, width=8, channels=1)


def arrays(*pictures: np.ndarray, **changes: object) -> Source:
    n = len(pictures)
    return Source(
        name="drawn", classes=("a", "b"), pictures=pictures, targets=np.arange(n) % 2, ids="abcdefgh"[:n], **changes
    )


def everything(source: Source) -> dict[str, np.ndarray]:
    return {"train": np.arange(len(source)), "val": np.arange(0), "test": np.arange(0)}


def test_every_bad_file_is_named_with_its_reason(draw):
    root = draw("cat/1.png", "cat/2.jpg", "dog/1.png", "dog/2.png")
    (root / "cat/3.jpg").write_bytes(b"<html>")
    (root / "dog/3.png").write_bytes((root / "dog/1.png").read_bytes()[:50])
    os.mkfifo(root / "dog/4.png")
    source = open_source(str(root))
    findings = check(source, complete(source, 0, 0.2, 0.2), SPEC)
    reasons = dict(findings.bad)
    assert list(reasons) == ["cat/3.jpg", "dog/3.png", "dog/4.png"]
    assert reasons["cat/3.jpg"].startswith("not a picture Vitrail reads (it looks like HTML)")
    assert reasons["dog/3.png"].startswith("truncated (PNG file, 50 bytes)")
    assert reasons["dog/4.png"].startswith("is a pipe, socket or device")
    assert [source.ids[row] for row in findings.bad_indices] == list(reasons)
    assert all(name in findings.table() for name in reasons)
    assert (root / "dog/3.png").stat().st_size == 50


def test_sizes_are_measured_and_pictures_smaller_than_a_patch_named():
    source = arrays(np.zeros((9, 9), np.uint8), np.zeros((3, 20), np.uint8), np.zeros((30, 20, 3), np.uint8))
    findings = check(source, everything(source), SPEC, patch=(4, 4))
    assert (findings.smallest.id, findings.largest.id, findings.small) == ("b", "c", ["b"])
    assert "smallest 3 x 20 (b)" in findings.table()
    assert "largest 30 x 20 (c)" in findings.table()
    assert "smaller than one patch: b" in findings.table()


def test_arrays_that_are_no_pictures_are_bad():
    source = arrays(np.zeros((9, 9), np.uint8), np.zeros(9), np.full((2, 2), np.nan))
    findings = check(source, everything(source), SPEC)
    assert findings.bad[0] == (
        "b",
        "A picture must be an array [height, width] or [height, width, channels]. Got shape (9,).",
    )
    assert findings.bad[1] == ("c", "4 of 4 values are not finite numbers (NaN or infinity).")


def test_what_the_model_could_not_read_is_bad():
    source = arrays(np.zeros((4, 4, 2), np.uint8), np.full((4, 4), 4000, np.uint16), np.full((4, 4), 200, np.uint16))
    (first, channels), (second, values) = check(source, everything(source), SPEC).bad
    assert (first, channels) == ("a", "The model reads 1 channels, the picture has 2.")
    assert (second, values[:38]) == ("b", "Values 0 to 255 become black to white.")
    stack = Source(
        name="s", classes=("a", "b"), pictures=np.zeros((2, 4, 4, 2), np.uint8), targets=np.array([0, 1]), ids="ab"
    )
    assert len(check(stack, everything(stack), SPEC).bad) == 2


def test_class_counts_and_scarce_classes_are_told(draw):
    source = open_source(str(draw("train/cat/1.png", "train/dog/1.png", "train/dog/2.png", "val/dog/3.png")))
    findings = check(source, complete(source, 0, 0.0, 0.0), SPEC)
    assert findings.class_counts == {
        "train": {"cat": 1, "dog": 2},
        "val": {"cat": 0, "dog": 1},
        "test": {"cat": 0, "dog": 0},
    }
    assert findings.notes == ("Few pictures in train: 'cat' (1), 'dog' (2).", "Few pictures in val: 'cat' (0).")
    assert f"cat  {1:>9}{0:>9}{0:>9}" in findings.table()


def test_different_depths_are_told():
    source = arrays(np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint16))
    findings = check(source, everything(source), SPEC)
    assert findings.depths == {"uint16": 1, "uint8": 1}
    assert "Pictures of different depth: 1 uint16, 1 uint8." in findings.notes[-1]


def test_findings_can_be_kept_as_json(draw):
    root = draw("cat/1.png", "dog/1.png")
    (root / "dog/2.png").write_bytes(b"")
    source = open_source(str(root))
    kept = json.loads(json.dumps(check(source, complete(source, 0, 0, 0), SPEC).to_json()))
    assert kept["bad"][0]["id"] == "dog/2.png"
    assert kept["smallest"] == {"height": 6, "width": 5, "id": "cat/1.png"}


def test_seventy_thousand_arrays_take_less_than_two_seconds():
    source = Source(
        name="many",
        classes=("a", "b"),
        pictures=np.zeros((70_000, 28, 28), np.uint8),
        targets=np.arange(70_000) % 2,
        ids=tuple(map(str, range(70_000))),
    )
    began = time.process_time()
    findings = check(source, everything(source), SPEC)
    assert (findings.pictures, findings.bad) == (70_000, [])
    assert time.process_time() - began < 2
