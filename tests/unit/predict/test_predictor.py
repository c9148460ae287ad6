"""One answer, alone or in a batch, from a file or an array, and a bad file named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail import config
from vitrail.checkpoints import bundle, bundle_weights
from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.evaluate import decisions
from vitrail.evaluate.calibration import SCALING_KEY, TargetScaling
from vitrail.evaluate.decisions import Decisions
from vitrail.evaluate.inference import InferenceSettings
from vitrail.evaluate.ood import fit_feature_stats
from vitrail.evaluate.predictions import MultilabelPredictions, RegressionPredictions
from vitrail.evaluate.tta import TtaViews
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.spec import ImageSpec

SPEC = ImageSpec(height=8, width=12, channels=1)


def model() -> ViT:
    tiny = ViTConfig(
        image_size=(8, 12), patch=(4, 4), channels=1, width=16, depth=2, heads=2, mlp_width=32, outputs=3, init="torch",
        dropout=0.5,
    )  # fmt: skip
    return create_model(tiny, seed=0)


def predictor(mirror: bool = False, batch_size: int = 64) -> Predictor:
    settings = InferenceSettings(views=TtaViews(flip=mirror), batch_size=batch_size)
    return Predictor([PredictorMember(model=model(), spec=SPEC, classes=("cat", "dog", "fish"), settings=settings)])


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(7)]
    for path in paths:
        Image.fromarray(generator.integers(0, 256, (9, 14), dtype=np.uint8)).save(path)
    return paths


@pytest.mark.parametrize("mirror", [False, True])
def test_a_batch_equals_its_singles(pictures, mirror):
    together = predictor(mirror).predict(pictures)
    apart = predictor(mirror, 1).predict(pictures)
    by_threes = predictor(mirror, 3).predict(pictures)
    assert together.paths == apart.paths == by_threes.paths == tuple(map(str, pictures))
    np.testing.assert_allclose(apart.probabilities, together.probabilities, atol=1e-5)
    np.testing.assert_allclose(by_threes.probabilities, together.probabilities, atol=1e-5)
    assert np.ptp(together.probabilities, axis=0).max() > 1e-3


def test_a_file_and_its_array_get_the_same_answer(pictures):
    arrays = [np.asarray(Image.open(path)) for path in pictures]
    from_files, from_arrays = predictor().predict(pictures), predictor().predict(arrays)
    np.testing.assert_allclose(from_files.probabilities, from_arrays.probabilities, atol=1e-5)
    assert from_arrays.paths == ("",) * 7
    assert from_arrays.ids == tuple("0123456")
    assert from_files.ids[0] == "0.png"


def test_mirroring_answers_a_picture_and_its_mirror_image_alike():
    picture = np.random.default_rng(0).integers(0, 256, (8, 12), dtype=np.uint8)
    found = predictor(mirror=True).predict([picture, picture[:, ::-1].copy()]).probabilities
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_an_unreadable_picture_among_many_is_named(pictures):
    pictures[4].write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"4\.png"):
        predictor(batch_size=2).predict(pictures)


def test_an_unreadable_picture_can_be_left_out_and_is_still_named(pictures):
    whole = predictor().predict(pictures)
    pictures[4].write_bytes(b"not a picture")
    found = predictor(batch_size=2).predict(pictures, skip_bad=True)
    assert found.paths == tuple(str(p) for p in pictures if p.name != "4.png")
    np.testing.assert_allclose(found.probabilities, np.delete(whole.probabilities, 4, 0), atol=1e-5)
    ((path, why),) = found.skipped
    assert path == str(pictures[4])
    assert "4.png" in why


def test_a_batch_of_bad_pictures_alone_gives_no_rows(pictures):
    pictures[0].write_bytes(b"")
    found = predictor().predict(pictures[:1], skip_bad=True)
    assert (len(found), len(found.skipped)) == (0, 1)
    assert found.classes == ("cat", "dog", "fish")


def test_no_pictures_give_an_empty_table():
    assert predictor().predict([]).probabilities.shape == (0, 3)


def test_rows_come_batch_by_batch(pictures):
    assert [len(part) for part in predictor(batch_size=3).predict_batches(pictures)] == [3, 3, 1]


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"at least 1\. Got 0"):
        predictor(batch_size=0)
    with pytest.raises(UsageError, match=r"names of its classes\. Got none"):
        PredictorMember(model=model(), spec=SPEC, classes=())
    with pytest.raises(UsageError, match="must be a bundle"):
        Predictor.open(tmp_path)


@pytest.mark.parametrize("inside", ["", "model"])
def test_a_bundle_and_a_run_folder_open_with_what_they_say(inside, tmp_path, monkeypatch):
    (tmp_path / inside).mkdir(exist_ok=True)
    (tmp_path / inside / "config.json").write_text("{}")
    asked = []

    def load(folder):
        asked.append(folder)
        given = {"model": model(), "spec": SPEC, "task": "classification", "classes": ("a", "b", "c")}
        return SimpleNamespace(**given, info={"mirror": True}, feature_stats={})

    monkeypatch.setattr(bundle_weights, "load_bundle", load)
    opened = Predictor.open(tmp_path)
    assert asked == [tmp_path / inside]
    (one,) = opened.members
    assert (one.settings.views, one.settings.precision, opened.classes) == (
        TtaViews(flip=True),
        "float32",
        ("a", "b", "c"),
    )
    assert Predictor.open(tmp_path, precision="bfloat16").members[0].settings.precision == "bfloat16"
    assert opened.device == torch.device("cpu")


def test_a_real_bundle_answers_as_the_model_in_memory_does(pictures, tmp_path):
    info = {"precision": "float32", "mirror": True}
    bundle_weights.save_bundle(
        tmp_path / "run" / "model", model(), SPEC, "classification", ("cat", "dog", "fish"), info
    )
    opened = Predictor.open(tmp_path / "run")
    np.testing.assert_array_equal(
        opened.predict(pictures).probabilities, predictor(mirror=True).predict(pictures).probabilities
    )


def outputs(pictures) -> np.ndarray:
    """What the network itself says of pictures and of their mirror images, [2, n, K]."""
    images = torch.stack([preprocess_image(picture, SPEC) for picture in pictures])
    with torch.inference_mode():
        x = normalize(images, SPEC)
        own = model().eval()
        return torch.stack([own(x), own(x.flip(-1))]).double().numpy()


@pytest.mark.parametrize("mirror", [False, True])
def test_a_bundle_of_labels_answers_with_a_probability_for_each(pictures, mirror, tmp_path):
    bundle_weights.save_bundle(
        tmp_path / "model", model(), SPEC, "multilabel", ("cat", "dog", "fish"), {"mirror": mirror}
    )
    chances = 1 / (1 + np.exp(-outputs(pictures)))
    answers = Predictor.open(tmp_path).predict(pictures)
    assert isinstance(answers, MultilabelPredictions) and answers.classes == ("cat", "dog", "fish")
    np.testing.assert_allclose(answers.probabilities, chances.mean(0) if mirror else chances[0], atol=1e-5)


@pytest.mark.parametrize("mirror", [False, True])
def test_a_bundle_of_numbers_answers_in_their_unit(pictures, mirror, tmp_path):
    scale = TargetScaling((300.0, 0.0, -2.0), (40.0, 1.0, 0.25))
    info = {"mirror": mirror, SCALING_KEY: scale.to_json()}
    bundle_weights.save_bundle(tmp_path / "scaled", model(), SPEC, "regression", ("a", "b", "c"), info)
    bundle_weights.save_bundle(tmp_path / "plain", model(), SPEC, "regression", ("a", "b", "c"), {"mirror": mirror})
    expected = outputs(pictures).mean(0) if mirror else outputs(pictures)[0]
    answers = Predictor.open(tmp_path / "scaled").predict(pictures)
    assert isinstance(answers, RegressionPredictions) and answers.columns == ("a", "b", "c")
    np.testing.assert_allclose(answers.values, expected * scale.deviation + scale.mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(Predictor.open(tmp_path / "plain").predict(pictures).values, expected, atol=1e-5)


def test_a_bundle_whose_scale_does_not_fit_and_a_scale_of_no_numbers_are_refused(tmp_path):
    bundle_weights.save_bundle(
        tmp_path / "model", model(), SPEC, "regression", ("a", "b", "c"), {SCALING_KEY: {"mean": [1.0]}}
    )
    with pytest.raises(DamagedFileError, match="mean and deviation of 3 training targets"):
        Predictor.open(tmp_path)
    with pytest.raises(UsageError, match="Only a regression model"):
        PredictorMember(model=model(), spec=SPEC, classes=("a", "b", "c"), scaling=TargetScaling((0.0,), (1.0,)))


def test_an_ensemble_answers_with_the_mean_of_its_members(pictures, tmp_path):
    folders = []
    for seed in range(3):
        folders.append(tmp_path / f"run-{seed}")
        own = create_model(model().config, seed=seed)
        bundle_weights.save_bundle(
            folders[-1], own, replace(SPEC, mean=(0.4 + seed / 10,)), "classification", ("cat", "dog", "fish"), {}
        )
    bundle.save_ensemble(tmp_path / "together" / "model", folders)
    each = [Predictor.open(folder).predict(pictures).probabilities for folder in folders]
    for opened in (Predictor.open(tmp_path / "together"), Predictor.open(tmp_path / "together" / "model")):
        together = opened.predict(pictures)
        np.testing.assert_allclose(together.probabilities, np.mean(each, axis=0), atol=1e-6)
        np.testing.assert_array_equal(together.indices, np.mean(each, axis=0).argmax(1))
    assert len(Predictor.open(tmp_path / "together").predict([])) == 0


def test_models_that_answer_differently_do_not_answer_together():
    first = PredictorMember(model=model(), spec=SPEC, classes=("cat", "dog", "fish"))
    with pytest.raises(UsageError, match=r"same classes and read the same pictures"):
        Predictor([first, replace(first, classes=("cat", "dog", "hen"))])
    with pytest.raises(UsageError, match=r"same classes and read the same pictures"):
        Predictor([first, replace(first, spec=replace(SPEC, high=4095.0))])
    with pytest.raises(UsageError, match=r"at least one model"):
        Predictor([])


def test_a_changed_ensemble_is_refused(tmp_path):
    bundle_weights.save_bundle(tmp_path / "run", model(), SPEC, "classification", ("cat", "dog", "fish"), {})
    bundle.save_ensemble(tmp_path / "model", [tmp_path / "run"])
    (tmp_path / "model" / "member-0" / "README.md").write_text("changed")
    with pytest.raises(DamagedFileError, match="README"):
        Predictor.open(tmp_path)


def test_pictures_unlike_those_of_the_training_are_not_answered(pictures, tmp_path):
    """A model whose training pictures were all black calls everything else unlike."""
    own = model().eval()
    with torch.inference_mode():
        features = own.features(torch.randn(200, 1, 8, 12) * 0.01 - 1, keep=("pooled",))["pooled"].numpy()
    known = fit_feature_stats(features, None)
    noted = {
        decisions.DECISIONS_KEY: config.write(Decisions(unlike=float(known.mahalanobis_distances(features).max())))
    }
    bundle_weights.save_bundle(
        tmp_path / "model", own, SPEC, "classification", ("cat", "dog", "fish"), noted, known.to_tensors()
    )
    answers = Predictor.open(tmp_path).predict([*pictures, np.zeros((8, 12), np.uint8)])
    assert answers.abstain_reasons == (*("unlike",) * 7, "")
    with pytest.raises(UsageError, match=r"nothing to compare with"):
        PredictorMember(model=own, spec=SPEC, classes=("cat", "dog", "fish"), decisions=Decisions(unlike=2.0))


def test_matrices_are_cast_once_where_answers_are_bfloat16():
    settings = InferenceSettings(precision="bfloat16")
    one = PredictorMember(model=model(), spec=SPEC, classes=("cat", "dog", "fish"), settings=settings)
    assert one.inference_model is one.inference_model and one.inference_model is not one.model
    assert (
        one.inference_model.head.linear.weight.dtype == torch.bfloat16
        and one.model.head.linear.weight.dtype == torch.float32
    )
    plain = replace(one, settings=InferenceSettings())
    assert plain.inference_model is plain.model
