"""Features that are stopped on the way: what is on the disk is kept, and the run ends with the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from unit.train.test_fit import drawn, notes
from vitrail.checkpoints.save import save_model
from vitrail.data.settings import DataSettings
from vitrail.errors import InterruptedRun, ResourceError
from vitrail.evaluate import inference
from vitrail.files.safetensors_file import load_tensors
from vitrail.model.config import ViTConfig
from vitrail.model.vit import create_model
from vitrail.runtime import RuntimeSettings
from vitrail.spec import ImageSpec
from vitrail.train import fit as training
from vitrail.train.events import Event, TaskProgress
from vitrail.train.finetune import features
from vitrail.train.request import TrainRequest
from vitrail.train.run_folder import RunFolder

pytestmark = pytest.mark.wide

MACHINE = RuntimeSettings(device="cpu", threads=1, precision="float32")
SHAPE = ViTConfig(image_size=(16, 16), patch=(8, 8), width=16, depth=2, heads=2, mlp_width=32, outputs=5)
PICTURES = (20, 20)  # 30 learnt, 4 to validate on: four portions, one, and four of mirror images


def fit(run: Path, weights: Path) -> list[Event]:
    overrides = {"finetune.method": "probe"}
    wishes = TrainRequest(data=DataSettings(), weights=str(weights), overrides=overrides)
    return list(training.fit(wishes, MACHINE, run, source_object=drawn(PICTURES)))


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(features, "FEATURE_BATCH", 8)
    save_model(tmp_path / "theirs", create_model(SHAPE, 3), ImageSpec(height=16, width=16), (), "timm")
    return tmp_path / "theirs"


class Collect:
    """`collect`, counted; something happens in the n-th call, and there is memory for so many pictures."""

    def __init__(self, at: int = 0, what: object = None, fits: int = 99):
        self.calls, self._at, self._what, self._fits = 0, at, what, fits
        self.batches: list[int] = []

    def __call__(self, *words: object) -> object:
        self.calls += 1
        if self.calls == self._at:
            self._what()
        self.batches.append(words[4].batch_size)
        if words[4].batch_size > self._fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return extracting_collect(*words)


extracting_collect = inference.run_inference


def killed() -> None:
    raise KeyboardInterrupt


def stopped_in(run: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, portion: int) -> Path:
    """A run that was killed in a portion; all before it were saved."""
    monkeypatch.setattr(features, "SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(features, "run_inference", Collect(portion, killed))
    with pytest.raises(KeyboardInterrupt):
        fit(run, weights)
    return run


def begins(run: Path) -> tuple[dict[str, bytes], str]:
    """The weights at step 0, and all that was tried."""
    tensors = load_tensors(run / "start.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}, (run / "start.json").read_text()


@pytest.mark.parametrize(("portion", "left"), [(3, 7), (7, 3)])
def test_A1_features_that_a_kill_found_half_done_go_on_with_the_same_bits(
    portion, left, weights, tmp_path, monkeypatch
):
    fit(tmp_path / "whole", weights)
    run = stopped_in(tmp_path / "run", weights, monkeypatch, portion)
    counted = Collect()
    monkeypatch.setattr(features, "run_inference", counted)
    told = notes(list(training.resume_run(run, drawn(PICTURES))))
    assert counted.calls == left and "Going on after the features of " in " ".join(told)
    assert begins(run) == begins(tmp_path / "whole")
    assert not (run / "features").exists() and (run / "report.html").is_file()


def test_a_whole_split_is_kept_at_once_however_short_it_was(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "run_inference", Collect(6, killed))
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", weights)
    counted = Collect()
    monkeypatch.setattr(features, "run_inference", counted)
    list(training.resume_run(tmp_path / "run", drawn(PICTURES)))
    assert counted.calls == 4, "the mirror images alone"


def test_A1_features_of_another_plan_and_damaged_ones_are_computed_again(weights, tmp_path, monkeypatch):
    run = stopped_in(tmp_path / "run", weights, monkeypatch, 4)
    (first, second, third) = sorted((run / "features").iterdir())
    second.write_bytes(second.read_bytes()[:-4])
    counted = Collect(3, killed)
    monkeypatch.setattr(features, "run_inference", counted)
    with pytest.raises(KeyboardInterrupt):
        list(training.resume_run(run, drawn(PICTURES)))
    assert first.is_file() and third.is_file() and counted.calls == 3  # the first portion alone was good
    plan = (run / "plan.toml").read_text()
    (run / "plan.toml").write_text(plan.replace("crop_fraction = 1.0", "crop_fraction = 0.9"))
    counted = Collect()
    monkeypatch.setattr(features, "run_inference", counted)
    list(training.resume_run(run, drawn(PICTURES)))
    assert counted.calls == 9


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal here")
def test_A5_a_signal_in_the_features_saves_them_and_says_how_to_go_on(weights, tmp_path, monkeypatch):
    fit(tmp_path / "whole", weights)
    asked = Collect(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(features, "run_inference", asked)
    run = tmp_path / "run"
    with pytest.raises(InterruptedRun, match=rf"features of 16 of \d+ train .*\.open\(\"{run}\"\)\.resume") as end:
        fit(run, weights)
    assert end.value.exit_code == 143 and len(list((run / "features").iterdir())) == 1
    monkeypatch.setattr(features, "run_inference", Collect(1, lambda: os.kill(os.getpid(), signal.SIGUSR1)))
    told = notes(list(training.resume_run(run, drawn(PICTURES))))
    assert any(text.startswith("Going on after the features of 16 of ") for text in told)
    assert any(text.startswith("Saved after the features of 24 of ") for text in told)
    assert begins(run) == begins(tmp_path / "whole")


def test_A5_a_signal_with_the_last_portion_is_not_forgotten(weights, tmp_path):
    wishes = TrainRequest(data=DataSettings(), weights=str(weights), overrides={"finetune.method": "probe"})
    events = training.fit(wishes, MACHINE, tmp_path / "run", source_object=drawn(PICTURES))
    whole = 0
    with pytest.raises(InterruptedRun, match="Interrupted after the features") as end:
        for event in events:
            whole += (
                isinstance(event, TaskProgress) and event.done == event.total and "features of the" in event.task_name
            )
            if whole == 3:  # train, val, and now the mirror images of train
                os.kill(os.getpid(), signal.SIGTERM)
    assert whole == 3 and end.value.exit_code == 143
    assert not (tmp_path / "run" / "start.safetensors").exists()


def test_a_batch_that_does_not_fit_is_halved_for_the_rest_of_the_split(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "run_inference", tight := Collect(fits=3))
    told = notes(fit(tmp_path / "run", weights))
    assert tight.batches == [8, 4, 2, 2, 2, 2, 8, 4, 2, 8, 4, 2, 2, 2, 2]  # train, val, and mirror images of train
    assert told.count("The memory is full with 8 pictures at once: features go on with 2 at once.") == 3
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_resume_goes_on_with_the_batch_that_fitted_and_ends_with_the_same_bits(weights, tmp_path, monkeypatch):
    def differently(*words: object) -> object:
        return true(*words) + np.float32(
            1 / words[4].batch_size
        )  # numbers that depend on the batch by more than rounding

    true = inference.run_inference
    monkeypatch.setitem(globals(), "extracting_collect", differently)
    monkeypatch.setattr(features, "run_inference", Collect(fits=3))
    fit(tmp_path / "whole", weights)
    monkeypatch.setattr(features, "SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(features, "run_inference", Collect(5, killed, fits=3))
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", weights)
    monkeypatch.setattr(features, "run_inference", roomier := Collect(fits=3))
    list(training.resume_run(tmp_path / "run", drawn(PICTURES)))
    assert roomier.batches == [2, 2, 8, 4, 2, 8, 4, 2, 2, 2, 2], "the first two portions were kept"
    assert begins(tmp_path / "run") == begins(tmp_path / "whole")


def test_without_room_for_one_picture_it_says_what_helps(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "run_inference", none := Collect(fits=0))
    with pytest.raises(
        ResourceError, match=r"not even one picture at once .* smaller --image-size .* another --device"
    ):
        fit(tmp_path / "run", weights)
    assert none.batches == [8, 4, 2, 1]
    monkeypatch.setattr(features, "run_inference", Collect(1, lambda: torch.zeros(2) @ torch.zeros(3)))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        fit(tmp_path / "other", weights)


def test_parts_that_do_not_meet_are_left(tmp_path, weights):
    run = RunFolder.create(tmp_path / "run")
    fit(tmp_path / "whole", weights)
    parts = features.FeatureFiles(run, RunFolder(tmp_path / "whole").read_plan(), "train", np.arange(9))
    numbers = np.arange(36, dtype=np.float32).reshape(9, 4)
    parts.save([numbers[:2], numbers[2:3]], 3)
    parts.save([numbers[5:]], 9)
    assert np.array_equal(np.concatenate(parts.load()), numbers[:3])
    assert np.array_equal(parts.save([numbers[3:5]], 5), numbers[3:5])
    assert np.array_equal(np.concatenate(parts.load()), numbers)
