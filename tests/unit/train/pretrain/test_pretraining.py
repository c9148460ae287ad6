"""A training that begins with masked autoencoding: its budget, its resume, what it looks at, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.loader import Batch
from vitrail.data.settings import DataSettings
from vitrail.data.source import Source
from vitrail.errors import DataError, DivergedError, InterruptedRun, ResourceError, UsageError
from vitrail.files import safetensors_file
from vitrail.runtime import RuntimeSettings
from vitrail.train import fit as training
from vitrail.train import phase
from vitrail.train.context import TrainContext
from vitrail.train.distill import cnn_teacher
from vitrail.train.events import Event, Note, PlanEvent, StepProgress
from vitrail.train.plan import Plan, PretrainSettings, ProgressiveStage
from vitrail.train.planning import throughput
from vitrail.train.planning.throughput import Throughput
from vitrail.train.pretrain import pretraining, unlabelled_images
from vitrail.train.request import TrainRequest
from vitrail.train.run_folder import RunFolder

MACHINE = RuntimeSettings(device="cpu", threads=1)
TARGETS = np.arange(16) // 8


def drawn() -> Source:
    """Tiny noisy pictures of two classes, brighter and darker."""
    noise = np.random.default_rng(0).integers(0, 60, (16, 16, 16, 3))
    return Source(
        name="drawn",
        classes=("dark", "light"),
        images=(noise + 60 * TARGETS[:, None, None, None]).astype(np.uint8),
        targets=TARGETS,
        ids=tuple(f"{row}.png" for row in range(16)),
    )


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., list[Event]]:
    """Pre-train and train the smallest model into `run`; all that was told."""

    def fitted(run: str = "run", pretrain: bool = True, dry_run: bool = False, **said: object) -> list[Event]:
        budget = {name: said.pop(name) for name in ("minutes", "steps") if name in said} or {"steps": 3}
        overrides = {"recipe.save_every": "1"} | {name.replace("__", "."): str(text) for name, text in said.items()}
        wishes = TrainRequest(
            data=DataSettings(), model="vit_mu_patch8_16", pretrain=pretrain, overrides=overrides, **budget
        )
        return list(training.fit(wishes, MACHINE, tmp_path / run, dry_run, source_object=drawn()))

    return fitted


def notes(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note)]


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return safetensors_file.load_tensors(path)


def same(first: Path, second: Path) -> bool:
    ours, theirs = weights(first), weights(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_pretraining_comes_first_and_leaves_its_weights_its_figures_and_a_picture(fit, tmp_path):
    events = fit(pretrain__steps=4)
    shown = [(event.phase, event.step) for event in events if isinstance(event, StepProgress)]
    assert shown == [*(("pre-training", step) for step in (1, 2, 3, 4)), *(("", step) for step in (1, 2, 3))]
    run = tmp_path / "run"
    assert [row["pretrain_step"] for row in rows(run) if "pretrain_step" in row] == [1, 2, 3, 4]
    with Image.open(run / "figures" / "pretraining.png") as picture:
        assert picture.width > 100
    assert not (run / "checkpoints" / "pretrain").exists()
    fit("none", pretrain=False)
    start, fresh = weights(run / "start.safetensors"), weights(tmp_path / "none" / "model" / "model.safetensors")
    assert start.keys() == fresh.keys()
    assert not same(run / "model" / "model.safetensors", tmp_path / "none" / "model" / "model.safetensors")
    assert phase.sum_phase_images(rows(run), "pretrain") == 44


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("last", [3, 1, 4])
def test_a_run_stopped_in_its_pretraining_goes_on_and_ends_with_the_same_bits(last, fit, tmp_path, monkeypatch):
    whole = phase.iterate_phase_steps

    def broken(*words: object) -> Iterator[object]:
        yield from itertools.islice(whole(*words), last)
        raise DataError("The disk is gone.")

    monkeypatch.setattr(phase, "iterate_phase_steps", broken)
    with pytest.raises(DataError, match="The disk is gone"):
        fit(pretrain__steps=4)
    monkeypatch.undo()
    run = tmp_path / "run"
    events = list(training.resume_run(run, drawn()))
    assert f"Going on after step {last} of 4 of the pre-training." in notes(events)
    assert [row["pretrain_step"] for row in rows(run) if "pretrain_step" in row] == [1, 2, 3, 4]
    fit("whole", pretrain__steps=4)
    for name in ("start.safetensors", "model/model.safetensors"):
        assert same(run / name, tmp_path / "whole" / name)


def take_no_steps(context: TrainContext, *words: object) -> Generator[Event, None, Plan]:
    yield Note("stop here")
    return context.plan


@pytest.mark.wide
def test_a_run_stopped_after_its_pretraining_does_not_repeat_it(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "run_trainer", take_no_steps)
    monkeypatch.setattr(training, "finish_run", lambda *words: iter([]))
    fit(pretrain__steps=4)
    monkeypatch.undo()
    monkeypatch.setattr(phase, "iterate_phase_steps", lambda *words: pytest.fail("pre-trained again"))
    list(training.resume_run(tmp_path / "run", drawn()))
    monkeypatch.undo()
    fit("whole", pretrain__steps=4)
    assert same(tmp_path / "run" / "model" / "model.safetensors", tmp_path / "whole" / "model" / "model.safetensors")


@pytest.fixture
def send_in_step_2(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Send a signal to this process in the second step of the pre-training."""

    def arranged(number: int) -> None:
        whole = phase.iterate_phase_steps

        def signalled(*words: object) -> Iterator[object]:
            for done in whole(*words):
                if done.step == 2:
                    signal.raise_signal(number)
                yield done

        monkeypatch.setattr(phase, "iterate_phase_steps", signalled)

    return arranged


def test_a_signal_saves_and_says_how_to_go_on(fit, tmp_path, send_in_step_2):
    send_in_step_2(signal.SIGTERM)
    with pytest.raises(
        InterruptedRun, match=r"at step 2 of 4 of the pre-training, saved\. Continue in Python"
    ) as stopped:
        fit(pretrain__steps=4)
    assert stopped.value.exit_code == 143
    assert (tmp_path / "run" / "checkpoints" / "pretrain" / "step-00000002").is_dir()


def test_A7_USR1_saves_says_so_and_goes_on(fit, send_in_step_2):
    send_in_step_2(signal.SIGUSR1)
    said = [event.text for event in fit(pretrain__steps=4) if isinstance(event, Note)]
    assert said.count("Saved after step 2 of 4 of the pre-training, as a signal asked; it goes on.") == 1


@pytest.mark.wide
@pytest.mark.parametrize(
    ("room", "words", "flag"),
    [
        (pretraining, {"pretrain__steps": 4}, "pretrain"),
        (cnn_teacher, {"distill__teacher": "cnn", "distill__steps": 4}, "recipe"),
    ],
)
@pytest.mark.parametrize("budget", [{"steps": 4}, {"minutes": 1}])
def test_F10_a_full_memory_says_which_batch_to_make_smaller(room, words, flag, budget, fit, monkeypatch):
    true = room.augment_batch

    def fits_two(batch: Batch, *more: object) -> torch.Tensor:
        if len(batch.indices) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return true(batch, *more)

    monkeypatch.setattr(room, "augment_batch", fits_two)
    with pytest.raises(
        ResourceError, match=rf"do not fit\. 2 at once do \(tried just now\)\. Begin with --{flag}\.batch_size 2\."
    ):
        fit(**budget, **words)


def test_the_budget_is_shared_and_the_plan_says_how(fit, monkeypatch):
    monkeypatch.setattr(phase, "measure_phase_step", lambda prelude: 0.5)
    monkeypatch.setattr(
        throughput, "measure_throughput", lambda *words, **more: Throughput(((ProgressiveStage(0.0, 1.0), 1.0),))
    )
    planned = next(event for event in fit(minutes=10, dry_run=True) if isinstance(event, PlanEvent))
    assert (planned.plan.pretrain.steps, planned.plan.recipe.steps) == (480, 360)
    assert planned.reasons["pretrain.steps"] == "4 min of 10 at 0.500 s a step, measured before the first one"
    assert planned.plan.pretrain.budget_fraction == 0.4 and "pretrain.mask_ratio" in planned.reasons
    planned = next(e for e in fit(minutes=10, dry_run=True, pretrain__steps=60) if isinstance(e, PlanEvent))
    assert (planned.plan.pretrain.steps, planned.plan.recipe.steps) == (60, 570)
    two = {"pretrain__budget_fraction": 0.4, "distill__teacher": "cnn", "distill__budget_fraction": 0.1}
    both = next(e for e in fit(steps=50, dry_run=True, **two) if isinstance(e, PlanEvent)).plan
    assert (both.pretrain.steps, both.distill.steps, both.recipe.steps) == (40, 10, 50)  # of 100
    with pytest.raises(UsageError, match=r"together must be below 1, so that the training has steps too\. Got 0\.6"):
        fit(steps=50, dry_run=True, **{**two, "pretrain__budget_fraction": 0.6, "distill__budget_fraction": 0.4})
    planned = next(e for e in fit(steps=30, dry_run=True, pretrain__budget_fraction=0.25) if isinstance(e, PlanEvent))
    assert (planned.plan.pretrain.steps, planned.plan.recipe.steps) == (10, 30)
    with pytest.raises(UsageError, match=r"comes before the training takes 10\.0 minutes here.*nothing of 10"):
        fit(minutes=10, dry_run=True, pretrain__steps=1200)


def test_further_pictures_are_added_without_those_that_the_data_has_already(fit, tmp_path, monkeypatch):
    folder, values = tmp_path / "more", drawn().images
    (folder / "deep").mkdir(parents=True)
    for number in range(5):
        Image.fromarray(255 - values[number]).save(folder / "deep" / f"{number}.png")
    np.save(folder / "known.npy", values[3])
    monkeypatch.chdir(tmp_path)
    events = fit(pretrain__extra_images="more", pretrain__steps=2)
    told = (
        f"Pre-training adds 5 pictures of {folder} to 11 for training, and leaves out 1 that are in the data already."
    )
    assert told in notes(events)
    assert next(row for row in rows(tmp_path / "run") if "pretrain_step" in row)["pretrain_images"] == 16
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"There are no pictures in .*empty"):
        fit("other", pretrain__extra_images=tmp_path / "empty", pretrain__steps=2)


def folder_of(values: np.ndarray, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number, each in enumerate(values):
        Image.fromarray(each).save(folder / f"{number:02}.png")
    return folder


def train(given: object, out: Path, data: DataSettings, **said: object) -> list[str]:
    overrides = {"pretrain.steps": "2", "pretrain.batch_size": "8"} | {name: str(text) for name, text in said.items()}
    wishes = TrainRequest(data=data, model="vit_mu_patch8_16", steps=2, overrides=overrides)
    return notes(list(training.fit(wishes, MACHINE, out, source_object=given)))


@pytest.mark.wide
def test_pictures_given_as_objects_are_known_again_in_files(tmp_path):
    values = drawn().images
    more = folder_of(values, tmp_path / "more")
    pairs = [(Image.fromarray(each), int(label)) for each, label in zip(values, TARGETS, strict=True)]
    pairs[0] = (more / "00.png", 0)  # of several kinds, the first of them a file
    (told,) = (
        text
        for text in train(pairs, tmp_path / "run", DataSettings(), **{"pretrain.extra_images": more})
        if text.startswith("Pre-training adds")
    )
    assert "adds 0 pictures" in told and "leaves out 16 that are in the data already" in told


@pytest.mark.wide
def test_what_was_taken_out_of_the_data_is_not_taken_in_again_nor_what_cannot_be_read(tmp_path):
    labelled = tmp_path / "labelled"
    for kind, rows in (("dark", range(8)), ("light", range(8, 16))):
        folder_of(drawn().images[list(rows)], labelled / kind)
    out = tmp_path / "out.csv"
    out.write_text("id\ndark/00.png\nlight/01.png\n")
    more = folder_of(255 - drawn().images[:3], tmp_path / "more")
    (more / "broken.png").write_bytes((more / "00.png").read_bytes()[:60])
    (labelled / "dark" / "02.png").write_bytes((labelled / "dark" / "02.png").read_bytes()[:60])
    for name, copies in (("again", labelled), ("new", more)):
        data = DataSettings(source=str(labelled), exclude=str(out), skip_bad=True)
        told = train(None, tmp_path / name, data, **{"pretrain.extra_images": copies})
        (said,) = (text for text in told if text.startswith("Pre-training adds"))
        expected = {"again": "leaves out 16 that are in the data already.", "new": "leaves out 1 that cannot be read."}
        assert f"adds {3 * (name == 'new')} pictures" in said and said.endswith(expected[name]), said
    data = DataSettings(source=str(more.parent / "labelled"), exclude=str(out))
    (labelled / "dark" / "02.png").unlink()
    with pytest.raises(DataError, match=r"broken\.png: .* or leave out what cannot be read with --skip-bad"):
        train(None, tmp_path / "refused", data, **{"pretrain.extra_images": more})
    assert not (tmp_path / "refused").exists()


def test_a_folder_may_hold_shards_files_without_endings_and_links_which_are_counted(tmp_path, monkeypatch):
    more = folder_of(255 - drawn().images[:3], tmp_path / "more")
    (more / "00.png").rename(more / "IM0001")
    (more / "README").write_text("no picture")
    (more / "phone.JXL").write_bytes(b"")
    if hasattr(os, "mkfifo"):
        os.mkfifo(more / "pipe")  # nobody waits for it
    (more / "linked").symlink_to(folder_of(255 - drawn().images[3:5], tmp_path / "elsewhere"))
    found = unlabelled_images.open_extra_images(str(more), DataSettings())
    assert list(found.ids) == ["01.png", "02.png", "IM0001"]
    unread, linked = found.notes
    lead = f"Links to folders are not followed: 1, such as {more / 'linked'}. Name what they lead to by itself."
    assert linked == lead
    assert unread.startswith(f"Left out of {more}: 3 files of other kinds: ") and "1 x .jxl: pictures that" in unread
    shards = tmp_path / "shards"
    shards.mkdir()
    with tarfile.open(shards / "a.tar", "w") as shard:
        for path in sorted(more.glob("*.png")):
            shard.add(path, path.name)
            label = tarfile.TarInfo(f"{path.stem}.cls")
            label.size = 1
            shard.addfile(label, io.BytesIO(b"0"))
    assert len(unlabelled_images.open_extra_images(str(shards), DataSettings())) == 2
    (tmp_path / "list.csv").write_text("path\nmore/01.png\n")
    for name, words in {
        "nowhere": r"--pretrain\.extra_images takes a folder of pictures, .* There is nothing at nowhere",
        str(tmp_path / "list.csv"): r"Without labels, name the folder of its pictures\.",
    }.items():
        with pytest.raises(DataError, match=words):
            unlabelled_images.open_extra_images(name, DataSettings())


@pytest.mark.wide
def test_other_further_pictures_after_a_stop_are_told(fit, tmp_path, monkeypatch):
    more, whole = folder_of(255 - drawn().images[:5], tmp_path / "more"), phase.iterate_phase_steps

    def broken(*words: object) -> Iterator[object]:
        yield from itertools.islice(whole(*words), 2)
        raise DataError("killed")

    monkeypatch.setattr(phase, "iterate_phase_steps", broken)
    with pytest.raises(DataError, match="killed"):
        fit(pretrain__steps=4, pretrain__extra_images=more)
    monkeypatch.undo()
    shutil.copytree(tmp_path / "run", tmp_path / "same")
    words = "The pictures of the pre-training are not those that it began with. The results are no longer bit for bit"
    assert not any(words in text for text in notes(list(training.resume_run(tmp_path / "same", drawn()))))
    (more / "00.png").unlink()
    told = notes(list(training.resume_run(tmp_path / "run", drawn())))
    assert any(words in text for text in told) and "Going on after step 2 of 4 of the pre-training." in told


@pytest.mark.wide
def test_what_has_had_its_effect_cannot_be_edited_before_the_first_checkpoint_of_the_training(
    fit, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "run_trainer", take_no_steps)
    monkeypatch.setattr(training, "finish_run", lambda *words: iter([]))
    fit(pretrain__steps=2)
    monkeypatch.undo()
    plan = tmp_path / "run" / "plan.toml"
    text = plan.read_text()
    assert "\nmask_ratio = 0.75" in text
    plan.write_text(text.replace("\nmask_ratio = 0.75", "\nmask_ratio = 0.5"))
    with pytest.raises(UsageError, match=r"pretrain\.mask_ratio 0\.75 -> 0\.5.*it has had its effect already"):
        list(training.resume_run(tmp_path / "run", drawn()))
    plan.write_text(text.replace("\ngrad_clip_norm = 0.0", "\ngrad_clip_norm = 1.0"))
    told = notes(list(training.resume_run(tmp_path / "run", drawn())))
    assert any(
        text.startswith("Changed since the run was saved: recipe.grad_clip_norm 0.0 -> 1.0.") for text in told
    ), told


def test_the_advice_after_a_divergence_names_what_moves_the_rates_of_the_phase(fit, monkeypatch):
    monkeypatch.setattr(phase, "mean_loss", lambda total, weight: total * float("nan"))
    with pytest.raises(
        DivergedError, match=r"pre-training diverged: .* for example --pretrain\.lr_scale 3\.3, and begin"
    ):
        fit(pretrain__steps=5, pretrain__lr_scale=10)
    with pytest.raises(DivergedError, match=r"take another teacher: the rates of this one are fixed"):
        fit("cnn", pretrain=False, distill__teacher="cnn", distill__steps=5, distill__cnn_width=4)


def test_settings_that_cannot_apply_are_refused(fit, tmp_path):
    for said, words in {
        "pretrain__mask_ratio": r"pretrain\.mask_ratio was set, but there is no pre-training\. Add --pretrain",
        "pretrain__extra_images": r"pretrain\.extra_images was set",
    }.items():
        with pytest.raises(UsageError, match=words):
            fit(pretrain=False, dry_run=True, **{said: 0.5})
    with pytest.raises(UsageError, match=r"asks for pre-training and --pretrain\.budget_fraction 0 for none"):
        fit(dry_run=True, pretrain__budget_fraction=0)
    with pytest.raises(UsageError, match=r"asks for pre-training and --pretrain\.steps 0 for none"):
        fit(dry_run=True, pretrain__steps=0)
    with pytest.raises(UsageError, match=r"steps=3 and pretrain\.budget_fraction=0\.5 say the same in two ways"):
        fit(dry_run=True, pretrain__budget_fraction=0.5, pretrain__steps=3)
    with pytest.raises(UsageError, match=r"every patch has seen its neighbours"):
        fit(dry_run=True, model__patches="t2t-performer", model__patch="16,16", model__image_size="32,32",
            image__height=32, image__width=32)  # fmt: skip
    with pytest.raises(UsageError, match=r"hides some patches and shows others, and the model has 1\."):
        fit(dry_run=True, model__patch="16,16")
    fit(pretrain__steps=1)
    plan = RunFolder(tmp_path / "run").read_plan()
    shared = dataclasses.replace(plan, pretrain=dataclasses.replace(plan.pretrain, budget_fraction=0.5, steps=0))
    with pytest.raises(UsageError, match="has its steps written down"):
        list(training.fit_plan(shared, tmp_path / "again", drawn()))


@pytest.mark.wide
def test_a_dry_run_of_a_written_plan_counts_its_pretraining_and_makes_nothing(fit, tmp_path, monkeypatch):
    fit(pretrain__steps=2)
    plan = RunFolder(tmp_path / "run").read_plan()
    monkeypatch.setattr(pretraining, "measure_pretraining_step", lambda *_: 1000.0)
    (planned,) = [
        e for e in training.fit_plan(plan, tmp_path / "dry", drawn(), dry_run=True) if isinstance(e, PlanEvent)
    ]
    assert planned.plan == plan and 2000 < planned.cost.training < 2100
    assert not (tmp_path / "dry").exists()


@pytest.mark.wide
def test_a_written_plan_is_followed_from_anywhere_too(fit, tmp_path, monkeypatch):
    fit(pretrain__steps=1)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder_of(255 - drawn().images[:5], Path("more"))
    plan = RunFolder(tmp_path / "run").read_plan()
    plan = dataclasses.replace(plan, pretrain=dataclasses.replace(plan.pretrain, extra_images="more"))
    list(training.fit_plan(plan, tmp_path / "again", drawn()))
    assert RunFolder(tmp_path / "again").read_plan().pretrain.extra_images == str(tmp_path / "here" / "more")


WRONG = [
    ("budget_fraction", 1.0),
    ("steps", -1),
    ("mask_ratio", 0.0),
    ("mask_ratio", 1.0),
    ("decoder_width", 40),
    ("decoder_depth", 0),
]
WRONG += [("lr_scale", 0.0), ("warmup", 1.0), ("crop_scale", 2.0)]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_numbers_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(UsageError, match=f"{value}"):
        PretrainSettings(**{field: value})
