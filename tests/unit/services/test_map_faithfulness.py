"""Methods measured on a trained model's labelled pictures: planted truth recognised by its pixels, other tasks too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import glyphs
from vitrail.data.source import Source
from vitrail.data.sources import synthetic
from vitrail.errors import UsageError
from vitrail.explain.faithfulness.curves import TASK_SCORES
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.services.evaluation import LabelledImages
from vitrail.services.map_faithfulness import measure_faithfulness
from vitrail.spec import ImageSpec

SHAPE = ViTConfig(image_size=(64, 64), patch=(16, 16), channels=1, width=8, depth=1, heads=2, mlp_width=8, outputs=4)
SPEC = ImageSpec(height=64, width=64, channels=1)


def bright(model, images, classes):
    return torch.nn.functional.avg_pool2d(images, 16)[:, 0] + 1


def predictor(task: str = "classification", classes: tuple[str, ...] = synthetic.CLASSES) -> Predictor:
    return Predictor([PredictorMember(model=create_model(SHAPE, seed=3).eval(), spec=SPEC, classes=classes, task=task)])


@pytest.mark.first(1)
@pytest.mark.parametrize("tag", [False, True])
def test_planted_pictures_are_recognised_with_and_without_their_tag(tag):
    source = synthetic.open_synthetic(tag=tag)
    held = LabelledImages(source, source.splits["test"], "test")
    found = measure_faithfulness(predictor(), held, {"bright": bright}, num_images=8, num_randomized=2)
    assert found.pictures == 8 and found.patches == 16
    located = found.rows[0].located
    assert located is not None and (located.on_tag is not None) is tag
    assert located.own_class.value == pytest.approx(0.5)


def other(task: str) -> LabelledImages:
    made = synthetic.make_synthetic_images(12, seed=9)
    targets = made.targets if task == "classification" else np.eye(4, dtype=np.float32)[made.targets]
    source = Source(
        name="planted", classes=synthetic.CLASSES, images=made.images, targets=targets, task=task,
        ids=tuple(map(str, range(12))), groups=np.arange(12) // 3,
    )  # fmt: skip
    return LabelledImages(source, np.arange(12), "all")


@pytest.mark.first(1)
@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_other_pictures_are_explained_by_the_models_own_answers_whatever_the_task(task):
    watched = []

    def seen(model, images, classes):
        watched.append(classes)
        return bright(model, images, classes)

    model = predictor(task)
    found = measure_faithfulness(model, other(task), {"bright": seen}, num_randomized=0)
    assert found.rows[0].located is None and found.pictures == 12
    own = create_model(SHAPE, seed=3).eval()
    images = torch.from_numpy(synthetic.make_synthetic_images(12, seed=9).images)[:, None].float() / 255 * 2 - 1
    with torch.no_grad():
        outputs = own(images)
        expected = torch.zeros(12).long() if task == "regression" else outputs.argmax(1)
        whole = TASK_SCORES[task](outputs, expected).mean().item()
    assert torch.equal(watched[0], expected)
    assert found.rows[0].faithful[0].deletion.value == pytest.approx(whole, abs=0.2)


def test_what_is_no_plain_vit_is_refused():
    made = synthetic.make_synthetic_images(20, seed=0)
    stand_in = Predictor(
        [PredictorMember(model=glyphs.StandIn(made.images, made.targets), spec=glyphs.SPEC, classes=synthetic.CLASSES)]
    )
    with pytest.raises(UsageError, match="Only a plain ViT with outputs can be measured"):
        measure_faithfulness(stand_in, other("classification"), {"bright": bright})
