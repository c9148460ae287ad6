"""Asking a predictor again with parts of every picture covered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import glyphs
from vitrail.data.source import Source
from vitrail.data.sources import synthetic
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.inference import InferenceSettings
from vitrail.evaluate.ood import FeatureStats
from vitrail.evaluate.shortcut_reliance import border_mask
from vitrail.evaluate.tta import TtaViews
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.services.evaluation import LabelledImages, mask_predictor, measure_shortcuts, predict_labelled


@pytest.mark.parametrize("tag", [True, False])
def test_V11_a_predictor_that_reads_a_tag_is_found_out(tag):
    made = synthetic.make_synthetic_images(500, seed=5, tag=tag)
    model = glyphs.StandIn(made.images[:300], made.targets[:300])
    predictor = Predictor([PredictorMember(model=model, spec=glyphs.SPEC, classes=synthetic.CLASSES)])
    given = Source(
        name="planted", classes=synthetic.CLASSES, images=made.images, targets=made.targets,
        ids=tuple(map(str, range(500))),
    )  # fmt: skip
    held = LabelledImages(given, np.arange(300, 500), "test")
    whole = predict_labelled(predictor, held)
    found = measure_shortcuts(predictor, held, whole)
    assert found.alarm is tag and (found.n, found.split) == (200, "test")
    assert (found.border > 0.8) is tag
    assert whole.targets is not None and found.whole == np.mean(whole.indices == whole.targets)


def test_a_covered_predictor_answers_every_picture_as_the_whole_one_decides():
    made = synthetic.make_synthetic_images(60, seed=0)
    model = glyphs.StandIn(made.images, made.targets)
    square = np.eye(4, dtype=np.float32)
    decided = Decisions(temperature=(2.0,), unlike=3.0)
    familiar = FeatureStats(square, square, square)
    settings = InferenceSettings(views=TtaViews(flip=True))
    member = PredictorMember(
        model=model,
        spec=glyphs.SPEC,
        classes=synthetic.CLASSES,
        settings=settings,
        decisions=decided,
        feature_stats=familiar,
    )
    predictor = Predictor([member])
    seen = mask_predictor(predictor, border_mask(64, 64))
    assert seen.decisions == replace(decided, unlike=None) and seen.single_member().feature_stats is None
    assert (
        seen.single_member().settings.views.flip and seen.classes == predictor.classes and seen.spec == predictor.spec
    )
    assert len(seen.predict(list(made.images[:3]))) == 3
