"""How often two tables answer alike, and how fast answerers are in turns."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import torch

from exportable import member, pictures
from vitrail.errors import DamagedFileError
from vitrail.evaluate.precision import measure_rates
from vitrail.export.build import make_metadata
from vitrail.export.module import ExportModule
from vitrail.export.verify import (
    PrecisionAgreement,
    check_agreement,
    compare_with_float32,
    measure_agreement,
    predict_with_model,
)


class Noisy:
    """The module as a file would be, with its first output changed for some pictures before it decides."""

    def __init__(self, one, change):
        self.answering, self.change = ExportModule(one), change

    def __call__(self, images):
        with torch.inference_mode():
            found = [output.numpy().copy() for output in self.answering(torch.from_numpy(np.ascontiguousarray(images)))]
        outputs = dict(zip(self.answering.output_names, found, strict=True))
        self.change(outputs)
        return outputs


def compared(one, change, count=20):
    file = Noisy(one, change)
    return compare_with_float32(file, make_metadata(file.answering, one), one, pictures(one.spec, count))


def swapped(outputs):
    """The first two classes of the first picture of every five."""
    chances = outputs["probabilities"]
    if len(chances) == 5:
        chances[0] = chances[0][[1, 0, 2]]
        outputs["decisions"][0] = chances[0].argmax()


def test_the_same_answers_agree_wholly():
    same, difference = compared(member(), lambda outputs: None)
    assert same == 1 and difference < 1e-5


def test_every_picture_that_is_answered_otherwise_counts():
    one = member()
    labels = predict_with_model(one, pictures(one.spec, 20)).indices
    otherwise = sum(label != 2 for label in labels[::5])
    same, difference = compared(one, swapped)
    assert otherwise > 0 and same == pytest.approx(1 - otherwise / 20) and difference > 0.01


def test_labels_count_one_by_one():
    one = member("mean, indexed", "multilabel", "labels")
    found = predict_with_model(one, pictures(one.spec, 4))
    flipped = np.array(found.indicators)
    flipped[0, 0] = ~flipped[0, 0].astype(bool)
    assert measure_agreement(dataclasses.replace(found, predicted=flipped.astype(bool)), found, one) == pytest.approx(
        11 / 12
    )


def test_numbers_are_the_same_within_a_twentieth_of_their_deviation():
    one = member(task="regression")  # deviations 5, 1 and 0.1
    found = predict_with_model(one, pictures(one.spec, 4))
    moved = found.values + np.array([0.2, 0.049, 0.006], np.float32)
    assert measure_agreement(dataclasses.replace(found, values=moved), found, one) == pytest.approx(2 / 3)


def test_scores_that_are_no_numbers_are_refused():
    def nan(outputs):
        outputs["probabilities"][0] = np.nan

    with pytest.raises(DamagedFileError, match="In float32 the exported file gives scores that are no numbers"):
        compared(member(), nan)


def test_decisions_must_follow_from_the_scores_of_the_file():
    def other(outputs):
        outputs["decisions"][:] = (outputs["decisions"] + 1) % 3

    with pytest.raises(DamagedFileError, match="decides otherwise than the run would from the same scores"):
        compared(member(), other)


def test_ninety_nine_in_a_hundred_are_enough():
    rates_found = {"float32 file": 1234.5}
    facts = {"precision": "int8", "task": "multilabel", "num_images": 200, "difference": 0.01, "rates": rates_found}
    check_agreement(PrecisionAgreement(same_fraction=0.99, **facts))
    said = r"In int8 only 98\.90% of the yes and no of labels of 200 pictures .* and 99% is asked for.*--force"
    with pytest.raises(DamagedFileError, match=said):
        check_agreement(PrecisionAgreement(same_fraction=0.989, **facts))
    assert str(PrecisionAgreement(same_fraction=0.99, **facts)).endswith("pictures per second: float32 file 1.23e+03")


def test_answerers_take_turns_and_the_slower_one_is_told():
    asked = []

    def slow(images):
        asked.append(("slow", images.shape))
        time.sleep(0.02)

    def quick(images):
        asked.append(("quick", images.shape))

    found = measure_rates({"slow": slow, "quick": quick}, np.zeros((3, 2, 2, 1), np.uint8), num_rounds=2, batch_size=4)
    assert asked == [("slow", (4, 2, 2, 1)), ("quick", (4, 2, 2, 1))] * 3
    assert 100 < found["slow"] <= 200 < found["quick"]
