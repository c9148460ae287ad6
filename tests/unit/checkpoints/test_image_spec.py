"""Descriptions of pictures in the words of three libraries, and names of answers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrail.checkpoints.foreign_folder import ForeignFolder
from vitrail.checkpoints.image_spec import make_image_spec, make_preprocessor_config, read_task_and_classes, resize_spec
from vitrail.checkpoints.layouts import LayoutHints
from vitrail.checkpoints.writers.to_timm import convert_crop_fraction
from vitrail.checkpoints.writers.to_transformers import make_processor_config
from vitrail.model.config import ViTConfig
from vitrail.spec import ImageSpec

CONFIG = ViTConfig(image_size=(32, 32), outputs=2)
MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)


def read(config: dict[str, Any], beside: dict[str, Any], match: Any = None) -> tuple[ImageSpec, tuple[str, ...]]:
    folder = ForeignFolder(path=Path("folder"), config=config, preprocessor=beside)
    return make_image_spec(CONFIG, None, LayoutHints(match=match), folder)


@pytest.mark.parametrize(("fit", "fraction"), [("squash", 1.0), ("squash", 0.8), ("crop", 0.8)])
def test_our_own_preprocessor_file_reads_back(fit: Any, fraction: float) -> None:
    ours = ImageSpec(height=32, width=32, mean=MEAN, std=STD, interpolation="bilinear", fit=fit, crop_fraction=fraction)
    assert read({"model_type": "vit"}, make_preprocessor_config(ours)) == (ours, ())


def test_transformers_words_old_and_new() -> None:
    old, notes = read({}, {"size": 32, "resample": 3, "image_mean": MEAN, "image_std": STD, "do_center_crop": False})
    assert (old.mean, old.std, old.interpolation, old.fit, notes) == (MEAN, STD, "bicubic", "squash", ())
    cut, notes = read({}, {"size": {"shortest_edge": 40}, "crop_size": {"height": 32}, "do_normalize": False})
    assert (cut.mean, cut.std, cut.fit, cut.crop_fraction, notes) == ((0.0,), (1.0,), "crop", 0.8, ())


@pytest.mark.parametrize("size", [40, {"height": 40, "width": 40}])
def test_both_sides_are_resized_before_the_centre_is_cut_out(size: Any) -> None:
    beside = {"size": size, "crop_size": 32, "do_center_crop": True, "feature_extractor_type": "DeiTFeatureExtractor"}
    found, notes = read({}, beside)
    assert (found.fit, found.crop_fraction, notes) == ("squash", 0.8, ())
    uncut, _ = read({}, {**beside, "do_center_crop": False})
    assert (uncut.fit, uncut.crop_fraction) == ("squash", 1.0)


def test_transformers_is_told_to_cut_out_the_centre_of_a_squash() -> None:
    ours = ImageSpec(height=32, width=48, crop_fraction=0.8)
    content = make_processor_config(ours)
    assert content["image_processor_type"] == "DeiTImageProcessor" and content["do_center_crop"]
    assert content["size"] == {"height": 40, "width": 60} and content["crop_size"] == {"height": 32, "width": 48}


def test_a_processor_that_keeps_the_aspect_ratio_is_said() -> None:
    size = {"shortest_edge": 800, "longest_edge": 1333}
    found, notes = read({}, {"size": size, "resample": 2, "image_mean": MEAN, "image_std": STD})
    assert (found.fit, found.mean, found.std, found.interpolation) == ("squash", MEAN, STD, "bilinear")
    assert len(notes) == 1 and "keeps the aspect ratio, with a short side of 800 and at most 1333 pixels" in notes[0]


@pytest.mark.parametrize("outer", range(33, 80))
def test_timm_resizes_as_far_as_we_do(outer: int) -> None:
    ours = ImageSpec(height=33, width=33, crop_fraction=33 / outer)
    assert math.floor(33 / convert_crop_fraction(ours)) == ours.resize_size[0] == outer


def test_one_number_is_the_short_side_to_clips_processor() -> None:
    beside = {"size": 40, "crop_size": 32, "do_center_crop": True, "feature_extractor_type": "CLIPFeatureExtractor"}
    found, notes = read({}, beside)
    assert (found.fit, found.crop_fraction, notes) == ("crop", 0.8, ())


def test_a_processor_for_another_size_is_said() -> None:
    beside = {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}, "do_center_crop": True}
    found, notes = read({}, beside)
    assert found.size == (32, 32) and found.crop_fraction == 0.875
    (note,) = notes
    assert note.startswith("its processor prepares pictures of 28x28 pixels, the model was loaded for 32x32; ")
    assert note.endswith("image_size=28 does as the processor")
    again = make_image_spec(
        CONFIG,
        None,
        LayoutHints(image_size=(32, 32)),
        ForeignFolder(path=Path("folder"), config={}, preprocessor=beside),
    )
    assert again == (found, ())


def test_a_centre_of_another_shape_than_the_whole_is_said() -> None:
    cut = {"size": {"height": 40, "width": 64}, "crop_size": 32, "do_center_crop": True}
    found, notes = read({}, cut)
    assert found.crop_fraction == 0.8
    assert notes == ("its processor cuts (32, 32) out of (40, 64); here the fraction of the height serves both",)


@pytest.mark.parametrize(
    ("config", "beside", "text"),
    [
        ({}, {"size": 32, "resample": 1}, "resample=1"),
        ({"pretrained_cfg": {"crop_pct": 1.0, "interpolation": "random"}}, {}, "interpolation='random'"),
        ({"preprocess_cfg": {"mean": MEAN, "interpolation": "nearest"}}, {}, "interpolation='nearest'"),
    ],
)
def test_a_way_of_resizing_that_is_not_here_is_said(config: Any, beside: Any, text: str) -> None:
    found, notes = read(config, beside)
    assert found.interpolation == "bicubic"
    assert notes == (f"its pictures are resized with {text}, which is not here: bicubic was taken",)


def test_timms_fraction_also_holds_for_a_squash_and_is_0_875_unless_said() -> None:
    squashed = {"pretrained_cfg": {"mean": MEAN, "std": STD, "crop_pct": 0.95, "crop_mode": "squash"}}
    found, notes = read(squashed, {})
    assert (found.fit, found.crop_fraction, notes) == ("squash", 0.95, ())
    assert read({"pretrained_cfg": {"mean": MEAN}}, {})[0].crop_fraction == 0.875
    found, notes = read({"pretrained_cfg": {"crop_mode": "border", "crop_pct": 0.9}}, {})
    assert (found.fit, found.crop_fraction) == ("pad", 1.0)
    text = "timm fills the border with the mean colour and cuts 0.9 out of it; here it is black and nothing is cut"
    assert notes == (text,)


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
        ("how its pictures are prepared is not known: mean and deviation 0.5 are assumed",),
    )


def test_another_number_of_channels_takes_the_average() -> None:
    old = ImageSpec(mean=MEAN, std=STD)
    new = resize_spec(old, replace(CONFIG, channels=1))
    assert (new.size, new.channels) == ((32, 32), 1)
    assert new.mean == (pytest.approx(0.5),) and new.std == (pytest.approx(0.2),)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"id2label": {"0": "cat", "1": "dog"}}, ("classification", ("cat", "dog"))),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, ("classification", ())),
        ({"id2label": {"0": "cat"}}, ("classification", ())),
        ({"pretrained_cfg": {"label_names": ["cat", "dog"]}}, ("classification", ("cat", "dog"))),
        ({"label_names": ["cat", "dog"]}, ("classification", ("cat", "dog"))),
        ({"problem_type": "multi_label_classification"}, ("multilabel", ())),
    ],
)
def test_answers_have_the_names_that_the_folder_gives_them(beside: dict[str, Any], expected: Any) -> None:
    assert read_task_and_classes(CONFIG, beside) == expected
