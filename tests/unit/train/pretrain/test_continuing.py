"""Pre-training that goes on from a checkpoint: its loss, what it trains and reads, and that the run is never below."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from unit.train.test_fit import notes
from vitrail.checkpoints import bundle_weights
from vitrail.checkpoints.save import save_model
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import UsageError
from vitrail.evaluate.quick_metrics import output_losses
from vitrail.files.safetensors_file import load_tensors
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT, create_model
from vitrail.runtime import RuntimeSettings
from vitrail.spec import ImageSpec
from vitrail.train import fit as training
from vitrail.train import phase
from vitrail.train.context import TrainContext
from vitrail.train.events import Event, PlanEvent, StepProgress
from vitrail.train.finetune import linear_probe
from vitrail.train.finetune.linear_probe import Candidate
from vitrail.train.phase import TrainingPhase
from vitrail.train.plan import Plan
from vitrail.train.pretrain import continuing
from vitrail.train.request import TrainRequest

MACHINE = RuntimeSettings(device="cpu", threads=1, precision="float32")
SHAPE = ViTConfig(image_size=(16, 16), patch=(8, 8), width=16, depth=3, heads=2, mlp_width=32, outputs=5)
BEST = Candidate(name="linear class, C 1", figure_name="accuracy", figure=0.5, loss=1.0, chosen=True)
Fit = Callable[..., list[Event]]


def drawn(**fields: object) -> Source:
    """Noise; pictures with odd numbers are brighter at the left."""
    noise = np.random.default_rng(0).integers(0, 90, (60, 16, 16, 3))
    noise[1::2, :, :8] += 60
    given = {
        "name": "drawn", "classes": ("dark", "bright"), "images": noise.astype(np.uint8),
        "targets": np.arange(60) % 2, "ids": tuple(f"{row}.png" for row in range(60)),
    }  # fmt: skip
    return Source(**(given | fields))


def unanswered() -> Source:
    """Pictures whose labels are known in the train split alone."""
    targets = np.where(np.arange(60)[:, None] < 40, np.arange(60)[:, None] % 2, np.nan).astype(np.float32)
    splits = {"train": np.arange(40), "val": np.arange(40, 50), "test": np.arange(50, 60)}
    return drawn(task="multilabel", classes=("bright",), targets=targets, splits=splits)


def blind() -> ViT:
    """A model that sees no picture: its features are always the same."""
    model = create_model(SHAPE, 3)
    torch.nn.init.zeros_(model.tokens.patches.weight)
    return model


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    def fitted(
        run: str = "run", model: ViT | None = None, source: Source | None = None, dry_run: bool = False, **words: object
    ) -> list[Event]:
        start = tmp_path / f"{run}-start"
        save_model(start, model or create_model(SHAPE, 3), ImageSpec(height=16, width=16), (), "timm")
        overrides = {"finetune.method": "probe", "pretrain.steps": "4", "recipe.save_every": "1"}
        overrides |= {name.replace("__", "."): str(text) for name, text in words.items() if "__" in name}
        budget = {name: value for name, value in words.items() if "__" not in name}
        overrides = {name: text for name, text in overrides.items() if text}
        if overrides.get("finetune.method") == "probe":
            del overrides["recipe.save_every"]
        wishes = TrainRequest(
            data=DataSettings(val_fraction=0.3), weights=str(start), pretrain=bool(budget.pop("pretrain", True)),
            overrides=overrides, **budget,
        )  # fmt: skip
        return list(training.fit(wishes, MACHINE, tmp_path / run, dry_run, source_object=source or drawn()))

    return fitted


def doctor(monkeypatch: pytest.MonkeyPatch, change: Callable[[ViT], None]) -> None:
    """Change the model that comes out of the phase."""
    whole = continuing.continue_pretraining

    def doctored(context: TrainContext, model: ViT) -> Generator[Event, None, Plan]:
        plan = yield from whole(context, model)
        with torch.no_grad():
            change(model)
        return plan

    monkeypatch.setattr(continuing, "continue_pretraining", doctored)


def start_json(run: Path) -> dict[str, object]:
    return json.loads((run / "start.json").read_text())


def bits(run: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_tensors(run / "start.safetensors").items()}


def test_a_worse_outcome_keeps_the_start_to_the_bit_and_the_run_says_both_figures(fit, tmp_path, monkeypatch):
    doctor(monkeypatch, lambda model: torch.nn.init.zeros_(model.tokens.patches.weight))
    events = fit()
    stored = start_json(tmp_path / "run")["continued"]
    assert not stored["kept"] and stored["continued"]["loss"] > stored["start"]["loss"] and stored["gain"] < 0
    begins, checkpoint = load_tensors(tmp_path / "run" / "start.safetensors"), create_model(SHAPE, 3).state_dict()
    assert all(torch.equal(begins[name], checkpoint[name]) for name in begins if not name.startswith("head."))
    assert not (tmp_path / "run" / "pretrained").exists()
    (said,) = [text for text in notes(events) if text.startswith("Pre-training from the checkpoint, 4 steps")]
    assert f"was {stored['start']['loss']:.4f} before and is {stored['continued']['loss']:.4f} after" in said
    assert said.endswith("so it is not kept, for that may be luck, and the checkpoint is used as it is.")
    assert said in json.loads((tmp_path / "run" / "report.json").read_text())["notes"]
    assert not (tmp_path / "run" / "checkpoints" / "pretrain").exists()


@pytest.mark.wide
def test_a_better_outcome_is_kept_and_is_a_checkpoint_of_its_own(fit, tmp_path, monkeypatch):
    doctor(monkeypatch, lambda model: model.tokens.load_state_dict(create_model(SHAPE, 3).tokens.state_dict()))
    events, run = fit(model=blind()), tmp_path / "run"
    stored = start_json(run)["continued"]
    assert stored["kept"] and stored["interval"][0] > 0 and stored["gain"] == pytest.approx(
        stored["start"]["loss"] - stored["continued"]["loss"], abs=1e-5
    )  # fmt: skip
    assert any(text.endswith("so it is kept.") for text in notes(events))
    kept = bundle_weights.load_bundle(run / "pretrained").model.state_dict()
    used = load_tensors(run / "start.safetensors")
    assert torch.equal(kept["tokens.patches.weight"], used["tokens.patches.weight"])
    assert used["tokens.patches.weight"].abs().sum() > 0


@pytest.mark.wide
def test_the_comparison_stays_after_the_tuning_and_the_plan_says_what_is_done(fit, tmp_path):
    events = fit(finetune__method="full", steps=3)
    stored = start_json(tmp_path / "run")
    assert stored["continued"]["steps"] == 4 and len(stored["tuned"]) == 5
    shown = [(event.phase, event.step) for event in events if isinstance(event, StepProgress)]
    assert shown == [*(("continued pre-training", step) for step in range(1, 5)), *(("", step) for step in (1, 2, 3))]
    planned = next(event for event in events if isinstance(event, PlanEvent)).plan
    assert (planned.pretrain.steps, planned.recipe.steps) == (4, 3)


@pytest.mark.wide
@pytest.mark.parametrize("last", [1, 4])
def test_a_run_stopped_on_the_way_goes_on_and_ends_with_the_same_bits(last, fit, tmp_path, monkeypatch):
    words = {"finetune__method": "full", "steps": 2}
    fit("whole", **words)
    whole = phase.iterate_phase_steps

    def killed(*given: object) -> Iterator[object]:
        for done in whole(*given):
            yield done
            if done.step == last:
                raise KeyboardInterrupt

    monkeypatch.setattr(phase, "iterate_phase_steps", killed)
    with pytest.raises(KeyboardInterrupt):
        fit("run", **words)
    monkeypatch.setattr(phase, "iterate_phase_steps", whole)
    said = notes(list(training.resume_run(tmp_path / "run", drawn())))
    assert f"Going on after step {last} of 4 of the continued pre-training." in said
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    assert start_json(tmp_path / "run") == start_json(tmp_path / "whole")


@pytest.mark.wide
def test_it_reads_the_training_pictures_alone_and_trains_the_upper_blocks_alone(fit, tmp_path, monkeypatch):
    seen: list[TrainingPhase] = []
    whole = phase.run_phase

    def watched(run: object, given: TrainingPhase) -> Generator[Event, None, Plan]:
        seen.append(given)
        yield from whole(run, given)
        return given.plan

    monkeypatch.setattr(phase, "run_phase", watched)
    fit()
    lines = (tmp_path / "run" / "splits.csv").read_text().split()[1:]
    splits = {name: split for name, split, _ in (line.split(",") for line in lines)}
    names = [f"{row}.png" for row in seen[0].images.indices.tolist()]
    assert {splits[name] for name in names} == {"train"} and len(names) == list(splits.values()).count("train")
    before, after = create_model(SHAPE, 3).state_dict(), seen[0].module.model.state_dict()
    moved = {name for name in before if name in after and not torch.equal(before[name], after[name])}
    assert moved and all(name.startswith(("encoder.blocks.2.", "head.")) for name in moved)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"pretrain__mask_ratio": "0.5"}, r"pretrain\.mask_ratio belongs to masked autoencoding.*Leave one of"),
        ({"source": unanswered()}, r"gains on validation pictures, and none has an answer\. Give some"),
        ({"source": drawn(task="anomaly", classes=("good", "bad"))}, r"--task anomaly has none of\. Leave --pretrain"),
    ],
)
def test_what_cannot_apply_is_refused_in_one_sentence(words, message, fit, tmp_path):
    with pytest.raises(UsageError, match=message):
        fit(**words)
    assert not (tmp_path / "run").exists()


def test_the_loss_is_the_cross_entropy_of_finding_ones_own_picture():
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(6, 8, generator=generator) * 3 + 5
    total, weight = continuing.find_own_picture(anchors, anchors)
    other, _ = continuing.find_own_picture(anchors.roll(1, 0), anchors)
    assert weight == 6 and total < other
    mean, deviation = anchors.mean(0), anchors.std(0, correction=0) + continuing.MIN_DEVIATION
    expected = 0.0
    for row in range(6):
        own = [(each - mean) / deviation for each in anchors]
        cosines = torch.stack([own[row] @ each / own[row].norm() / each.norm() for each in own])
        logs = (cosines / continuing.TEMPERATURE).log_softmax(0)
        expected -= (1 - continuing.SMOOTHING) * logs[row] + continuing.SMOOTHING * logs.mean()
    torch.testing.assert_close(total, expected)


def test_only_the_last_of_several_blocks_is_compared():
    shape = ViTConfig(**(vars(SHAPE) | {"pool": "class+mean", "pool_blocks": 2}))
    pooled = torch.arange(64.0)[None]
    assert continuing.last_block_features(pooled, shape)[0].tolist() == [*range(16, 32), *range(48, 64)]


def test_a_gain_is_kept_if_its_interval_over_groups_lies_above_0():
    generator = np.random.default_rng(0)
    start = generator.uniform(0.5, 1.5, 200)
    better, noise = start - 0.1, start - generator.normal(0, 0.2, 200)
    rows = np.arange(200)
    assert linear_probe.compare_starts(3, (BEST, start), (BEST, better), None, 0).is_kept
    assert not linear_probe.compare_starts(3, (BEST, start), (BEST, start), None, 0).is_kept
    assert not linear_probe.compare_starts(3, (BEST, start), (BEST, noise), None, 0).is_kept
    one = start - np.where(rows < 100, 0.3, -0.1)  # one patient of two gains
    assert linear_probe.compare_starts(3, (BEST, start), (BEST, one), None, 0).is_kept
    assert not linear_probe.compare_starts(3, (BEST, start), (BEST, one), rows // 100, 0).is_kept


def test_unknown_labels_do_not_count_in_the_comparison():
    targets = np.array([[1, np.nan], [np.nan, np.nan], [0, 1]], np.float32)
    outputs = np.zeros((3, 2), np.float32)
    losses = output_losses("multilabel", outputs, targets)
    assert np.isnan(losses).tolist() == np.isnan(targets).tolist()
    compared = linear_probe.compare_starts(1, (BEST, losses), (BEST, losses - [0.2, 0.4]), None, 0)
    assert compared.gain == pytest.approx(0.25)  # 0.2 of one picture, 0.3 of the other
