"""The guards of what comes before the training: steps that are not finite, a full memory, a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from unit.train.test_fit import drawn, notes
from vitrail.data.loader import Batch, InMemoryImageStore
from vitrail.data.settings import DataSettings
from vitrail.errors import DivergedError, ResourceError
from vitrail.runtime import RuntimeSettings
from vitrail.train import checkpoint
from vitrail.train import fit as training
from vitrail.train import phase as preludes
from vitrail.train.distill import cnn_teacher, feature_teacher
from vitrail.train.events import Event, StepProgress
from vitrail.train.losses import Loss
from vitrail.train.phase import TrainingPhase
from vitrail.train.plan import Plan, Recipe
from vitrail.train.pretrain import mae, pretraining
from vitrail.train.request import TrainRequest
from vitrail.train.run_folder import RunFolder

IMAGES = torch.arange(10 * 4).view(10, 1, 2, 2).to(torch.uint8)


def small(bad: tuple[int, ...] = (), fits: int = 99, **settings: int) -> TrainingPhase:
    """Eight steps of a linear map, of which the `bad` ones are not finite, with memory for so many pictures."""
    torch.manual_seed(0)
    module = nn.Linear(4, 1)

    def loss_of(batch: Batch, step: int, epoch: int) -> Loss:
        if len(batch.indices) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        total = module(batch.images.flatten(1) / 255.0).square().sum()
        return total * (math.nan if step + 1 in bad else 1.0), torch.tensor(float(len(batch.indices)))

    return TrainingPhase(
        name="pretrain",
        title="pre-training",
        plan=Plan(),
        module=module,
        recipe=Recipe(**{"steps": 8, "batch_size": 4, "optimizer": "adamw", "save_every": 1} | settings),
        seed=3,
        compute_loss=loss_of,
        images=InMemoryImageStore(IMAGES),
        targets=np.zeros(10, np.int64),
        advice="Do it better.",
        image_names=[f"{row}.png" for row in range(10)],
    )


def events_of(run: RunFolder, prelude: TrainingPhase, until: int = 99) -> list[Event]:
    """What a prelude tells, up to a step that is not saved any more."""
    events = []
    for event in preludes.run_phase(run, prelude):
        events.append(event)
        if isinstance(event, StepProgress) and event.step == until:
            break
    return events


def test_a_step_that_is_not_finite_is_not_applied_is_written_down_and_told(tmp_path: Path):
    prelude, run = small(bad=(3,)), RunFolder.create(tmp_path / "run")
    weights = {}
    for event in preludes.run_phase(run, prelude):
        if isinstance(event, StepProgress):
            weights[event.step] = prelude.module.weight.detach().clone()
        elif "not applied" in event.text:
            said = event.text
    assert torch.equal(weights[2], weights[3]) and not torch.equal(weights[3], weights[4])
    assert all(weight.isfinite().all() for weight in weights.values())
    path = run.path / "pretrain-nan-step-000003.json"
    assert (
        said == f"Step 3 of the pre-training was not applied: loss nan, gradient norm nan. Its pictures are in {path}."
    )
    kept = json.loads(path.read_text())
    assert kept["loss"] == "nan" and len(kept["pictures"]) == 4 and set(kept["pictures"]) <= set(prelude.image_names)


def test_the_third_in_a_row_ends_it_though_it_was_stopped_between_them(tmp_path: Path):
    run = RunFolder.create(tmp_path / "run")
    events_of(run, small(bad=(3, 4)), until=4)  # which is saved when its events are read no further
    (newest, _) = checkpoint.find_newest_checkpoint(preludes.phase_checkpoint_folder(run, "pretrain"))
    assert newest is not None and checkpoint.read_checkpoint_facts(newest)["guards"]["in_a_row"] == 2
    with pytest.raises(DivergedError, match=r"^The pre-training diverged: .* in steps 3 to 5\. Do it better\.$") as end:
        events_of(run, small(bad=(3, 4, 5)))
    assert end.value.exit_code == 6


@pytest.mark.parametrize("stopped", [2, 3, 5, 7])
def test_a_resume_refuses_the_same_steps_and_ends_with_the_same_bits(stopped, tmp_path: Path):
    bad, found = (2, 3, 5, 6), []
    for name in ("whole", "stopped"):
        run = RunFolder.create(tmp_path / name)
        if name == "stopped":
            events_of(run, small(bad), until=stopped)
        prelude = small(bad)
        events_of(run, prelude)
        (newest, _) = checkpoint.find_newest_checkpoint(preludes.phase_checkpoint_folder(run, "pretrain"))
        found.append(
            (prelude.module.weight.tolist(), checkpoint.read_checkpoint_facts(newest)["guards"], run.read_rows())
        )
        assert sorted(path.name for path in run.path.glob("pretrain-nan-*")) == [
            f"pretrain-nan-step-00000{step}.json" for step in bad
        ]
    assert found[0][:2] == found[1][:2] and found[0][1]["refused"] == 4
    losses = [[row.get("pretrain_loss") for row in rows] for _, _, rows in found]
    assert losses[0] == losses[1] and losses[0][1] is None


def test_a_checkpoint_of_an_older_version_is_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, true = RunFolder.create(tmp_path / "run"), checkpoint.save_checkpoint
    monkeypatch.setattr(checkpoint, "save_checkpoint", lambda *words: true(*words[:-1], {preludes.IMAGES_HASH_KEY: ""}))
    events_of(run, small(), until=3)
    monkeypatch.undo()
    told = notes(events_of(run, small(bad=(5,))))
    assert told[0] == "Going on after step 3 of 8 of the pre-training." and "Step 5 of the pre-training was" in told[1]


@pytest.mark.parametrize(
    ("fits", "settings", "said"),
    [
        (
            3,
            {},
            (
                r": 4 pictures at once do not fit\. 2 at once do \(tried just now\)\. Begin with "
                r"--pretrain\.batch_size "
                r"2\."
            ),
        ),
        (6, {"batch_size": 64}, r": 10 pictures at once do not fit\. 5 at once do .* --pretrain\.batch_size 5\."),
        (
            6,
            {"batch_size": 12, "repeated_augmentation": 3},
            r": 12 pictures at once do not fit\. 6 at once do .* --pretrain\.batch_size 6\.",
        ),
        (
            5,
            {"batch_size": 12, "repeated_augmentation": 3},
            r": 12 pictures at once do not fit\. 3 at once do .* --pretrain\.batch_size 3\.",
        ),
        (0, {}, r": 4 pictures at once do not fit\. Nor does any smaller batch: use a smaller --image-size or model\."),
    ],
)
def test_a_full_memory_is_told_with_the_batch_that_was_tried_and_fits(fits, settings, said, tmp_path: Path):
    with pytest.raises(ResourceError, match=f"^The memory is full in the pre-training{said}$"):
        events_of(RunFolder.create(tmp_path / "run"), small(fits=fits, **settings))


def test_what_is_no_full_memory_stays_what_it_is():
    def broken(*_: object) -> Loss:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        preludes.measure_phase_step(replace(small(), compute_loss=broken))


ROOMS = [
    (pretraining, "pretrain", "pre-training", {"pretrain.steps": "4"}),
    (
        cnn_teacher,
        "teacher",
        "training of the teacher",
        {"distill.teacher": "cnn", "distill.steps": "4", "distill.cnn_width": "4"},
    ),
    (feature_teacher, "teacher", "learning of features", {"distill.kind": "features", "distill.steps": "4"}),
]


MAKERS = {
    "pretraining": "make_pretraining_phase", "cnn_teacher": "make_cnn_phase", "feature_teacher": "make_feature_phase",
}  # fmt: skip


@pytest.mark.parametrize(("room", "name", "title", "words"), ROOMS)
def test_every_phase_before_the_training_names_its_pictures(room, name, title, words, tmp_path, monkeypatch):
    def train(out: Path, overrides: dict[str, str]) -> list[str]:
        wishes = TrainRequest(data=DataSettings(), model="vit_mu_patch8_16", steps=2, overrides=overrides)
        machine = RuntimeSettings(device="cpu", threads=1)
        return notes(list(training.fit(wishes, machine, out, source_object=drawn())))

    if room is feature_teacher:
        train(tmp_path / "elder", {})
        words = words | {"distill.teacher": str(tmp_path / "elder")}
    maker = MAKERS[room.__name__.rpartition(".")[2]]
    true: Callable[..., TrainingPhase] = vars(room)[maker]

    def poisoned(*given: object, **more: object) -> TrainingPhase:
        made = true(*given, **more)
        assert made.recipe.skip_spikes, "as asked for"

        def loss_of(batch: Batch, step: int, epoch: int) -> Loss:
            total, weight = made.compute_loss(batch, step, epoch)
            return total * (math.nan if step == 1 else 1.0), weight

        return replace(made, compute_loss=loss_of)

    monkeypatch.setattr(room, maker, poisoned)
    told = train(tmp_path / "run", {**words, "recipe.skip_spikes": "true"})
    assert any(text.startswith(f"Step 2 of the {title} was not applied: loss nan, gradient norm nan.") for text in told)
    kept = json.loads((tmp_path / "run" / f"{name}-nan-step-000002.json").read_text())
    assert len(kept["pictures"]) == 11 and set(kept["pictures"]) <= set(drawn().ids)


def test_further_pictures_are_named_like_those_of_the_training(tmp_path, monkeypatch):
    from PIL import Image

    (tmp_path / "more").mkdir()
    for number in range(3):
        Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(tmp_path / "more" / f"{number}.png")
    true = mae.reconstruction_loss
    monkeypatch.setattr(
        pretraining, "reconstruction_loss", lambda *words: (true(*words)[0] * math.nan, true(*words)[1])
    )
    wishes = TrainRequest(
        data=DataSettings(), model="vit_mu_patch8_16", steps=2,
        overrides={"pretrain.steps": "2", "pretrain.batch_size": "64", "pretrain.extra_images": str(tmp_path / "more")},
    )  # fmt: skip
    list(training.fit(wishes, RuntimeSettings(device="cpu", threads=1), tmp_path / "run", source_object=drawn()))
    kept = json.loads((tmp_path / "run" / "pretrain-nan-step-000001.json").read_text())
    lines = (tmp_path / "run" / "splits.csv").read_text().splitlines()
    learnt = [line.split(",")[0] for line in lines if ",train," in line]
    assert sorted(kept["pictures"]) == sorted([*learnt, "0.png", "1.png", "2.png"])
