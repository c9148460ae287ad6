"""Descriptions of pictures in the words of three libraries, and names of answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrail.checkpoints.folders import Folder
from vitrail.checkpoints.pictures import answers, resized, spec
from vitrail.checkpoints.preprocessor import preprocessor
from vitrail.checkpoints.told import Told
from vitrail.model.config import ViTConfig
from vitrail.spec import ImageSpec

CONFIG = ViTConfig(image_size=(32, 32), outputs=2)
MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


def read(config: dict[str, Any], beside: dict[str, Any], match: Any = None) -> tuple[ImageSpec, tuple[str, ...]]:
    folder = Folder(path=Path("folder"), config=config, preprocessor=beside)
    return spec(CONFIG, None, Told(match=match), folder)


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_our_own_preprocessor_file_reads_back(fit: Any) -> None:
    fraction = 0.8 if fit == "crop" else 1.0
    ours = ImageSpec(height=32, width=32, mean=MEAN, std=STD, interpolation="bilinear", fit=fit, crop_fraction=fraction)
    assert read({"model_type": "vit"}, preprocessor(ours)) == (ours, ())


def test_transformers_words_old_and_new() -> None:
    old, notes = read({}, {"size": 32, "resample": 3, "image_mean": MEAN, "image_std": STD, "do_center_crop": False})
    assert (old.mean, old.std, old.interpolation, old.fit, notes) == (MEAN, STD, "bicubic", "squash", ())
    cut, notes = read({}, {"size": {"shortest_edge": 40}, "crop_size": {"height": 32}, "do_normalize": False})
    assert (cut.mean, cut.std, cut.fit, cut.crop_fraction, notes) == ((0.0,), (1.0,), "crop", 0.8, ())


def test_timms_and_open_clips_words() -> None:
    timm = {"pretrained_cfg": {"mean": MEAN, "std": STD, "interpolation": "bicubic", "crop_pct": 0.9}}
    found, notes = read(timm, {})
    assert (found.mean, found.fit, found.crop_fraction, notes) == (MEAN, "crop", 0.9, ())
    squashed = {"pretrained_cfg": {**timm["pretrained_cfg"], "crop_mode": "squash"}}
    assert read(squashed, {})[0].fit == "squash" and read(squashed, {})[1] == ()
    clip = {"model_cfg": {}, "preprocess_cfg": {"mean": MEAN, "std": STD, "resize_mode": "longest"}}
    assert read(clip, {})[0].fit == "pad"


def test_when_nobody_says_it_is_said_that_nobody_does() -> None:
    assert read({}, {}) == (
        ImageSpec(height=32, width=32),
        ("nobody says how its pictures are prepared: mean and deviation 0.5 are assumed",),
    )


def test_another_number_of_channels_takes_the_average() -> None:
    old = ImageSpec(mean=MEAN, std=STD)
    new = resized(old, replace(CONFIG, channels=1))
    assert (new.size, new.channels) == ((32, 32), 1)
    assert new.mean == (pytest.approx(0.5),) and new.std == (pytest.approx(0.2),)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"id2label": {"0": "cat", "1": "dog"}}, ("classes", ("cat", "dog"))),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, ("classes", ())),
        ({"id2label": {"0": "cat"}}, ("classes", ())),
        ({"pretrained_cfg": {"label_names": ["cat", "dog"]}}, ("classes", ("cat", "dog"))),
        ({"label_names": ["cat", "dog"]}, ("classes", ("cat", "dog"))),
        ({"problem_type": "multi_label_classification"}, ("labels", ())),
    ],
)
def test_answers_have_the_names_that_the_folder_gives_them(beside: dict[str, Any], expected: Any) -> None:
    assert answers(CONFIG, beside) == expected
