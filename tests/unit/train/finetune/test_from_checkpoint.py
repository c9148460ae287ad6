"""Whole trainings from tiny checkpoints of other layouts: tasks, methods, resuming bit for bit, and wrong inputs."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.checkpoints import bundle_weights
from vitrail.checkpoints.save import save_model
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import UsageError
from vitrail.files import safetensors_file
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.runtime import RuntimeSettings
from vitrail.spec import ImageSpec
from vitrail.train import fit as training
from vitrail.train.context import TrainContext
from vitrail.train.events import Event, FinishEvent, Note, PlanEvent
from vitrail.train.finetune import features, finetune_planner, wise_ft
from vitrail.train.finetune.linear_probe import Candidate
from vitrail.train.plan import Plan
from vitrail.train.request import TrainRequest
from vitrail.train.resume import Extension
from vitrail.train.run_folder import RunFolder

pytestmark = pytest.mark.wide

MACHINE = RuntimeSettings(device="cpu", threads=1, precision="float32")
SHAPE = ViTConfig(image_size=(16, 16), patch=(8, 8), width=16, depth=2, heads=2, mlp_width=32, outputs=5)
TARGETS = {
    "classification": np.arange(48) % 2,
    "multilabel": np.where(np.arange(96).reshape(48, 2) % 7 == 0, np.nan, np.arange(48)[:, None] % [2, 3] == 0),
    "regression": np.where(np.arange(48)[:, None] % 9 == 0, np.nan, np.arange(48)[:, None] % 2 * 10.0 + 3),
}


def drawn(task: str = "classification", **fields: object) -> Source:
    """Noise; pictures with odd numbers are brighter at the left."""
    noise = np.random.default_rng(0).integers(0, 90, (48, 16, 16, 3))
    noise[1::2, :, :8] += 60
    targets = TARGETS[task] if task == "classification" else TARGETS[task].astype(np.float32)
    names = {"classification": ("dark", "bright"), "multilabel": ("odd", "third"), "regression": ("light",)}[task]
    source = Source(
        name="drawn", classes=names, images=noise.astype(np.uint8), targets=targets, task=task,
        ids=tuple(f"{row}.png" for row in range(48)),
    )  # fmt: skip
    return dataclasses.replace(source, **fields)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """As timm would write it."""
    spec = ImageSpec(height=16, width=16, mean=(0.4, 0.4, 0.4), std=(0.2, 0.2, 0.2))
    save_model(tmp_path / "theirs", create_model(SHAPE, 3), spec, (), "timm")
    return tmp_path / "theirs"


Fit = Callable[..., list[Event]]


@pytest.fixture
def fit(tmp_path: Path, weights: Path) -> Fit:
    def fitted(source: Source, run: str = "run", dry_run: bool = False, **words: str) -> list[Event]:
        overrides = {name.replace("__", "."): text for name, text in words.items() if "__" in name}
        rest = {name: text for name, text in words.items() if "__" not in name}
        data = DataSettings(val_fraction=0.25)
        wishes = TrainRequest(data=data, **({"steps": 4, "weights": str(weights)} | rest), overrides=overrides)
        return list(training.fit(wishes, MACHINE, tmp_path / run, dry_run, source_object=source))

    return fitted


def tried(run: Path) -> dict[str, list[dict[str, object]]]:
    return json.loads((run / "start.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["multilabel", "classification", "regression"])
def test_every_task_is_probed_tuned_and_chosen_and_never_below_the_probe(task, fit, tmp_path):
    events, run = fit(drawn(task), recipe__tta_flip="false"), tmp_path / "run"
    assert isinstance(events[-1], FinishEvent)
    table = tried(run)
    assert {row["name"] for row in table["frozen"]} >= {"10 nearest", "20 nearest", "100 nearest"}
    assert sum(row["chosen"] for row in table["frozen"]) == sum(row["chosen"] for row in table["tuned"]) == 1
    (best,) = [row for row in table["tuned"] if row["chosen"]]
    assert table["tuned"][0]["name"] == "the start, frozen" and len(table["tuned"]) == 5
    assert best["figure"] >= table["tuned"][0]["figure"]
    (probe,) = [row for row in table["frozen"] if row["chosen"]]
    assert probe["loss"] == pytest.approx(table["tuned"][0]["loss"], abs=2e-5)
    report = json.loads((run / "report.json").read_text())
    assert report["start"] == str(tmp_path / "theirs") and "(chosen)" in report["notes"][-1]
    assert report["images_seen"] > 36, "those of the features are counted too"
    kept = bundle_weights.load_bundle(run / "model")
    assert kept.model.config.pool == "class+mean" and kept.task == task and kept.spec.mean == (0.4, 0.4, 0.4)


def test_start_and_tuned_weights_are_compared_by_the_answers_that_the_model_will_give(fit, tmp_path):
    fit(drawn(), recipe__tta_flip="true", recipe__lr="0.01")
    (best,) = [row for row in tried(tmp_path / "run")["tuned"] if row["chosen"]]
    judged = json.loads((tmp_path / "run" / "metrics-val.json").read_text())
    assert best["figure"] == pytest.approx(judged["accuracy"], abs=1e-6)
    assert best["loss"] == pytest.approx(judged["log_loss"], abs=1e-4)


def test_a_probe_alone_is_the_features_and_their_head(fit, tmp_path):
    fit(drawn(), steps=None, finetune__method="probe")
    run = tmp_path / "run"
    assert RunFolder(run).read_plan().recipe.steps == 0 and not tried(run)["tuned"]
    start, kept = (
        safetensors_file.load_tensors(run / "start.safetensors"),
        bundle_weights.load_bundle(run / "model").model.state_dict(),
    )
    assert all(torch.equal(start[name], kept[name]) for name in kept)
    assert start["head.linear.weight"].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"finetune__method": "lora", "finetune__lora_mlp": "true"}, {"finetune__freeze_blocks": "1"}]
)
def test_what_is_held_still_stays_and_the_result_is_a_plain_model(more, fit, tmp_path):
    fit(drawn(), finetune__wise_ft_alphas="1.0", recipe__lr="0.01", recipe__ema_decay="0.5", **more)
    run = tmp_path / "run"
    assert (run / "model" / "model.safetensors").is_file()
    kept = bundle_weights.load_bundle(run / "model").model.state_dict()
    assert kept.keys() == create_model(SHAPE, 0).state_dict().keys()
    start = safetensors_file.load_tensors(run / "start.safetensors")
    for name in ("tokens.cls", "tokens.patches.weight", "encoder.blocks.0.norm1.weight"):
        assert torch.equal(kept[name], start[name])


def test_a_run_goes_on_bit_for_bit_whether_it_was_killed_among_the_features_or_the_steps(fit, tmp_path, monkeypatch):
    fit(drawn(), run="whole", recipe__lr="0.01")
    whole = (tmp_path / "whole" / "model" / "model.safetensors").read_bytes()

    def killed(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(features, "fit_probes", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(drawn(), recipe__lr="0.01")
    monkeypatch.undo()
    assert not (tmp_path / "run" / "start.safetensors").exists()
    monkeypatch.setattr(training, "run_trainer", killed)
    with pytest.raises(KeyboardInterrupt):
        list(training.resume_run(tmp_path / "run", drawn()))
    monkeypatch.undo()
    assert (tmp_path / "run" / "start.safetensors").is_file()
    (tmp_path / "theirs").rename(tmp_path / "gone")  # not needed any more
    assert isinstance(list(training.resume_run(tmp_path / "run", drawn()))[-1], FinishEvent)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == whole


def test_a_plan_finds_its_weights_again(fit, tmp_path):
    fit(drawn(), run="first")
    plan = RunFolder(tmp_path / "first").read_plan()
    list(training.fit_plan(plan, tmp_path / "again", source_object=drawn()))
    files = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("first", "again")]
    assert files[0] == files[1]
    save_model(tmp_path / "other", create_model(SHAPE, 4), ImageSpec(height=16, width=16), (), "timm")
    moved = dataclasses.replace(plan, finetune=dataclasses.replace(plan.finetune, weights=str(tmp_path / "other")))
    with pytest.raises(UsageError, match="is not the file that the plan was made with"):
        list(training.fit_plan(moved, tmp_path / "third", source_object=drawn()))


def test_a_dry_run_of_a_written_plan_counts_its_features_and_makes_nothing(fit, tmp_path, monkeypatch):
    fit(drawn())
    plan = RunFolder(tmp_path / "run").read_plan()
    monkeypatch.setattr(finetune_planner, "measure_feature_seconds", lambda *_: 100.0)
    (planned,) = [
        e for e in training.fit_plan(plan, tmp_path / "dry", drawn(), dry_run=True) if isinstance(e, PlanEvent)
    ]
    splits = [row["split"] for row in csv.DictReader((tmp_path / "run" / "splits.csv").read_text().splitlines())]
    looked = len(splits) - splits.count("test")
    assert planned.plan == plan and 100 * looked < planned.cost.training < 100 * 2 * looked + 100
    assert not (tmp_path / "dry").exists()


def test_an_extended_run_goes_on_from_its_tuned_weights_and_is_compared_with_the_same_start(fit, tmp_path):
    fit(drawn(), finetune__wise_ft_alphas="1.0", recipe__lr="0.01")
    run = tmp_path / "run"
    start, first = ((run / name).read_bytes() for name in ("start.safetensors", "metrics.jsonl"))
    frozen = tried(run)["frozen"]
    assert isinstance(list(training.resume_run(run, drawn(), Extension(steps=3)))[-1], FinishEvent)
    plan = RunFolder(run).read_plan()
    assert (plan.recipe.steps, plan.recipe.extended_at) == (7, 4)
    assert (run / "start.safetensors").read_bytes() == start and (run / "metrics.jsonl").read_bytes().startswith(first)
    assert tried(run)["frozen"] == frozen
    assert [row["name"] for row in tried(run)["tuned"]] == ["the start, frozen", "tuned"]


def test_what_the_features_and_the_probe_have_used_cannot_be_edited_before_the_first_checkpoint(
    fit, tmp_path, monkeypatch
):
    def take_no_steps(context: TrainContext, *words: object) -> Generator[Event, None, Plan]:
        yield from ()
        return context.plan

    monkeypatch.setattr(training, "run_trainer", take_no_steps)
    monkeypatch.setattr(training, "finish_run", lambda *words: iter([]))
    fit(drawn())
    monkeypatch.undo()
    plan = tmp_path / "run" / "plan.toml"
    text = plan.read_text()
    for old, new, name in (
        ('\nweights = "', '\nweights = "nowhere', r"finetune\.weights"),
        ("wise_ft_alphas = [0.25, ", "wise_ft_alphas = [", r"finetune\.wise_ft_alphas"),
        ("mean = [0.4, ", "mean = [0.3, ", r"image\.mean"),
    ):
        assert text.count(old) == 1, old
        plan.write_text(text.replace(old, new))
        with pytest.raises(UsageError, match=rf"{name} .* -> .*it has had its effect already"):
            list(training.resume_run(tmp_path / "run", drawn()))
    plan.write_text(text.replace("\ngrad_clip_norm = 1.0", "\ngrad_clip_norm = 2.0"))
    told = [event.text for event in training.resume_run(tmp_path / "run", drawn()) if isinstance(event, Note)]
    assert any(
        text.startswith("Changed since the run was saved: recipe.grad_clip_norm 1.0 -> 2.0.") for text in told
    ), told


def test_of_many_validation_pictures_the_best_of_a_part_is_kept_only_if_it_is_better_on_all(fit, tmp_path, monkeypatch):
    def said(name: str, task: str, outputs: np.ndarray, targets: np.ndarray) -> Candidate:
        right = name.startswith("the start") is (len(outputs) > 4)
        return Candidate(name=name, figure_name="accuracy", figure=float(right), loss=0.0)

    monkeypatch.setattr(wise_ft, "MAX_COMPARED_IMAGES", 4)
    fit(drawn(), run="measured", recipe__lr="0.01")
    rows = tried(tmp_path / "measured")["tuned"]
    (best,) = [row for row in rows if row["chosen"]]
    val = (tmp_path / "measured" / "splits.csv").read_text().count(",val")
    assert val > 4 and best["figure"] >= rows[0]["figure"]
    judged = json.loads((tmp_path / "measured" / "metrics-val.json").read_text())
    if best is not rows[0]:
        assert rows[0]["name"] == f"the start, frozen, on all {val}" and best["name"].endswith(f", on all {val}")
        assert best["figure"] == pytest.approx(judged["accuracy"], abs=1e-6)
    monkeypatch.setattr(wise_ft, "evaluate_candidate", said)
    fit(drawn(), recipe__lr="0.01")
    rows = tried(tmp_path / "run")["tuned"]
    assert [row["figure"] for row in rows] == [1.0, 0.0, 1.0, 1.0, 1.0], "the first and the best of a part, on all"
    assert rows[0]["chosen"] and rows[1]["name"] == f"0.25 of the way to tuned, on all {val}"
    start = safetensors_file.load_tensors(tmp_path / "run" / "start.safetensors")
    kept = bundle_weights.load_bundle(tmp_path / "run" / "model").model.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in start.items())


def test_a_frozen_probe_has_no_steps_to_be_extended(fit, tmp_path):
    fit(drawn(), steps=None, finetune__method="probe")
    with pytest.raises(UsageError, match="frozen features alone"):
        list(training.resume_run(tmp_path / "run", drawn(), Extension(steps=3)))
    assert RunFolder(tmp_path / "run").read_plan().recipe.steps == 0


def test_of_some_minutes_the_features_take_their_part_and_the_steps_the_rest(fit):
    (planned,) = [
        event for event in fit(drawn(), dry_run=True, steps=None, minutes=0.2) if isinstance(event, PlanEvent)
    ]
    assert "less" in planned.reasons["recipe.steps"] and "for features" in planned.reasons["recipe.steps"]
    assert planned.plan.recipe.steps >= 10 and planned.plan.recipe.evaluate_every
    (planned,) = [
        event for event in fit(drawn(), dry_run=True, steps=None, minutes=0.03) if isinstance(event, PlanEvent)
    ]
    assert (planned.plan.finetune.method, planned.plan.recipe.steps) == ("probe", 0)
    assert "too little is left to tune" in planned.reasons["finetune.method"]
    assert planned.reasons["finetune.layer_decay"] == "the probe tunes nothing"
    with pytest.raises(UsageError, match=r"too little is left to tune, so no step asks the teacher"):
        fit(drawn(), dry_run=True, steps=None, minutes=0.03, distill__teacher="cnn")
    for name, text in (("finetune__method", "lora"), ("finetune__freeze_blocks", "1"), ("recipe__batch_size", "8")):
        dotted = name.replace("__", r"\.")
        with pytest.raises(UsageError, match=rf"too little is left to tune, which --{dotted} is for\. Give more"):
            fit(drawn(), dry_run=True, steps=None, minutes=0.03, **{name: text})
    fit(drawn(), dry_run=True, steps=None, minutes=0.03, finetune__method="probe", recipe__flip="false")


@pytest.mark.parametrize(
    ("words", "steps"), [({"recipe__batch_size": "8"}, 7), ({"recipe__repeated_augmentation": "2"}, 13)]
)
def test_epochs_are_counted_by_the_batch_and_the_repeats_that_were_asked_for(words, steps, fit):
    (planned,) = [e for e in fit(drawn(), dry_run=True, steps=None, epochs=2.0, **words) if isinstance(e, PlanEvent)]
    assert planned.plan.recipe.steps == steps and planned.plan.minutes == 0


def test_a_teacher_that_is_trained_first_has_its_share_here_too(fit):
    (planned,) = [e for e in fit(drawn(), dry_run=True, steps=20, distill__teacher="cnn") if isinstance(e, PlanEvent)]
    assert planned.plan.distill.steps == 4


def test_without_validation_pictures_the_tuned_weights_are_kept_and_that_is_said(fit, tmp_path):
    splits = {"train": np.arange(40), "val": np.zeros(0, np.int64), "test": np.arange(40, 48)}
    events = fit(drawn(splits=splits))
    assert any("kept without a comparison" in event.text for event in events if isinstance(event, Note))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"weights": "nowhere.safetensors"}, r"There are no weights at nowhere\.safetensors\. Give --weights"),
        (
            {"weights": "none", "finetune__lora_rank": "3"},
            r"Fields of \[finetune\] only have a meaning with a checkpoint",
        ),
        ({"model": "vit_mu_patch8_16"}, r"--weights brings its own shape, so --model"),
        ({"model__depth": "1"}, r"model\.depth comes from the checkpoint, 2, and cannot be 1"),
        ({"channels": 4}, r"trained on pictures of 3 channels, and 4 were asked for.*--finetune\.channels_policy"),
        ({"finetune__freeze_blocks": "2"}, r"finetune\.freeze_blocks must leave a block to tune: the checkpoint has 2"),
        ({"steps": None, "recipe__steps": "0"}, r"recipe\.steps must be at least 1"),
        ({"recipe__steps": "7"}, r"Give one budget\. Got --steps and --recipe\.steps"),
        ({"steps": None, "minutes": 1.0, "recipe__steps": "7"}, r"Got --minutes and --recipe\.steps"),
        ({"finetune__method": "probe"}, r"finetune\.method probe tunes nothing, so 4 steps cannot be made"),
        ({"steps": None, "finetune__method": "probe", "recipe__steps": "5"}, r"so 5 steps cannot be made"),
        (
            {"steps": None, "finetune__method": "probe", "recipe__mixup": "0.2"},
            r"makes no step, which --recipe\.mixup is",
        ),
        (
            {"steps": None, "finetune__method": "probe", "model__drop_path": "0.2"},
            r"no step, which --model\.drop_path is",
        ),
        ({"model__init": "mimetic"}, r"--model\.init has no effect on weights that come from a checkpoint"),
        (
            {"finetune__wise_ft_alphas": ""},
            r"one or more in 0 < alpha <= 1\. Got none, with which the training would be for noth",
        ),
        (
            {"recipe__patch_keep_rate": "0.5"},
            r"--recipe\.patch_keep_rate has no effect here without a --recipe\.patch_keep_until",
        ),
        ({"steps": None, "finetune__method": "probe", "distill__teacher": "cnn"}, r"no steps in which a teacher could"),
        (
            {"distill__teacher": "x", "distill__kind": "features"},
            r"--distill\.kind features teaches a model that begins",
        ),
        ({"model__head": "tanh"}, r"model\.head is linear in a run from a checkpoint.* Got tanh"),
        ({"model__head_bias": "false"}, r"model\.head_bias is True in a run from a checkpoint"),
    ],
)
def test_wrong_inputs_are_one_sentence_and_leave_no_folder(words, message, fit, tmp_path):
    with pytest.raises(UsageError, match=message):
        fit(drawn(), **words)
    assert not (tmp_path / "run").exists()


def test_a_file_without_a_trunk_is_refused(fit, tmp_path):
    safetensors_file.save_tensors(
        tmp_path / "head.safetensors", {"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}, {}
    )
    with pytest.raises(UsageError, match=r"head\.safetensors: It is no plain Vision Transformer"):
        fit(drawn(), weights=str(tmp_path / "head.safetensors"))


def test_what_was_asked_of_the_machine_is_kept_in_the_plan_here_too(tmp_path, weights):
    wishes = TrainRequest(data=DataSettings(val_fraction=0.25), steps=4, weights=str(weights))
    patient = dataclasses.replace(MACHINE, timeout=77.0)
    events = list(training.fit(wishes, patient, tmp_path / "run", True, source_object=drawn()))
    assert next(event.plan for event in events if isinstance(event, PlanEvent)).compute.timeout == 77.0
    shared = dataclasses.replace(MACHINE, strategy="ddp")
    with pytest.raises(UsageError, match=r"compute\.strategy ddp shares the work of several processes"):
        list(training.fit(wishes, shared, tmp_path / "run", True, source_object=drawn()))
