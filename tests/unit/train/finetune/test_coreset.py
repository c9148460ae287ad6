"""A bank that is filled from good images: which patches it keeps, the score of each image without its own, and runs."""

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

from good_parts import MACHINE, SHAPE, draw_parts, save_weights
from vitrail import runtime
from vitrail.checkpoints import bundle_weights
from vitrail.cli.main import main
from vitrail.data.settings import DataSettings
from vitrail.errors import DamagedFileError, DataError, UsageError
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.model.config import ViTConfig
from vitrail.model.patch_bank import normalize_patches
from vitrail.model.vit import create_model
from vitrail.predict.predictor import Predictor
from vitrail.runtime import RuntimeSettings
from vitrail.services.evaluation import build_source_settings, evaluate_model, load_held_out, load_other_source
from vitrail.train import fit as training
from vitrail.train.calibration_file import describe_odd_images, read_calibration, read_scores, write_calibration
from vitrail.train.events import Event, FinishEvent, Note
from vitrail.train.finetune import coreset, finetune_planner
from vitrail.train.finetune.coreset import choose_patches, fill_bank, sample_images
from vitrail.train.plan import FinetuneSettings
from vitrail.train.request import DatasetFingerprint, TrainRequest

CPU = torch.device("cpu")
BANK = dataclasses.replace(
    SHAPE, outputs=1, pool="patches", pool_blocks=2, head="bank", bank_size=10_000, image_size=(8, 8)
)  # 4 patches of 48 numbers


def features(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 4, 48, generator=torch.Generator().manual_seed(seed))


def test_every_image_is_scored_by_the_patches_of_the_other_groups():
    groups = np.array([0, 0, 1, 2, 2])
    x = features(5)
    bank, scores = fill_bank(x.clone(), groups, BANK, 0, CPU)
    rows, owners = normalize_patches(x, 2).flatten(0, 1).double().numpy(), np.repeat(groups, 4)
    np.testing.assert_allclose(bank.double().numpy(), rows, atol=1e-3)
    for image in range(5):
        others = bank.double().numpy()[owners != groups[image]]
        distances = 1 - (rows[4 * image : 4 * image + 4] @ others.T).max(1)
        assert scores[image] == pytest.approx(distances.max(), abs=1e-4)  # of four patches, in 16 bits, the largest


def test_a_smaller_bank_covers_better_than_patches_drawn_by_chance():
    patches = normalize_patches(torch.randn(400, 48, generator=torch.Generator().manual_seed(1)), 2)
    patches[:380] = normalize_patches(patches[:1] + 0.05 * patches[:380], 2)  # a crowd, and twenty others
    chosen = choose_patches(patches, 30, 0, CPU)
    assert len(chosen) == len(set(chosen.tolist())) == 30 and chosen.tolist() == sorted(chosen.tolist())
    assert (chosen >= 380).sum() == 20
    assert torch.equal(chosen, choose_patches(patches, 30, 0, CPU))
    assert choose_patches(patches, 400, 0, CPU).tolist() == list(range(400))


def test_a_bank_is_never_larger_than_asked_for():
    bank, scores = fill_bank(features(6), np.arange(6), dataclasses.replace(BANK, bank_size=5), 0, CPU)
    assert bank.shape == (5, 48) and bank.dtype == torch.float16 and np.isfinite(scores).all()


def test_one_image_or_one_group_is_too_few():
    with pytest.raises(DataError, match="only one good picture to learn from"):
        fill_bank(features(1), np.zeros(1, np.int64), BANK, 0, CPU)
    with pytest.raises(DataError, match="only one good group of pictures to learn from"):
        fill_bank(features(3), np.zeros(3, np.int64), BANK, 0, CPU)


def test_of_too_many_images_a_sample_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coreset, "MAX_NUMBERS", 4 * 48 * 7)
    rows = np.arange(20, 40)
    sampled = sample_images(rows, BANK, 0)
    assert len(sampled) == 7 and set(sampled.tolist()) <= set(rows.tolist()) and sampled.tolist() == sorted(sampled)


@pytest.mark.parametrize(("n", "side"), [(10, 448), (700, 448), (1400, 336), (100_000, 112)])
def test_good_pictures_are_counted_once_for_the_minutes(n: int, side: int):
    fingerprint = DatasetFingerprint(
        name="parts", num_images=n, num_classes=2, height=500, width=500, channels=3, low=0, high=255, task="anomaly"
    )
    machine = runtime.choose(RuntimeSettings(device="cpu", threads=2, precision="bfloat16"))
    small = ViTConfig(image_size=(518, 518), patch=(14, 14), width=384, depth=12, heads=6, mlp_width=1536)  # ViT-S/14
    request = TrainRequest(data=DataSettings(source="parts", task="anomaly"), weights="theirs")
    shape, why = finetune_planner._choose_bank_shape(fingerprint, request, machine, small, FinetuneSettings(), 600)
    assert shape.image_size == (side, side) and f"for all patches of {n:,} pictures" in why["model.image_size"]


@pytest.mark.parametrize(
    ("height", "width", "side"), [(28, 28, 224), (300, 300, 224), (200, 1000, 336), (448, 448, 448)]
)
def test_pictures_are_not_enlarged_beyond_16_patches_a_side(height: int, width: int, side: int):
    fingerprint = DatasetFingerprint(
        name="parts", num_images=10, num_classes=2, height=height, width=width, channels=3, low=0, high=255,
        task="anomaly",
    )  # fmt: skip
    machine = runtime.choose(RuntimeSettings(device="cpu", threads=2, precision="float32"))
    theirs = ViTConfig(image_size=(518, 518), patch=(14, 14), width=384, depth=12, heads=6, mlp_width=1536)
    request = TrainRequest(data=DataSettings(source="parts", task="anomaly"), weights="theirs")
    shape, why = finetune_planner._choose_bank_shape(fingerprint, request, machine, theirs, FinetuneSettings(), 600)
    assert shape.image_size == (side, side)
    enlarged = f"more would only enlarge pictures of {height} x {width}"
    assert (enlarged in why["model.image_size"]) == (side < 448)


def test_calibration_survives_its_file(tmp_path: Path):
    write_calibration(tmp_path / "calibration.csv", ["a", "b", "=c"], np.array([0, 0, 1]), np.array([0.1, 0.3, 0.2]))
    scores, groups = read_calibration(tmp_path / "calibration.csv")
    assert scores.tolist() == [0.3, 0.2, 0.1] and groups.tolist() == [0, 1, 0]
    for text in ("", "id,score\na,x\n"):
        (tmp_path / "other.csv").write_text(text)
        if text:
            with pytest.raises(DamagedFileError, match="must hold the scores of the good pictures"):
                read_calibration(tmp_path / "other.csv")
    with pytest.raises(DamagedFileError):
        read_calibration(tmp_path / "missing.csv")


def test_good_pictures_that_stand_out_are_named_with_the_command_that_takes_them_out(tmp_path: Path):
    path, rows = tmp_path / "calibration.csv", np.arange(10)
    scores = np.array([0.2, 0.21, 0.9, 0.22, 0.23, 0.24, 0.8, 0.25, 0.26, 0.27])
    write_calibration(path, "abcdefghij", rows, scores)
    (said,) = describe_odd_images(path)
    assert said.startswith("2 good pictures of 10 differ far more") and ": c, g. " in said
    assert "vitrail teach RUN --forget LIST.csv" in said
    write_calibration(path, "abcdefghij", rows, np.linspace(0.2, 0.4, 10))
    assert describe_odd_images(path) == []


# -- Whole runs


def fit(run: Path, source: Path, weights: Path | str, **fields: object) -> list[Event]:
    machine: RuntimeSettings = MACHINE
    request = TrainRequest(data=DataSettings(source=str(source), task="anomaly"), weights=str(weights))
    return list(training.fit(dataclasses.replace(request, **fields), machine, run))


def notes(events: Sequence[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Note))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Event]]:
    """A run on drawn parts, its source, and its events."""
    root = tmp_path_factory.mktemp("anomaly")
    source = draw_parts(root / "parts")
    return root / "run", source, fit(root / "run", source, save_weights(root / "theirs"))


def test_a_run_finds_the_defects_and_says_what_it_promises(world: tuple[Path, Path, list[Event]]):
    run, _, events = world
    metrics = json.loads((run / "metrics-test.json").read_text())
    assert metrics["auroc"] > 0.9 and metrics["good"] == metrics["defects"] == 4
    assert metrics["pixel_auroc"] > 0.8 and 0 < metrics["aupro"] <= 1
    assert metrics["per_type"][0]["name"] == "spot" and metrics["alpha"] == pytest.approx(1 / 13)
    said = notes(events)
    assert "12 good pictures promise at most 7.7% false alarms, 1 / (n + 1)" in said and "1.0% takes 99." in said
    assert "The bank is made of good pictures alone; 4 pictures of defects are for evaluation only." in said
    assert "The bank holds all of their 768 patches" in said
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    assert end.metrics.headline().startswith("AUROC on 8 held-out pictures (test)")
    with (run / "predictions" / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["target"] for row in rows} == {"good", "spot"} and {row["label"] for row in rows} <= {"good", "defect"}
    assert all(float(row["p_value"]) >= 1 / 13 - 1e-9 for row in rows)
    report = (run / "report.html").read_text()
    assert "not needed: a bank has nothing to choose" in report
    assert "No defect was learnt from" in report and "promised: 7.7" in report and "map by distances" in report


def test_the_run_answers_as_it_was_evaluated(world: tuple[Path, Path, list[Event]]):
    run, source, _ = world
    stored = json.loads((run / "metrics-test.json").read_text())
    predictor = Predictor.open(run)
    assert predictor.task == "anomaly" and predictor.classes == ("good", "defect")
    held_out = evaluate_model(predictor, load_held_out(run, None))
    assert held_out.metrics.to_json() == stored
    settings = build_source_settings(run, source, {}, task="anomaly")
    again = evaluate_model(predictor, load_other_source(source, None, settings))
    assert again.metrics.to_json() == stored
    assert isinstance(again.predictions, ClassificationPredictions) and again.predictions.scores is not None
    scores, _ = read_calibration(run / "calibration.csv")
    assert predictor.decisions.calibration == tuple(sorted(scores.tolist())) and len(scores) == 12


def test_the_bundle_has_the_bank_and_little_else_that_is_new(world: tuple[Path, Path, list[Event]]):
    loaded = bundle_weights.load_bundle(world[0] / "model")
    config: ViTConfig = loaded.model.config
    assert (config.head, config.pool, config.outputs, config.bank_size) == ("bank", "patches", 1, 768)
    assert config.depth == 2 < SHAPE.depth and config.pool_blocks == 1
    kept, theirs = loaded.model.state_dict(), create_model(SHAPE, 3).state_dict()
    for name in ("encoder.blocks.1.mlp.fc2.weight", "encoder.norm.weight", "positions.table"):
        assert torch.equal(kept[name], theirs[name])
    assert loaded.model.state_dict()["head.bank.rows"].dtype == torch.float16


def test_a_run_goes_on_after_its_bank_is_full(world: tuple[Path, Path, list[Event]], tmp_path: Path):
    run, _, _ = world
    before = (run / "predictions" / "test.csv").read_bytes()
    copied = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(copied / "model")
    (copied / "report.html").unlink()
    list(training.resume_run(copied))
    assert (copied / "predictions" / "test.csv").read_bytes() == before and (copied / "report.html").is_file()


def test_the_report_of_good_pictures_alone_judges_each_by_a_bank_without_it(tmp_path: Path):
    source, run = draw_parts(tmp_path / "parts") / "train", tmp_path / "run"
    events = fit(run, source, save_weights(tmp_path / "theirs"))
    assert "No pictures are held out: every good one is left out of the bank in turn" in notes(events)
    assert Predictor.open(run).decisions.alpha == pytest.approx(1 / 13)
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    promise = "At most 7.7% of good pictures are called defects, by 12 good pictures, each judged by a bank without it"
    assert end.metrics.headline() == promise
    with (run / "predictions" / "train.csv").open(newline="") as file:
        scores = {row["id"]: float(row["score"]) for row in csv.DictReader(file)}
    left_out = read_scores(run / "calibration.csv")
    assert scores == {id: pytest.approx(score, abs=1e-6) for id, score in left_out.items()} and len(scores) == 12
    report = (run / "report.html").read_text()
    assert "The good pictures, the oddest first" in report and "Pixel AUROC" not in report
    with np.load(run / "explanations.npz") as stored:  # no patch is compared with itself: 1 % of 64 is the largest
        tops = zip(stored["rows"].tolist(), stored["values"].max((1, 2)).tolist(), strict=True)
        largest = {list(scores)[row]: top for row, top in tops}
    assert largest == {id: pytest.approx(scores[id], abs=2e-3) for id in largest} and len(largest) > 5
    before = (run / "report.html").read_bytes()
    assert main(["report", str(run)]) == 0 and (run / "report.html").read_bytes() == before
    assert main(["report", str(run), "--verify"]) == 0


def test_the_promise_is_made_in_the_precision_of_the_answers(tmp_path: Path, world: tuple[Path, Path, list[Event]]):
    machine = dataclasses.replace(MACHINE, precision="bfloat16")
    request = TrainRequest(
        data=DataSettings(source=str(world[1]), task="anomaly"), weights=str(save_weights(tmp_path / "theirs"))
    )
    list(training.fit(request, machine, tmp_path / "run"))
    assert (tmp_path / "run" / "calibration.csv").read_bytes() == (world[0] / "calibration.csv").read_bytes()


def test_without_weights_the_run_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VITRAIL_WEIGHTS", str(tmp_path / "none"))
    monkeypatch.setattr(finetune_planner, "find_downloaded", lambda one: None)
    source = draw_parts(tmp_path / "parts", 3, 1)
    for weights in ("auto", "none"):
        with pytest.raises(UsageError, match=r"none is named. Give --weights dinov2-small \(88 MB"):
            fit(tmp_path / "run", source, weights)
    with pytest.raises(UsageError, match=r"tunes nothing\. Leave --finetune.method out"):
        overrides = {"finetune.method": "full"}
        fit(tmp_path / "run", source, save_weights(tmp_path / "theirs"), overrides=overrides)
