"""Runs on pictures much larger than the model reads: the plan cuts them into tiles, and every door answers the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from good_parts import MACHINE, SHAPE, draw_parts, save_weights
from vitrail.data.preprocess import preprocess_image
from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError
from vitrail.model.vit import ViT
from vitrail.predict.predictor import Predictor
from vitrail.services.bank_versions import teach
from vitrail.services.defect_maps import write_defect_maps
from vitrail.train import fit as training
from vitrail.train.events import PlanEvent
from vitrail.train.request import TrainRequest

WEIGHTS_SHAPE = dataclasses.replace(SHAPE, image_size=(16, 16))


def plan_of(source: Path, weights: Path, **fields: object) -> PlanEvent:
    data = DataSettings(source=str(source), task="anomaly")
    request = dataclasses.replace(TrainRequest(data=data, weights=str(weights)), **fields)  # type: ignore[arg-type]
    (event,) = (one for one in training.fit(request, MACHINE, dry_run=True) if isinstance(one, PlanEvent))
    return event


def draw_large(folder: Path, seeds: range, spot: bool = False) -> list[Path]:
    """Pictures of 40 x 40 pixels with a grain of their own; a spot of 3 x 3."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        values = 100 + 3 * np.random.default_rng(seed).normal(size=(40, 40))
        if spot:
            values[20:23, 9:12] += 120
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(folder / f"{seed}.png")
    return [folder / f"{seed}.png" for seed in seeds]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "theirs", WEIGHTS_SHAPE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Path:
    root = tmp_path_factory.mktemp("tiled")
    draw_large(root / "parts/train/good", range(10))
    draw_large(root / "parts/test/good", range(50, 54))
    draw_large(root / "parts/test/spot", range(60, 64), spot=True)
    request = TrainRequest(data=DataSettings(source=str(root / "parts"), task="anomaly"), weights=str(weights))
    list(training.fit(request, MACHINE, root / "run"))
    return root / "run"


def test_the_plan_cuts_large_pictures_and_says_why(tmp_path: Path, weights: Path):
    source = draw_parts(tmp_path / "parts", good=3, defects=1)  # 40 x 40, and the model reads 16 x 16
    event = plan_of(source, weights)
    assert (event.plan.model.tiles, event.plan.model.tile_overlap) == ((3, 3), 1)
    assert event.plan.image.size == event.plan.model.input_size == (40, 40)
    assert event.reasons["model.tiles"] == (
        "pictures of 40 x 40 pixels, read as they are: shrunk to 16 a small defect would vanish"
    )
    whole = plan_of(source, weights, image_size=(16, 16))
    assert (
        whole.plan.model.tiles == (1, 1) and "read whole, because a size was asked for" in whole.reasons["model.tiles"]
    )
    chosen = plan_of(source, weights, overrides={"model.tiles": "2,2", "model.tile_overlap": "0"})
    assert chosen.plan.model.input_size == chosen.plan.image.size == (32, 32)
    with pytest.raises(UsageError, match=r"tile_overlap must lie in 0\.\.3"):
        plan_of(source, weights, overrides={"model.tile_overlap": "4"})
    short = plan_of(source, weights, minutes=1e-9)
    assert short.plan.model.tiles == (1, 1) and "are shrunk: tiles take more" in short.reasons["model.tiles"]


def test_pictures_that_are_not_much_larger_are_read_whole(tmp_path: Path):
    source = draw_parts(tmp_path / "parts", good=3, defects=1)
    event = plan_of(source, save_weights(tmp_path / "theirs"))  # reads 32 x 32
    assert not event.plan.model.is_tiled and "model.tiles" not in event.reasons


def test_a_tiled_run_has_one_score_and_one_map_for_each_picture(run: Path, tmp_path: Path):
    predictor = Predictor.open(run)
    model = predictor.single_member().model
    assert isinstance(model, ViT) and model.config.tiles == (3, 3)
    metrics = json.loads((run / "metrics-test.json").read_text())
    assert metrics["auroc"] == 1.0 and metrics["recall"] == 1.0
    paths = draw_large(tmp_path / "in", range(70, 72), spot=True)
    predictions = predictor.predict(paths)
    images = torch.stack([preprocess_image(path, predictor.spec) for path in paths])
    np.testing.assert_allclose(predictor.logits(images)[:, 0], predictions.scores, atol=1e-5)  # type: ignore[union-attr]
    list(write_defect_maps(predictor, paths[:1], tmp_path / "maps"))
    values = np.asarray(Image.open(tmp_path / "maps" / "70.map.png"))
    assert values.shape == (40, 40)
    row, column = np.unravel_index(values.argmax(), values.shape)
    assert 16 <= row <= 26 and 4 <= column <= 16


def test_a_tiled_run_is_taught_and_explained(run: Path, tmp_path: Path):
    opened = vitrail.open(run)
    paths = draw_large(tmp_path / "more", range(80, 83))
    assert teach(run, paths).pictures == 13
    assert opened.predict([str(path) for path in paths]).labels == ("good",) * 3
    (explained,) = opened.explain(str(paths[0]))
    assert explained.heatmap.values.shape[-2:] == (10, 10)
    teach(run, use="training")


@pytest.mark.wide
def test_exported_files_cut_tiles_too(run: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    from vitrail.services.predict_file import open_file_predictor

    opened = vitrail.open(run)
    paths = [*draw_large(tmp_path / "in", range(70, 72), spot=True), *draw_large(tmp_path / "in", range(90, 92))]
    exact = opened.predict([str(path) for path in paths])
    from_file = open_file_predictor(str(opened.export("onnx")), "onnx", "cpu", {}).predict(paths)
    np.testing.assert_allclose(from_file.scores, exact.scores, atol=1e-4)  # type: ignore[union-attr]
    assert from_file.labels == exact.labels  # type: ignore[union-attr]
    assert opened.export("pt2").is_file()  # verified before it is kept
