"""Training on masks: the loss, masks that move with their pictures, outputs of parts of patches, and whole runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drawn_masks import CLASSES, draw_scene, draw_scenes
from good_parts import MACHINE, SHAPE, save_weights
from vitrail.checkpoints.bundle_weights import load_bundle
from vitrail.data.loader import Batch
from vitrail.data.mask_store import MaskStore, load_mask
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.source import UNKNOWN_PIXEL
from vitrail.errors import UsageError
from vitrail.evaluate.inference import run_inference
from vitrail.evaluate.predictions import RegressionPredictions
from vitrail.evaluate.segmentation_metrics import SegmentationMetrics
from vitrail.files.safetensors_file import load_tensors
from vitrail.model.class_maps import spread_logits
from vitrail.model.vit import create_model
from vitrail.predict.predictor import Predictor
from vitrail.services.evaluation import evaluate_model, load_held_out
from vitrail.spec import ImageSpec
from vitrail.train import context, time_budget
from vitrail.train import fit as training
from vitrail.train.batch_augment import augment_batch, move_masks
from vitrail.train.events import Event, FinishEvent, Note, PlanEvent
from vitrail.train.finetune import features, finetune_planner, linear_probe, patch_head
from vitrail.train.finetune.linear_probe import Candidate
from vitrail.train.finetune.patch_head import FitPace, PatchSet
from vitrail.train.losses import check_loss_settings, mask_loss, mean_loss
from vitrail.train.plan import ComputeSettings, Plan, ProgressiveStage, Recipe
from vitrail.train.planning import cost_estimate, throughput
from vitrail.train.planning.throughput import Throughput
from vitrail.train.request import TrainRequest
from vitrail.train.run_folder import RunFolder

DENSE = dataclasses.replace(SHAPE, outputs=3, pool="patches", pool_blocks=2, image_size=(32, 24))


def draw_batch(n: int = 4, size: tuple[int, int] = (12, 10)) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n, 3, H, W] and masks, of which a tenth is unknown, and the last one all."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 3, *size, generator=generator)
    masks = torch.randint(0, 3, (n, *size), generator=generator).to(torch.uint8)
    masks[torch.rand(masks.shape, generator=generator) < 0.1] = UNKNOWN_PIXEL
    masks[0][masks[0] == 2] = 1  # a class that its mask does not have
    masks[-1] = UNKNOWN_PIXEL
    return logits, masks


# -- The loss


@pytest.mark.parametrize("dice_weight", [0.0, 0.7])
def test_the_loss_is_the_cross_entropy_of_known_pixels_and_the_dice_of_their_classes(dice_weight: float):
    logits, masks = draw_batch()
    total, weight = mask_loss(logits, masks, dice_weight)
    expected = 0.0
    for scores, mask in zip(logits.double().softmax(1), masks, strict=True):
        known = [(row, column) for row in range(12) for column in range(10) if mask[row, column] != UNKNOWN_PIXEL]
        if not known:
            continue
        expected -= np.mean([np.log(float(scores[int(mask[place]), *place])) for place in known])
        present = sorted({int(mask[place]) for place in known})
        dice = []
        for k in present:
            both = sum(float(scores[k, *place]) for place in known if mask[place] == k)
            sizes = sum(float(scores[k, *place]) + float(mask[place] == k) for place in known)
            dice.append(2 * both / sizes)
        expected += dice_weight * (1 - np.mean(dice))
    assert float(total) == pytest.approx(expected, rel=1e-5) and float(weight) == 3


def test_parts_of_a_batch_add_up_and_unknown_pixels_have_no_gradient():
    logits, masks = draw_batch()
    whole = mask_loss(logits, masks, 1.0)
    parts = [mask_loss(logits[part], masks[part], 1.0) for part in (slice(0, 1), slice(1, 4))]
    for place in range(2):
        assert float(sum(part[place] for part in parts)) == pytest.approx(float(whole[place]), rel=1e-6)
    mean_loss(*mask_loss(logits.requires_grad_(), masks, 1.0)).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    unknown = (masks == UNKNOWN_PIXEL)[:, None].expand_as(logits)
    assert not logits.grad[unknown].any() and logits.grad[~unknown].all()
    weighted = mask_loss(logits.detach(), masks, 1.0, torch.tensor([2.0, 0.0, 0.0, 5.0]))[0]
    alone = mask_loss(logits[:1].detach(), masks[:1], 1.0)[0]
    assert float(weighted) == pytest.approx(2 * float(alone), rel=1e-6)


def test_a_perfect_answer_has_no_loss():
    masks = draw_batch()[1]
    logits = 50 * torch.nn.functional.one_hot(masks.long().clamp(max=2), 3).permute(0, 3, 1, 2).float()
    assert float(mask_loss(logits, masks, 1.0)[0]) == pytest.approx(0, abs=1e-5)


# -- Geometry

EXACT = {
    "flip": {"flip": True}, "flips": {"flip": True, "flip_vertical": True}, "shift": {"crop_padding": 5},
    "transpose": {"transpose": True},
    "all": {"flip": True, "crop_padding": 3, "transpose": True, "flip_vertical": True},
}  # fmt: skip
BLURRED = {
    "rotate": {"rotate": 30.0},
    "scale": {"scale": 0.3},
    "affine": {"rotate": 10.0, "translate": 0.1, "flip": True},
}


@pytest.mark.parametrize("changes", [*EXACT.values(), *BLURRED.values()], ids=[*EXACT, *BLURRED])
def test_a_mask_moves_as_its_picture_does(changes: dict[str, float]):
    """The picture is the mask in black and white; where it is neither after the move, two pixels are mixed."""
    masks = torch.from_numpy(np.stack([(draw_scene(seed, (40, 40))[1] == 2).astype(np.uint8) for seed in range(8)]))
    batch = Batch(255 * masks[:, None], masks, np.arange(8))
    recipe, moved_somewhere = Recipe(**changes), False
    for epoch in range(3):
        images = augment_batch(batch, recipe, 7, epoch)[:, 0]
        moved = move_masks(batch, recipe, 7, epoch).targets
        clear = (images == 0) | (images == 255)
        assert torch.equal(moved[clear], (images > 127).to(torch.uint8)[clear])
        assert clear.all() if changes in EXACT.values() else clear.float().mean() > 0.8
        moved_somewhere |= not torch.equal(moved, masks)
    assert moved_somewhere


def test_targets_that_are_no_masks_stay(tmp_path: Path):
    batch = Batch(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, 3), np.arange(2))
    assert move_masks(batch, Recipe(flip=True), 0, 0) is batch


@pytest.mark.parametrize("limit", [0, 10**9])
def test_masks_are_the_same_read_once_or_for_every_batch(limit: int, tmp_path: Path):
    path = draw_scenes(tmp_path / "scenes", 5)
    source = open_source(str(path), DataSettings(source=str(path), task="segmentation"))
    spec = ImageSpec(height=24, width=32)
    store = MaskStore(source, np.array([3, 1, 4]), spec, limit)
    assert len(store) == 3
    np.testing.assert_array_equal(store[np.array([2, 0])], [load_mask(source, row, spec) for row in (4, 3)])


# -- Outputs of parts of patches


def test_outputs_of_parts_are_added_to_those_of_patches():
    fine = dataclasses.replace(DENSE, upsample=2)
    model = create_model(fine, 0)
    assert fine.head_outputs == 15 and model(torch.zeros(1, 3, 32, 24)).shape == (1, 48, 15)
    logits = torch.randn(2, 48, 15, generator=torch.Generator().manual_seed(0))
    parts = torch.zeros(2, 3, 16, 12)
    for row in range(16):
        for column in range(12):
            patch, part = (row // 2) * 6 + column // 2, (row % 2) * 2 + column % 2
            parts[:, :, row, column] = logits[:, patch, 3 + part :: 4]
    size = {"size": (32, 24), "mode": "bilinear"}
    expected = spread_logits(logits[..., :3], DENSE) + torch.nn.functional.interpolate(parts, **size)
    torch.testing.assert_close(spread_logits(logits, fine), expected)
    logits[..., 3:] = 0
    torch.testing.assert_close(spread_logits(logits, fine), spread_logits(logits[..., :3], DENSE))


@pytest.mark.parametrize("changes", [{"upsample": 5}, {"pool": "mean", "upsample": 2}, {"outputs": 0, "upsample": 2}])
def test_parts_need_outputs_of_patches_and_pixels(changes: dict[str, object]):
    with pytest.raises(UsageError, match='upsample needs pool="patches" and a linear head with outputs'):
        dataclasses.replace(DENSE, **changes)


# -- Whole runs


def fit(run: Path, source: Path, weights: Path | str, **fields: object) -> list[Event]:
    request = TrainRequest(data=DataSettings(source=str(source), task="segmentation"), weights=str(weights))
    return list(training.fit(dataclasses.replace(request, **fields), MACHINE, run))  # type: ignore[arg-type]


def notes(events: Sequence[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Note))


def plan_in(events: Sequence[Event]) -> Plan:
    (event,) = (event for event in events if isinstance(event, PlanEvent))
    return event.plan


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    root = tmp_path_factory.mktemp("tuned")
    source = draw_scenes(root / "scenes", 20)
    changes = {"recipe.lr": "1e-3", "recipe.evaluate_every": "15"}
    return root / "run", fit(root / "run", source, save_weights(root / "theirs"), steps=30, overrides=changes)


def test_tuning_begins_with_the_fitted_head_and_is_kept_only_if_better(tuned: tuple[Path, list[Event]]):
    run, events = tuned
    plan = plan_in(events)
    assert (plan.finetune.method, plan.model.upsample, plan.recipe.dice_weight) == ("full", 4, 1.0)
    assert plan.finetune.freeze_blocks == 1 and not plan.recipe.tta_flip
    said = notes(events)
    assert "Linear heads on" in said and "Start, tuned weights, and means of both, on the validation pictures" in said
    tried = json.loads((run / "start.json").read_text())["tuned"]
    assert [one["name"] for one in tried] == ["the start, frozen", "0.5 of the way to tuned", "tuned"]
    (chosen,) = (one for one in tried if one["chosen"])
    assert chosen["figure"] == max(one["figure"] for one in tried) and chosen["figure_name"] == "IoU"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if "val_iou" in row]) == 2
    assert rows[-1]["step"] == 30 and min(row["loss"] for row in rows if "loss" in row) < 0.9 * next(
        row["loss"] for row in rows if "loss" in row
    )


@pytest.fixture(scope="module")
def asked(tuned: tuple[Path, list[Event]]) -> tuple[Path, list[Event]]:
    """A run with mask queries."""
    root = tuned[0].parent
    changes = {"recipe.lr": "1e-3", "recipe.evaluate_every": "40", "model.queries": "6", "model.query_blocks": "2"}
    return root / "asked", fit(root / "asked", root / "scenes", root / "theirs", steps=40, overrides=changes)


@pytest.mark.wide
def test_queries_learn_beside_the_fitted_head_and_stay_only_if_better(
    tuned: tuple[Path, list[Event]], asked: tuple[Path, list[Event]]
):
    run, _ = asked
    (plain, _), (table, ours) = (
        (json.loads((each / "start.json").read_text()), load_tensors(each / "start.safetensors"))
        for each in (tuned[0], run)
    )
    tried = {one["name"]: one for one in table["tuned"]}
    assert list(tried) == ["the start, frozen", "0.5 of the way to tuned", "tuned", "tuned, without queries"]
    assert table["frozen"] == plain["frozen"]  # the same head, fitted to the same features
    assert tried["the start, frozen"]["figure"] == plain["tuned"][0]["figure"]
    assert not ours["head.queries.classes.weight"].any() and ours["head.queries.queries"].std() > 0.5
    (chosen,) = (one for one in table["tuned"] if one["chosen"])
    assert chosen["figure"] == max(one["figure"] for one in table["tuned"])
    losses = [row["loss"] for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "loss" in row]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:2])
    assert tried["tuned"]["loss"] != tried["tuned, without queries"]["loss"]
    kept = load_bundle(run / "model").model.config.queries
    assert kept == (0 if chosen["name"] in ("the start, frozen", "tuned, without queries") else 6)


@pytest.mark.wide
def test_queries_alone_learn_drawn_scenes():
    """Of frozen patches and a head of zeros, whose loss is that of three equal classes."""
    config = dataclasses.replace(DENSE, image_size=(32, 32), upsample=4, queries=6, query_blocks=2)
    model, drawn = create_model(config, 0), [draw_scene(seed, (32, 32)) for seed in range(6)]
    images = torch.from_numpy(np.stack([picture for picture, _ in drawn])).permute(0, 3, 1, 2).float() / 128 - 1
    masks = torch.from_numpy(np.stack([mask for _, mask in drawn]))
    assert model.head.queries is not None and model.head.linear is not None
    for weights in model.head.linear.parameters():
        torch.nn.init.zeros_(weights)
    optimizer = torch.optim.Adam(model.head.queries.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = mean_loss(*mask_loss(spread_logits(model(images), config), masks, 0.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] < 1.3 and losses[-1] < 0.6 * losses[0]


@pytest.mark.wide
def test_a_run_whose_queries_do_not_help_has_a_model_without_them(
    tuned: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def best_without(name: str, metrics: object) -> Candidate:
        return Candidate(name=name, figure_name="IoU", figure=float(name.endswith("without queries")), loss=1.0)

    monkeypatch.setattr(linear_probe, "to_candidate", best_without)
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    changes = {"recipe.lr": "1e-3", "model.queries": "4", "model.query_blocks": "1"}
    events = fit(tmp_path / "run", source, weights, steps=3, overrides=changes)
    config = load_bundle(tmp_path / "run" / "model").model.config
    assert plan_in(events).model.queries == 4 and (config.queries, config.upsample) == (0, 1)
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    result = evaluate_model(Predictor.open(tmp_path / "run"), load_held_out(tmp_path / "run", None))
    assert end.metrics is not None and result.metrics.to_json() == end.metrics.to_json()


def test_five_pictures_are_tuned_and_one_of_them_tells_whether_that_is_better(
    tuned: tuple[Path, list[Event]], tmp_path: Path
):
    source, weights = draw_scenes(tmp_path / "scenes", 5), tuned[0].parent / "theirs"
    events = fit(tmp_path / "run", source, weights, steps=2)
    assert "5 pictures (3 train, 1 val, 1 test)" in notes(events)
    plan, reasons = plan_in(events), RunFolder(tmp_path / "run").read_reasons()
    assert (plan.finetune.method, plan.model.upsample, plan.recipe.steps) == ("full", 4, 2)
    assert reasons["finetune.method"] == "3 pictures; the frozen probe stays if tuning does not beat it"
    tried = json.loads((tmp_path / "run" / "start.json").read_text())["tuned"]
    (chosen,) = (one for one in tried if one["chosen"])
    assert len(tried) == 3 and chosen["figure"] == max(one["figure"] for one in tried)


def test_a_tuned_run_answers_as_it_was_evaluated(tuned: tuple[Path, list[Event]]):
    run, events = tuned
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    assert isinstance(end.metrics, SegmentationMetrics) and end.metrics.mean_iou is not None
    result = evaluate_model(Predictor.open(run), load_held_out(run, None))
    assert result.metrics.to_json() == end.metrics.to_json()
    assert load_bundle(run / "model").model.config.upsample == 4


def test_a_tuned_run_goes_on_where_it_stopped(tuned: tuple[Path, list[Event]], tmp_path: Path):
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    changes = {"recipe.lr": "1e-3", "recipe.evaluate_every": "15", "recipe.save_every": "10"}
    request = TrainRequest(
        data=DataSettings(source=str(source), task="segmentation"), weights=str(weights), steps=30, overrides=changes
    )
    stopped = training.fit(request, MACHINE, tmp_path / "run")
    for event in stopped:
        if (tmp_path / "run" / "checkpoints" / "step-00000010").exists() and getattr(event, "step", 0) == 12:
            stopped.close()
            break
    list(training.resume_run(tmp_path / "run"))
    ours, theirs = ((one / "predictions" / "test.csv").read_bytes() for one in (tmp_path / "run", tuned[0]))
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mixup", "0.2"),
        ("auto_augment", "trivial"),
        ("crop_scale", "0.5"),
        ("tta_flip", "true"),
        ("random_erasing", "0.1"),
    ],
)
def test_what_masks_do_not_follow_is_refused(name: str, value: str, tuned: tuple[Path, list[Event]], tmp_path: Path):
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    with pytest.raises(UsageError, match=f"recipe.{name} is not for masks, which are moved by shifts, flips"):
        fit(tmp_path / "run", source, weights, steps=2, overrides={f"recipe.{name}": value})


def test_dice_is_for_masks_alone():
    with pytest.raises(UsageError, match=r"recipe.dice_weight is for masks, and this task is classification"):
        check_loss_settings("classification", Recipe(dice_weight=1.0))
    check_loss_settings("segmentation", Recipe(dice_weight=1.0))


def test_without_validation_pictures_nothing_is_tuned(tuned: tuple[Path, list[Event]], tmp_path: Path):
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    data = DataSettings(source=str(source), task="segmentation", val_fraction=0.0)
    events = list(training.fit(TrainRequest(data=data, weights=str(weights)), MACHINE, tmp_path / "run"))
    plan = plan_in(events)
    assert (plan.finetune.method, plan.recipe.steps, plan.model.upsample) == ("probe", 0, 1)
    with pytest.raises(UsageError, match=r"^No validation pictures tell .* which --finetune.method is for\. Give some"):
        changes = {"finetune.method": "full"}
        list(
            training.fit(TrainRequest(data=data, weights=str(weights), overrides=changes), MACHINE, tmp_path / "other")
        )
    with pytest.raises(UsageError, match=r"which --model.queries is for\. Give some"):
        request = TrainRequest(
            data=data, weights=str(weights), overrides={"model.queries": "4", "model.query_blocks": "2"}
        )
        list(training.fit(request, MACHINE, tmp_path / "other"))


def draw_grey(root: Path, n: int) -> Path:
    """Grey pictures of 32 x 32 pixels with a bright square, which is the mask."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for seed in range(n):
        generator = np.random.default_rng(seed)
        mask = np.zeros((32, 32), np.uint8)
        top, left = generator.integers(2, 16, 2)
        mask[top : top + 12, left : left + 12] = 1
        picture = 90 + 60 * mask + generator.normal(0, 12, (32, 32))
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(root / "images" / f"{seed}.png")
        Image.fromarray(mask).save(root / "masks" / f"{seed}.png")
    return root


@pytest.mark.wide
def test_small_grey_pictures_are_learnt_from_scratch(tmp_path: Path):
    source = draw_grey(tmp_path / "grey", 24)
    events = fit(tmp_path / "run", source, "none", steps=40, overrides={"recipe.evaluate_every": "40"})
    plan = plan_in(events)
    assert (plan.model.pool, plan.model.patch, plan.model.upsample) == ("patches", (2, 2), 1)
    assert plan.model.channels == 1 and not plan.recipe.mixup and plan.decisions.conformal_alpha == 0.1
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    assert isinstance(end.metrics, SegmentationMetrics) and end.metrics.mean_iou is not None
    assert end.metrics.mean_iou > 0.7


# -- Minutes


class SlowFit:
    """A simulated clock: every look takes 0.01 s, and a fit of the head `seconds` for all patches, six times what is
    measured before the run and half as many once features are there.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 1.2) -> None:
        self.now, self.fits = 50.0, list[int]()
        fit_head = patch_head.fit_patch_head
        monkeypatch.setattr(time_budget, "time", self)
        monkeypatch.setattr(throughput, "measure_throughput", lambda *_: Throughput((ONE_STAGE,)))
        monkeypatch.setattr(finetune_planner, "measure_feature_seconds", lambda *_: 0.01)
        monkeypatch.setattr(finetune_planner, "measure_fit_pace", lambda *_: self.pace(seconds / 6))
        monkeypatch.setattr(patch_head, "measure_fit_pace", lambda *_: self.pace(seconds / 4))
        monkeypatch.setattr(features, "measure_slowdown", lambda *_: 2.0)

        def fit_slowly(train: PatchSet, valid: PatchSet, parts: Any, most: int, seed: int) -> Any:
            self.fits.append(most)
            self.now += seconds * (most or PATCHES) / PATCHES
            return fit_head(train, valid, parts, most, seed)

        monkeypatch.setattr(patch_head, "fit_patch_head", fit_slowly)

    def pace(self, seconds: float) -> FitPace:
        return FitPace(((32, 0.0, seconds / 2 / PATCHES), (64, 0.0, seconds / 2 / PATCHES)))

    def perf_counter(self) -> float:
        self.now += 0.01
        return self.now


ONE_STAGE = ProgressiveStage(0.0, 1.0), 0.05
PATCHES = 14 * 64
"""Of the training pictures of `tuned`."""


def test_a_fit_that_takes_longer_than_was_measured_costs_steps_and_no_minutes(
    tuned: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    clock = SlowFit(monkeypatch)
    events = fit(tmp_path / "run", source, weights, minutes=4 / 60)
    plan = plan_in(events)
    assert clock.fits == [0] and plan.model.input_grid.patches == 64  # of 14 training pictures
    assert plan.recipe.steps == round((4 - 0.2 - 16 * 0.01 - 3 * 2 * 0.01) / 0.05)
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    assert end.seconds == pytest.approx(4, rel=0.05)
    followed = RunFolder(tmp_path / "run").read_plan().recipe
    assert followed.steps < plan.recipe.steps and followed.steps_history[0][0] == 0


def test_a_slow_machine_fits_the_head_to_fewer_patches_and_keeps_the_minutes(
    tuned: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A fit to all of them would take twice the minutes, and a fit that takes twice as long as measured keeps them."""
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    clock = SlowFit(monkeypatch, 8.0)
    changes = {"finetune.method": "probe"}
    events = fit(tmp_path / "run", source, weights, minutes=4 / 60, overrides=changes)
    (most,) = clock.fits
    assert most == pytest.approx(PATCHES / 2, rel=0.05)
    assert f"Linear heads on {most} of {PATCHES} patches" in notes(events)
    (end,) = (event for event in events if isinstance(event, FinishEvent))
    assert end.seconds == pytest.approx(4, rel=0.05)
    folder = RunFolder(tmp_path / "run")
    assert plan_in(events).finetune.head_patches == 0 and folder.read_plan().finetune.head_patches == most
    why = folder.read_reasons()["finetune.head_patches"]
    assert why == f"of {PATCHES} what a fit of 2 s takes at the pace measured after the features"
    list(training.fit_plan(folder.read_plan(), tmp_path / "again"))
    ours, theirs = ((one / "start.safetensors", one / "predictions" / "test.csv") for one in (
        tmp_path / "run", tmp_path / "again"
    ))  # fmt: skip
    for name, tensor in load_tensors(ours[0]).items():
        assert torch.equal(tensor, load_tensors(theirs[0])[name])
    assert ours[1].read_bytes() == theirs[1].read_bytes()


class SlowMachine:
    """A simulated clock that passes with the work alone: seconds of a picture's answers, and of a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each: float, step: float) -> None:
        self.now, self.pictures, self.steps = 50.0, list[int](), 0
        answer = run_inference

        def answer_slowly(model: Any, images: Any, rows: np.ndarray, *rest: Any) -> Any:
            self.pictures.append(len(rows))
            self.now += each * len(rows)
            return answer(model, images, rows, *rest)

        def step_slowly(*_: object) -> Iterator[None]:
            while True:
                self.now += step
                self.steps += 1
                yield

        for module in (finetune_planner, cost_estimate):
            monkeypatch.setattr(module, "run_inference", answer_slowly)
        monkeypatch.setattr(throughput, "_make_trial_steps", step_slowly)
        for module in (context, finetune_planner, cost_estimate, throughput):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("each", "minutes", "pictures", "steps"),
    [
        (0.01, 1.0, [1, 1, 4, 14, 1, 14, 14], 5),  # 14 training pictures
        (1.0, 2.0, [1, 1, 4, 1], 0),
        (6.0, 1.0, [1, 1], 0),
        (6.0, 25.0, [1, 1, 4, 1], 1),
    ],
)
def test_what_is_measured_before_the_first_step_is_a_part_of_the_minutes(
    each: float, minutes: float, pictures: list[int], steps: int,
    tuned: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """A step of four pictures in which one of three blocks is frozen is as slow as 9.3 answers."""
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    machine = SlowMachine(monkeypatch, each, 8 * each)
    request = TrainRequest(
        data=DataSettings(source=str(source), task="segmentation"), weights=str(weights), minutes=minutes
    )
    events = list(training.fit(request, MACHINE, tmp_path / "run", True))
    assert (machine.pictures, machine.steps) == (pictures, steps)
    plan, reasons = plan_in(events), next(event.reasons for event in events if isinstance(event, PlanEvent))
    assert machine.now - 50 <= 0.1 * 60 * minutes + max(7, 2 * each)
    assert (plan.finetune.method == "full") == (60 * minutes > 100 * each)
    if each == 1:
        assert reasons["recipe.steps"].endswith("9.333 s a step by the pace of features: too slow here to try one")


def test_the_slowdown_is_the_time_of_work_over_that_of_its_processors():
    plan = Plan(compute=ComputeSettings(threads=2, device="cpu"))
    assert features.measure_slowdown(plan, 10.0, 20.0) == features.measure_slowdown(plan, 10.0, 21.0) == 1
    assert features.measure_slowdown(plan, 36.0, 12.0) == 6
    on_gpu = dataclasses.replace(plan, compute=ComputeSettings(threads=2, device="cuda"))
    assert features.measure_slowdown(on_gpu, 36.0, 12.0) == 1


@pytest.mark.wide
def test_where_features_take_too_long_a_part_of_the_pictures_teaches(
    tuned: tuple[Path, list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, weights = tuned[0].parent / "scenes", tuned[0].parent / "theirs"
    SlowFit(monkeypatch)
    monkeypatch.setattr(finetune_planner, "measure_feature_seconds", lambda *_: 0.15)
    events = fit(tmp_path / "run", source, weights, minutes=4 / 60, overrides={"finetune.method": "probe"})
    assert plan_in(events).finetune.head_fraction == 0.83
    why = RunFolder(tmp_path / "run").read_reasons()["finetune.head_fraction"]
    assert why == "features of 16 pictures would take 2 s of 4"
    assert "The head is fitted to 12 of 14 train pictures, drawn by chance: finetune.head_fraction 0.83." in notes(
        events
    )
    assert (end := next(event for event in events if isinstance(event, FinishEvent))) and end.seconds < 4
    with pytest.raises(UsageError, match=r"head_fraction must lie in 0 < fraction <= 1\. Got 0"):
        fit(tmp_path / "other", source, weights, overrides={"finetune.head_fraction": "0"})


# -- Tiles


@pytest.mark.wide
def test_large_pictures_are_read_in_tiles_that_share_a_grid(tmp_path: Path):
    source = draw_scenes(tmp_path / "scenes", 6, (80, 96))
    weights = save_weights(tmp_path / "theirs", dataclasses.replace(SHAPE, image_size=(32, 32)))
    events = fit(tmp_path / "run", source, weights, overrides={"finetune.method": "probe"})
    plan = plan_in(events)
    assert plan.model.tiles != (1, 1) and plan.image.size == plan.model.input_size == (88, 88)
    assert plan.model.tile_overlap == 1
    predictor = Predictor.open(tmp_path / "run")
    answer = predictor.predict([source / "images" / "0.png"])
    assert isinstance(answer, RegressionPredictions) and answer.masks is not None
    assert answer.masks.shape == (1, 88, 88) and answer.columns == CLASSES
    metrics = evaluate_model(predictor, load_held_out(tmp_path / "run", None)).metrics
    assert isinstance(metrics, SegmentationMetrics) and metrics.mean_iou is not None and metrics.mean_iou > 0.5


@pytest.mark.wide
def test_tiles_are_tuned_too(tmp_path: Path):
    source = draw_scenes(tmp_path / "scenes", 14, (80, 80))
    weights = save_weights(tmp_path / "theirs")
    changes = {"finetune.method": "full", "recipe.batch_size": "2", "model.tiles": "2,2", "model.tile_overlap": "2"}
    plan = plan_in(fit(tmp_path / "run", source, weights, steps=2, overrides=changes))
    assert plan.model.input_size == (56, 56) and plan.recipe.steps == 2
    assert load_bundle(tmp_path / "run" / "model").model.config.tiles == (2, 2)
