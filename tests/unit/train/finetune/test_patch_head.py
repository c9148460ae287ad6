"""The head of a segmentation model: soft labels of patches, its fit, and whole runs on drawn scenes."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from drawn_masks import CLASSES, draw_scene, draw_scenes
from good_parts import MACHINE, SHAPE, save_weights
from vitrail.checkpoints import bundle_weights
from vitrail.data.settings import DataSettings
from vitrail.data.source import UNKNOWN_PIXEL
from vitrail.errors import DataError, UsageError
from vitrail.model.class_maps import spread_logits, to_class_maps
from vitrail.model.vit import create_model
from vitrail.predict.predictor import Predictor
from vitrail.services.evaluation import build_source_settings, evaluate_model, load_held_out, load_other_source
from vitrail.train import fit as training
from vitrail.train.events import Event, FinishEvent, Note
from vitrail.train.finetune import finetune_planner
from vitrail.train.finetune.patch_head import (
    FitPace,
    PatchSet,
    collect_patches,
    fit_patch_head,
    label_patches,
    measure_fit_pace,
)
from vitrail.train.request import TrainRequest

DENSE = dataclasses.replace(SHAPE, outputs=3, pool="patches", pool_blocks=2, image_size=(32, 24))


def test_the_label_of_a_patch_is_the_share_of_its_pixels():
    mask = draw_scene(0, (32, 24))[1]
    mask[:3] = UNKNOWN_PIXEL
    labels = label_patches(mask, DENSE)
    assert labels.shape == (48, 3)
    for place in range(48):
        top, left = 4 * (place // 6), 4 * (place % 6)
        pixels = mask[top : top + 4, left : left + 4]
        assert labels[place].tolist() == [(pixels == k).mean() for k in range(3)]
    padded = dataclasses.replace(DENSE, image_size=(30, 22), pad=True)
    assert label_patches(mask[:30, :22], padded)[-1].sum() == pytest.approx(0.25)  # 2 x 2 of 4 x 4 pixels


def test_patches_without_a_known_pixel_are_left_out_and_others_weigh_as_much_as_is_known():
    features = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    fractions = [np.array([[1, 0], [0, 0], [0.25, 0.25]], np.float32), np.array([[0, 1], [0.5, 0], [0, 0]], np.float32)]
    patches = collect_patches(features, fractions, np.array([7, 9]), 0)
    assert patches.features[:, 0].tolist() == [0, 8, 12, 16] and patches.images.tolist() == [7, 7, 9, 9]
    assert patches.weights.tolist() == [1, 0.5, 1, 0.5]
    assert patches.labels.tolist() == [[1, 0], [0.5, 0.5], [0, 1], [1, 0]]


def make_patches(n: int, seed: int, noise: float = 0.5) -> PatchSet:
    """Patches of 5 images whose first two features show the class, and three that do not."""
    generator = np.random.default_rng(seed)
    k = generator.integers(0, 3, n)
    features = generator.normal(size=(n, 5)).astype(np.float32)
    features[:, :2] = np.array([[0, 0], [2, 0], [0, 2]])[k] + noise * generator.normal(size=(n, 2))
    return PatchSet(features, np.eye(3, dtype=np.float32)[k], np.ones(n, np.float32), np.arange(n) % 5)


@pytest.mark.parametrize("valid", [200, 0])
def test_the_head_with_the_lowest_loss_is_chosen(valid: int):
    parts = {"noise": np.array([2, 3, 4]), "all": np.arange(5)}
    train = make_patches(300, 0)
    result = fit_patch_head(train, make_patches(valid, 1), parts)
    assert result.columns.tolist() == [0, 1, 2, 3, 4]
    (chosen,) = (one for one in result.candidates if one.chosen)
    assert chosen.loss == min(one.loss for one in result.candidates) and chosen.name.startswith("linear all, C ")
    assert len(result.candidates) == 8 and chosen.figure is not None and chosen.figure > 0.85
    other = make_patches(400, 2)
    right = result.best.predict_outputs(other.features).argmax(1) == other.labels.argmax(1)
    assert right.mean() > 0.85


def test_the_pace_says_how_many_patches_fit_and_whether_several_blocks_do():
    pace = FitPace(((384, 1.0, 0.001), (1536, 6.0, 0.004)))
    assert pace.estimate(2000) == 17 and pace.limit(2000, 17.0) == 0
    assert pace.limit(4000, 17.0) == 2000  # both
    assert pace.limit(4000, 10.0) == 1535  # the last block alone, of 9,000: fewer than both need
    assert pace.limit(4000, 2.0) == 1000 and pace.limit(1000, 3.0) == 1000
    assert pace.limit(4000, 0.5) == pace.limit(4000, -3.0) == 256
    measured = measure_fit_pace({"all": np.arange(80), "last": np.arange(40)}, 3)
    assert [width for width, _, _ in measured.parts] == [40, 80] and measured.estimate(100) > measured.estimate(0) > 0


def test_a_limited_fit_is_one_to_a_sample_and_of_few_patches_one_block_alone():
    train, valid, parts = make_patches(300, 0), make_patches(100, 1), {"last": np.arange(2), "all": np.arange(5)}
    threads = torch.get_num_threads()
    whole, limited = fit_patch_head(train, valid, parts), fit_patch_head(train, valid, parts, 50, 7)
    assert torch.get_num_threads() == threads
    assert len(whole.candidates) >= 8 and not np.array_equal(whole.best.weight, limited.best.weight)
    again = fit_patch_head(train, valid, parts, 50, 7)
    np.testing.assert_array_equal(limited.best.weight, again.best.weight)
    few = fit_patch_head(train, valid, parts, 4, 7)
    assert few.columns.tolist() == [0, 1] and all("linear last" in one.name for one in few.candidates)


def test_pixels_of_one_class_teach_nothing():
    train = make_patches(30, 0)
    train.labels[:] = [1, 0, 0]
    with pytest.raises(DataError, match="pixels of fewer than two classes"):
        fit_patch_head(train, make_patches(0, 1), {"all": np.arange(5)})


def test_logits_are_interpolated_between_the_centres_of_patches():
    logits = torch.randn(2, 48, 3, generator=torch.Generator().manual_seed(0))
    spread = spread_logits(logits, DENSE)
    assert spread.shape == (2, 3, 32, 24)
    grid = logits.transpose(1, 2).unflatten(-1, (8, 6)).double().numpy()
    for row, column in ((0, 0), (5, 9), (31, 23), (17, 2)):
        places = [min(max((2 * at + 1) / 8 - 0.5, 0), side - 1) for at, side in ((row, 8), (column, 6))]
        (top, down), (left, right) = ((int(at), at - int(at)) for at in places)
        bottom, end = min(top + 1, 7), min(left + 1, 5)
        expected = (1 - down) * ((1 - right) * grid[..., top, left] + right * grid[..., top, end]) + down * (
            (1 - right) * grid[..., bottom, left] + right * grid[..., bottom, end]
        )
        np.testing.assert_allclose(spread[..., row, column].numpy(), expected, atol=1e-5)
    assert torch.equal(to_class_maps(logits, DENSE), spread.argmax(1).to(torch.uint8))


def test_a_dense_model_has_outputs_for_every_patch():
    model = create_model(DENSE, 0)
    images = torch.zeros(2, 3, 32, 24)
    assert model(images).shape == (2, 48, 3) and "[B, 48, 3]" in repr(model)
    assert torch.equal(model.features(images, keep=("outputs",))["outputs"], model(images))
    with pytest.raises(UsageError, match='needs head="bank" or "linear"'):
        dataclasses.replace(DENSE, head="tanh")


# -- Whole runs


def fit(
    run: Path, source: Path, weights: Path | str, data: dict[str, object] | None = None, **fields: object
) -> list[Event]:
    settings = DataSettings(source=str(source), task="segmentation", **(data or {}))
    request = TrainRequest(data=settings, weights=str(weights), overrides={"finetune.method": "probe"})
    return list(training.fit(dataclasses.replace(request, **fields), MACHINE, run))


def notes(events: Sequence[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Note))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Event]]:
    """A run on drawn scenes, its source, and its events."""
    root = tmp_path_factory.mktemp("masks")
    source = draw_scenes(root / "scenes", 10)
    return root / "run", source, fit(root / "run", source, save_weights(root / "theirs"))


def test_a_run_finds_the_classes_of_the_pixels(world: tuple[Path, Path, list[Event]]):
    run, _, events = world
    metrics = json.loads((run / "metrics-test.json").read_text())
    assert metrics["mean_iou"] > 0.6 and [one["name"] for one in metrics["per_class"]] == list(CLASSES)
    said = notes(events)
    assert "scenes: 3 classes, 10 pictures (7 train, 1 val, 2 test)." in said
    assert "Linear heads on 448 patches, by the validation pictures" in said and "<- chosen" in said
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    assert end.metrics.headline().startswith("Mean IoU on 2 held-out pictures (test)")
    with (run / "predictions" / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(float(rows[0][f"value_{name}"]) for name in CLASSES) == pytest.approx(1, abs=1e-6)
    report = (run / "report.html").read_text()
    assert "Masks and answers" in report and "intersection" not in report and report.count("<img src=") == 2
    card = (run / "model" / "README.md").read_text()
    assert "one of 3 classes for every pixel" in card and "| disc |" in card


def test_the_run_answers_as_it_was_evaluated(world: tuple[Path, Path, list[Event]]):
    run, source, _ = world
    stored = json.loads((run / "metrics-test.json").read_text())
    predictor = Predictor.open(run)
    assert predictor.task == "segmentation" and predictor.classes == CLASSES
    assert evaluate_model(predictor, load_held_out(run, None)).metrics.to_json() == stored
    (source / "turned.csv").write_text("2,square\n0,ground\n1,disc\n")  # classes in another order
    settings = build_source_settings(run, source, {"data.legend": str(source / "turned.csv")}, task="segmentation")
    assert evaluate_model(predictor, load_other_source(source, None, settings)).metrics.n == 10


def test_the_model_is_the_checkpoint_with_a_head_on_patches(world: tuple[Path, Path, list[Event]]):
    loaded = bundle_weights.load_bundle(world[0] / "model")
    config = loaded.model.config
    assert config.is_dense and (config.outputs, config.depth) == (3, SHAPE.depth)
    kept, theirs = loaded.model.state_dict(), create_model(SHAPE, 3).state_dict()
    for name in ("encoder.blocks.2.mlp.fc2.weight", "positions.table"):
        assert torch.equal(kept[name], theirs[name])
    assert loaded.model.head.linear.weight.abs().sum() > 0


def test_a_run_goes_on_after_its_head_is_fitted(world: tuple[Path, Path, list[Event]], tmp_path: Path):
    run, _, _ = world
    before = (run / "predictions" / "test.csv").read_bytes()
    copied = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(copied / "model")
    (copied / "report.html").unlink()
    list(training.resume_run(copied))
    assert (copied / "predictions" / "test.csv").read_bytes() == before and (copied / "report.html").is_file()


def test_five_pictures_are_enough_and_nothing_is_held_out_if_asked(tmp_path: Path):
    source, weights = draw_scenes(tmp_path / "scenes", 5), save_weights(tmp_path / "theirs")
    said = notes(fit(tmp_path / "run", source, weights, {"val_fraction": 0.0, "test_fraction": 0.0}))
    assert "by training pictures that are left out in turn" in said
    assert "No pictures were held out, so there is no report" in said


def test_without_weights_the_run_says_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(finetune_planner, "find_downloaded", lambda one: None)
    source = draw_scenes(tmp_path / "scenes", 3, (64, 64))
    said = notes(fit(tmp_path / "run", source, "auto", steps=1, overrides={}))
    assert (
        "From scratch: no recommended checkpoint is on this machine." in said and "add --weights dinov2-small" in said
    )


@pytest.mark.wide
def test_a_model_of_masks_is_a_checkpoint_for_other_tasks(world: tuple[Path, Path, list[Event]], tmp_path: Path):
    settings = DataSettings(source="digits")
    request = TrainRequest(data=settings, weights=str(world[0]), steps=1, overrides={"model.channels": "3"})
    list(training.fit(request, MACHINE, tmp_path / "run"))
    assert bundle_weights.load_bundle(tmp_path / "run" / "model").model.config.pool == "class+mean"
