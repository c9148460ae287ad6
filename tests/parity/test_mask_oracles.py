"""IoU and Dice of masks against torchmetrics, run lengths against pycocotools."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.data.labels.run_lengths import compress_counts, decode_coco_counts, encode_coco_counts
from vitrail.data.source import UNKNOWN_PIXEL
from vitrail.evaluate.mask_overlap import count_overlaps
from vitrail.evaluate.predictions import RegressionPredictions
from vitrail.evaluate.segmentation_metrics import compute_segmentation_metrics

CLASSES, SIZE = ("ground", "stone", "crack", "never"), (37, 52)


@pytest.mark.needs_mask_oracles
@pytest.mark.parametrize("unknown", [0.0, 0.2])
def test_iou_and_dice_are_those_of_torchmetrics(unknown: float):
    from torchmetrics import classification as metrics

    generator = np.random.default_rng(0)
    answers = generator.choice(3, p=[0.7, 0.25, 0.05], size=(5, *SIZE)).astype(np.uint8)
    truths = np.where(generator.random(answers.shape) < 0.7, answers, (answers + 1) % 3).astype(np.uint8)
    truths[generator.random(truths.shape) < unknown] = UNKNOWN_PIXEL
    sure = np.full(SIZE, 200, np.uint8)
    overlaps = np.stack([count_overlaps(*pair, 4) for pair in zip(answers, [sure] * 5, truths, strict=True)])
    names = tuple(map(str, range(5)))
    areas = np.zeros((5, 4), np.float32)
    table = RegressionPredictions(
        paths=names, ids=names, split="test", targets=None, values=areas, columns=CLASSES, overlaps=overlaps
    )
    ours = compute_segmentation_metrics(table, samples=2)
    pair = torch.from_numpy(answers).long(), torch.from_numpy(truths).long()
    words = {"num_classes": 4, "ignore_index": UNKNOWN_PIXEL, "average": "none"}
    for kind, oracle in (
        ("iou", metrics.MulticlassJaccardIndex(**words)),
        ("dice", metrics.MulticlassF1Score(**words)),
    ):
        theirs = oracle(*pair)[:3].tolist()  # the last class has no pixel: ours is in no mean, theirs is 0
        assert [vars(one)[kind] for one in ours.per_class[:3]] == pytest.approx(theirs, abs=1e-6)
        assert vars(ours)[f"mean_{kind}"] == pytest.approx(np.mean(theirs), abs=1e-6)
        assert vars(ours.per_class[3])[kind] is None


@pytest.mark.needs_mask_oracles
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 1.0])
def test_run_lengths_are_those_of_pycocotools(share: float):
    from pycocotools import mask as coco

    mask = np.random.default_rng(1).random(SIZE) < share
    theirs = coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    assert compress_counts(encode_coco_counts(mask)) == theirs
    np.testing.assert_array_equal(decode_coco_counts(theirs, SIZE, "it"), mask)
