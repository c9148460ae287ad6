"""The probe becomes the head exactly; what was tried and what was chosen; where checkpoints are looked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.checkpoints import bundle_weights
from vitrail.data.settings import DataSettings
from vitrail.errors import UsageError
from vitrail.evaluate.inference import FeatureExtractor
from vitrail.evaluate.probe import LinearProbe
from vitrail.files import hub
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.runtime import Runtime
from vitrail.spec import ImageSpec
from vitrail.train.finetune import finetune_planner, linear_probe, weights
from vitrail.train.plan import FinetuneSettings, Recipe
from vitrail.train.request import DatasetFingerprint, TrainRequest

BOTH = ViTConfig(
    image_size=(8, 8), patch=(4, 4), channels=1, width=16, depth=2, heads=2, mlp_width=32, outputs=3, pool="class+mean"
)
PHOTOS = DatasetFingerprint(
    name="cells", num_images=2000, num_classes=2, height=300, width=300, channels=1, low=0.0, high=255.0
)
CPU = Runtime(device="cpu", precision="bfloat16", threads=2, num_workers=2, compile=False, reasons={})
WISHES = TrainRequest(data=DataSettings(), minutes=10.0)


@pytest.mark.parametrize("part", ["class", "mean", "class+mean", "class of 2 blocks", "class+mean of 2 blocks"])
def test_the_head_answers_as_the_probe_to_1e_5(part):
    model = create_model(dataclasses.replace(BOTH, pool_blocks=2)).eval()
    columns = weights.list_feature_columns(model.config)[part]
    generator = np.random.default_rng(0)
    width = len(columns)
    linear = LinearProbe(np.float32(generator.normal(size=(3, width))), np.float32(generator.normal(size=3)), 1.0)
    weights.set_head(model, linear, columns)
    images = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        features = FeatureExtractor(model)(images).numpy()[:, columns]
        np.testing.assert_allclose(model(images).numpy(), linear.predict_outputs(features), atol=1e-5)


def test_a_probe_reads_the_blocks_and_kinds_that_its_name_says():
    model = create_model(dataclasses.replace(BOTH, pool_blocks=2)).eval()
    images = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        kept = model.features(images, keep=("blocks.0", "blocks.1", "pooled", "tokens"))
        lower, upper = (model.encoder.norm(kept[f"blocks.{i}"]) for i in range(2))
        torch.testing.assert_close(FeatureExtractor(model)(images), kept["pooled"])
    assert torch.equal(kept["tokens"], upper)
    by_hand = {
        "class": upper[:, 0],
        "mean": upper[:, 1:].mean(1),
        "class of 2 blocks": torch.cat([lower[:, 0], upper[:, 0]], 1),
        "class+mean": torch.cat([upper[:, 0], upper[:, 1:].mean(1)], 1),
    }
    parts = weights.list_feature_columns(model.config)
    for name, exact in by_hand.items():
        torch.testing.assert_close(kept["pooled"][:, torch.from_numpy(parts[name])], exact)
    assert sorted(parts["class+mean of 2 blocks"]) == list(range(64))


def test_the_probe_with_the_least_loss_on_the_validation_pictures_is_taken():
    generator = np.random.default_rng(0)
    features = np.float32(generator.normal(size=(400, 8)))
    targets = (features[:, 5] + features[:, 6] > 0).astype(np.int64)  # only the second half knows
    train, valid = (
        linear_probe.FeatureSet(features[:200], targets[:200]),
        linear_probe.FeatureSet(features[200:], targets[200:]),
    )
    parts = {"class": np.arange(4), "mean": np.arange(4, 8)}
    found = linear_probe.fit_probes(train, valid, "classification", 2, parts, 0)
    assert found.columns.tolist() == [4, 5, 6, 7]
    (chosen,) = [row for row in found.candidates if row.chosen]
    assert chosen.name.startswith("linear mean, C ") and chosen.figure > 0.95
    assert chosen.loss == min(row.loss for row in found.candidates if row.name.startswith("linear"))
    assert [row.name for row in found.candidates[:3]] == ["10 nearest", "20 nearest", "100 nearest"]
    shown = linear_probe.format_candidates(found.candidates)
    assert len(shown) == 5 and sum("<- chosen" in line for line in shown) == 1


def test_without_validation_pictures_a_usual_probe_is_taken():
    features = np.float32(np.random.default_rng(0).normal(size=(40, 4)))
    train = linear_probe.FeatureSet(features, (features[:, 0] > 0).astype(np.int64))
    nothing = linear_probe.FeatureSet(features[:0], train.targets[:0])
    found = linear_probe.fit_probes(
        train,
        nothing,
        "classification",
        2,
        {"class": np.arange(2), "all": np.arange(4), "all of 4 blocks": np.arange(4)},
        0,
    )
    assert (found.best.c, found.columns.tolist(), found.candidates) == (linear_probe.DEFAULT_C, [0, 1, 2, 3], ())


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_unknown_cells_are_no_obstacle(task):
    generator = np.random.default_rng(0)
    features = np.float32(generator.normal(size=(90, 4)))
    targets = (features[:, :2] > 0).astype(np.float32)
    targets[generator.random(targets.shape) < 0.3] = np.nan
    seen = linear_probe.FeatureSet(features, targets)
    found = linear_probe.fit_probes(seen, seen, task, 2, {"mean": np.arange(4)}, 0)
    assert any(row.chosen and row.figure > 0.3 for row in found.candidates)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    shape = dataclasses.replace(BOTH, pool="class", channels=3, image_size=(32, 32))
    spec = ImageSpec(height=32, width=32, mean=(0.1, 0.2, 0.3), fit="crop", crop_fraction=0.875)
    bundle_weights.save_bundle(tmp_path / "kept", create_model(shape, 5), spec, "classification", ("a", "b", "c"), {})
    return tmp_path / "kept"


def test_shape_and_colours_come_from_the_checkpoint_and_the_whole_picture_is_kept(checkpoint):
    plan, reasons = finetune_planner.draft_finetune_plan(PHOTOS, WISHES, CPU, weights.open_checkpoint(str(checkpoint)))
    changed = {name for name, value in vars(plan.recipe).items() if value != vars(Recipe())[name]} - {"tta_flip"}
    assert {f"recipe.{name}" for name in changed} <= reasons.keys(), "a rule explains what it chose"
    assert (plan.model.width, plan.model.depth, plan.model.outputs, plan.model.channels) == (16, 2, 2, 3)
    assert plan.model.pool == "class+mean" and plan.image.mean == (0.1, 0.2, 0.3)
    assert (plan.image.fit, plan.image.crop_fraction, plan.image.size) == ("squash", 1.0, plan.model.image_size)
    assert plan.finetune.weights == str(checkpoint) and len(plan.finetune.weights_sha256) == 16
    assert "crop" in reasons["image.fit"]
    assert (plan.model.pool_every, reasons["model.pool_every"]) == (1, "2 blocks, one after another")


def test_a_checkpoint_of_another_number_of_channels_is_adapted_or_refused(checkpoint):
    opened = weights.open_checkpoint(str(checkpoint))
    five = dataclasses.replace(PHOTOS, channels=5)
    with pytest.raises(UsageError, match=r"of 3 channels, and those of cells have 5\..*--finetune.channels_policy sum"):
        finetune_planner.draft_finetune_plan(five, WISHES, CPU, opened)
    wishes = dataclasses.replace(WISHES, overrides={"finetune.channels_policy": "tile"})
    plan, _ = finetune_planner.draft_finetune_plan(five, wishes, CPU, opened)
    model = weights.build_start_model(opened, plan.model, plan.finetune)
    assert model.tokens.patches.weight.shape[1] == 5


def test_what_is_taken_from_the_file_is_the_file_s_and_the_head_is_new(checkpoint):
    opened = weights.open_checkpoint(str(checkpoint))
    plan, _ = finetune_planner.draft_finetune_plan(PHOTOS, WISHES, CPU, opened)
    model, theirs = (
        weights.build_start_model(opened, plan.model, plan.finetune),
        bundle_weights.load_bundle(checkpoint).model.state_dict(),
    )
    for name, tensor in model.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(tensor, theirs[name]), name
    assert not model.head.linear.weight.any()


def test_another_file_than_the_plan_s_and_another_shape_than_the_file_s_are_refused(checkpoint):
    opened = weights.open_checkpoint(str(checkpoint))
    plan, _ = finetune_planner.draft_finetune_plan(PHOTOS, WISHES, CPU, opened)
    with pytest.raises(UsageError, match=r"is not the file that the plan was made with.*expected 0123"):
        weights.build_start_model(opened, plan.model, dataclasses.replace(plan.finetune, weights_sha256="0123"))
    with pytest.raises(UsageError, match=r"model.depth comes from the checkpoint, 2, and cannot be 1"):
        weights.build_start_model(opened, dataclasses.replace(plan.model, depth=1), plan.finetune)


def test_nothing_by_that_name_is_one_sentence():
    with pytest.raises(UsageError, match=r"There are no weights at nowhere.pt\. Give --weights"):
        weights.open_checkpoint("nowhere.pt")


def test_auto_takes_what_is_here_and_would_help_and_says_what_would(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv(weights.WEIGHTS_FOLDER_VARIABLE, str(tmp_path / "weights"))
    monkeypatch.setattr(hub, "find_cached_model", lambda name: None)
    (advice,) = finetune_planner.choose_checkpoint(PHOTOS, WISHES, CPU).notes
    assert "facebook/dinov2-small (88 MB, Apache-2.0)" in advice and "--weights dinov2-small" in advice
    (tmp_path / "weights").mkdir()
    checkpoint.rename(tmp_path / "weights" / "dinov2-small")
    found = finetune_planner.choose_checkpoint(PHOTOS, WISHES, CPU)
    assert found.checkpoint is not None and found.checkpoint.config.width == 16
    small = dataclasses.replace(PHOTOS, height=28, width=28)
    for fingerprint, wishes in (
        (small, WISHES),
        (dataclasses.replace(PHOTOS, channels=5), WISHES),
        (dataclasses.replace(PHOTOS, num_images=10**12), WISHES),
        (PHOTOS, dataclasses.replace(WISHES, pretrain=True)),
        (PHOTOS, dataclasses.replace(WISHES, overrides={"distill.teacher": "x", "distill.kind": "features"})),
        (PHOTOS, dataclasses.replace(WISHES, model="vit_tiny_patch16_224")),
        (PHOTOS, dataclasses.replace(WISHES, weights="none")),
    ):
        assert finetune_planner.choose_checkpoint(fingerprint, wishes, CPU).checkpoint is None


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"image_size": (66, 66)}, "66 is not a multiple"),
        ({"channels": 1}, "trained on pictures of 3 channels, and 1 were asked for"),
        ({"overrides": {"model.depth": "3"}}, "model.depth comes from the checkpoint"),
        ({"overrides": {"recipe.muon_momentum": "0.9"}}, "--recipe.muon_momentum has no effect here without"),
    ],
)
def test_a_checkpoint_that_nobody_has_named_gives_way_to_what_was_asked_for(
    asked, why, checkpoint, monkeypatch, tmp_path
):
    (tmp_path / "weights").mkdir()
    checkpoint.rename(tmp_path / "weights" / "dinov2-small")
    monkeypatch.setenv(weights.WEIGHTS_FOLDER_VARIABLE, str(tmp_path / "weights"))
    wishes = dataclasses.replace(WISHES, **asked)
    plan, reasons, (note,) = finetune_planner.draft_from_request(PHOTOS, wishes, CPU)
    assert plan.finetune.weights == "none" and why in reasons["finetune.weights"]
    assert note == f"From scratch: {reasons['finetune.weights']}" and "dinov2-small is on this machine, but" in note
    with pytest.raises(UsageError, match=why):
        finetune_planner.draft_from_request(
            PHOTOS, dataclasses.replace(wishes, weights=str(tmp_path / "weights" / "dinov2-small")), CPU
        )
    assert finetune_planner.draft_from_request(PHOTOS, WISHES, CPU)[0].finetune.weights.endswith("dinov2-small")


def test_a_probe_weighs_all_pictures_alike_and_says_so(checkpoint):
    uneven, opened = dataclasses.replace(PHOTOS, imbalance_ratio=30.0), weights.open_checkpoint(str(checkpoint))
    plan, reasons = finetune_planner.draft_finetune_plan(uneven, WISHES, CPU, opened)
    assert plan.recipe.class_weights == "root"
    wishes = dataclasses.replace(WISHES, overrides={"finetune.method": "probe"})
    plan, reasons = finetune_planner.draft_finetune_plan(uneven, wishes, CPU, opened)
    assert (plan.recipe.class_weights, plan.recipe.steps) == ("none", 0)
    assert reasons["recipe.class_weights"] == "the probe weighs all pictures alike"


def test_without_minutes_all_blocks_are_tuned_and_the_reason_names_none(checkpoint):
    wishes = dataclasses.replace(WISHES, minutes=None, steps=500)
    plan, reasons = finetune_planner.draft_finetune_plan(PHOTOS, wishes, CPU, weights.open_checkpoint(str(checkpoint)))
    assert (
        plan.finetune.freeze_blocks == 0 and reasons["finetune.freeze_blocks"] == "no minutes to keep to: all are tuned"
    )


@pytest.mark.parametrize("minutes", [0.0001, 60.0])
def test_several_processes_tune_all_blocks_unless_something_else_was_asked_for(minutes, checkpoint):
    opened, wishes = weights.open_checkpoint(str(checkpoint)), dataclasses.replace(WISHES, minutes=minutes)
    alone, _ = finetune_planner.draft_finetune_plan(PHOTOS, wishes, CPU, opened)
    plan, reasons = finetune_planner.draft_finetune_plan(PHOTOS, wishes, CPU, opened, world_size=2)
    few = minutes < 1
    assert (alone.finetune.freeze_blocks, plan.finetune.freeze_blocks) == (1 if few else 0, 0)
    assert reasons["finetune.freeze_blocks"].startswith("2 processes cannot" if few else "the minutes allow")
    wishes = dataclasses.replace(wishes, overrides={"finetune.freeze_blocks": "1"})
    assert (
        finetune_planner.draft_finetune_plan(PHOTOS, wishes, CPU, opened, world_size=2)[0].finetune.freeze_blocks == 1
    ), "agreement.check refuses"


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("full", {"lora_rank": "no adapters", "lora_mlp": "no adapters"}),
        ("lora", {"freeze_blocks": "adapters leave all blocks as they are"}),
        (
            "probe",
            dict.fromkeys(("freeze_blocks", "layer_decay", "lora_rank", "wise_ft_alphas"), "the probe tunes nothing"),
        ),
    ],
)
def test_fields_of_the_start_have_reasons_that_are_true_of_the_method(method, why, checkpoint):
    wishes = dataclasses.replace(WISHES, overrides={"finetune.method": method})
    _, reasons = finetune_planner.draft_finetune_plan(PHOTOS, wishes, CPU, weights.open_checkpoint(str(checkpoint)))
    assert "hash" in reasons["finetune.weights_sha256"] and "number of channels" in reasons["finetune.channels_policy"]
    assert {name: reasons[f"finetune.{name}"] for name in why} == why


def test_a_model_and_a_checkpoint_are_one_too_many(checkpoint):
    opened = weights.open_checkpoint(str(checkpoint))
    with pytest.raises(UsageError, match="--weights brings its own shape"):
        finetune_planner.draft_finetune_plan(
            PHOTOS, dataclasses.replace(WISHES, model="vit_tiny_patch16_224"), CPU, opened
        )


LARGE = weights.StartCheckpoint(
    name="x",
    path=Path("x"),
    config=dataclasses.replace(
        BOTH, width=384, depth=12, heads=6, mlp_width=1536, patch=(14, 14), image_size=(518, 518)
    ),
    spec=ImageSpec(height=518, width=518),
    digest="",
)


def test_the_more_minutes_the_more_pixels_and_the_more_blocks_learn():
    found = dataclasses.replace(PHOTOS, channels=1)
    sizes, frozen = [], []
    for minutes in (3.0, 10.0, 60.0):
        plan, _ = finetune_planner.draft_finetune_plan(found, dataclasses.replace(WISHES, minutes=minutes), CPU, LARGE)
        sizes.append(plan.model.image_size[0])
        frozen.append(plan.finetune.freeze_blocks)
    assert sizes == sorted(sizes) and sizes[0] == 112 and sizes[-1] == 224
    assert frozen[-1] == 0


def test_further_pictures_with_masks_do_not_shrink_all_of_them():
    wishes = dataclasses.replace(WISHES, minutes=2.0)
    sizes, why = [], ""
    for count in (5, 20, 200, 20_000):
        masks = dataclasses.replace(PHOTOS, task="segmentation", height=448, width=448, num_images=count)
        plan, reasons = finetune_planner.draft_finetune_plan(masks, wishes, CPU, LARGE)
        sizes.append(plan.model.image_size[0])
        why = reasons["model.image_size"]
    assert sizes == [sizes[0]] * 4 and sizes[0] > 224
    assert why.endswith("what leaves 2 minutes for about 4 passes over 20 of 20,000 pictures")


@pytest.mark.parametrize(
    ("size", "task", "grid"),
    [
        ((60, 2000), "classification", (3, 85)),
        ((2000, 60), "anomaly", (144, 4)),
        ((60, 2000), "segmentation", (6, 170)),
    ],
)
def test_strips_keep_their_shape_in_as_many_patches_as_a_square(size, task, grid):
    aspect = size[1] / size[0]
    strips = dataclasses.replace(
        PHOTOS, channels=1, height=size[0], width=size[1], aspects=(aspect, aspect), task=task, num_images=300
    )
    plan, reasons = finetune_planner.draft_finetune_plan(strips, WISHES, CPU, LARGE)
    assert plan.model.grid == grid and not plan.model.is_tiled
    assert plan.image.size == plan.model.image_size
    shown = f"all pictures are strips, mostly {size[0]} high, {size[1]} wide, whose shape is kept; of "
    assert reasons["model.image_size"].startswith(shown)
    for wishes in (
        dataclasses.replace(WISHES, overrides={"image.fit": "pad"}), dataclasses.replace(WISHES, image_size=(224, 224)),
    ):  # fmt: skip
        square, _ = finetune_planner.draft_finetune_plan(strips, wishes, CPU, LARGE)
        assert square.model.image_size[0] == square.model.image_size[1]


def test_fields_of_the_start_are_kept_as_they_were_asked_for(checkpoint):
    wishes = dataclasses.replace(WISHES, overrides={"finetune.method": "lora", "finetune.lora_rank": "2"})
    plan, reasons = finetune_planner.draft_finetune_plan(PHOTOS, wishes, CPU, weights.open_checkpoint(str(checkpoint)))
    assert (plan.finetune.method, plan.finetune.lora_rank, reasons["finetune.method"]) == ("lora", 2, "asked for")
    assert plan.finetune.freeze_blocks == 0 and isinstance(plan.finetune, FinetuneSettings)
