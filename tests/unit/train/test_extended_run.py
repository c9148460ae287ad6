"""More steps for a run: from which rate they rise, where the old end goes, and what typing it twice does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from vitrail import config
from vitrail.errors import UsageError
from vitrail.model.registry import config_from_name
from vitrail.train import checkpoint, plan_changes, resume
from vitrail.train.plan import Plan, Recipe
from vitrail.train.resume import Extension
from vitrail.train.run_folder import RunFolder

PLAN = Plan(model=dataclasses.replace(config_from_name("vit_mu_patch8_16"), outputs=3), recipe=Recipe(steps=6))
SIX = Extension(steps=6)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run folder with a plan of six steps, and nothing done."""
    made = RunFolder.create(tmp_path / "run")
    made.write_plan(PLAN, {"recipe.steps": "asked for"})
    return made


def save(run: RunFolder, step: int) -> Path:
    """A checkpoint of a step that followed the run's plan."""
    return checkpoint.save_checkpoint(
        run.checkpoints, step, torch.nn.Linear(1, 1), [], None, config.to_toml(run.read_plan(), {})
    )


def damage(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def end(run: RunFolder, said: str = "the end") -> None:
    """What a finished run leaves, as far as it is moved."""
    run.bundle.mkdir()
    (run.bundle / "config.json").write_text(said)
    for name in ("report.html", "metrics-test.json"):
        (run.path / name).write_text(said)


def crash_in_extending(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that had come to its end is extended, and dies when only `extension.toml` is written."""
    save(run, 6)
    end(run)
    with monkeypatch.context() as patched:
        patched.setattr(resume, "finish_extension", lambda run: None)
        resume.extend_run(run, SIX)


def aside(run: RunFolder) -> list[str]:
    """Every file of earlier/."""
    files = (path for path in (run.path / "earlier").rglob("*") if path.is_file())
    return sorted(path.relative_to(run.path / "earlier").as_posix() for path in files)


END = ["metrics-test.json", "model/config.json", "plan.toml", "report.html"]


@pytest.mark.parametrize(("done", "before"), [(3, 4 / 6), (6, 0.0)])
def test_twice_after_one_step_rises_from_the_rate_that_this_step_had(done, before, run):
    save(run, done)
    resume.extend_run(run, SIX)
    first = run.read_plan().recipe
    assert (first.steps, first.extended_at, first.extended_lr_factor) == (12, done, pytest.approx(before))
    said = resume.extend_run(run, Extension(steps=8))
    second = run.read_plan().recipe
    assert (second.steps, second.extended_at, second.extended_lr_factor) == (20, done, first.extended_lr_factor)
    assert said.startswith(f"Extended after step {done}: 12 steps become 20")


def test_past_a_damaged_checkpoint_it_rises_from_the_rate_that_the_whole_one_had(run):
    save(run, 3)
    longer = dataclasses.replace(PLAN, recipe=Recipe(steps=60, extended_at=5))
    run.write_plan(longer, {})
    damage(save(run, 5))
    resume.extend_run(run, SIX)
    recipe = run.read_plan().recipe
    assert (recipe.steps, recipe.extended_at, recipe.extended_lr_factor) == (66, 3, pytest.approx(4 / 6))


@pytest.mark.parametrize("done", [0, 3])
def test_the_same_again_before_a_later_step_is_saved_adds_nothing_and_says_what_the_plan_is(done, run):
    if done:
        save(run, done)
    resume.extend_run(run, SIX)
    kept = run.plan_file.read_bytes()
    said = resume.extend_run(run, SIX)
    assert said.startswith(f"Extended by --extend after step {done} (--steps 6) already, and no later step is saved")
    assert "nothing is added now, 12 steps in all" in said
    assert run.plan_file.read_bytes() == kept
    save(run, done + 1)
    assert resume.extend_run(run, SIX).startswith(f"Extended after step {done + 1}: 12 steps become 18")


def test_the_same_again_after_a_crash_in_the_middle_of_it_adds_nothing(run, monkeypatch):
    crash_in_extending(run, monkeypatch)
    assert resume.read_current_plan(run).recipe.steps == 12 and run.read_plan().recipe.steps == 6
    opened = resume.reopen_run_as_json(run, SIX, None)
    assert opened["plan"]["recipe"]["steps"] == 12
    assert opened["notes"][0] == "The extension that was begun is carried out: 12 steps in all."
    assert "nothing is added now" in opened["notes"][1]
    assert aside(run) == [f"step-00000006/{name}" for name in END]


def test_every_old_plan_is_kept_as_it_was(run):
    save(run, 6)
    old = run.plan_file.read_bytes()
    resume.extend_run(run, SIX)
    middle = run.plan_file.read_bytes()
    resume.extend_run(run, Extension(steps=8))
    assert aside(run) == ["step-00000006-2/plan.toml", "step-00000006/plan.toml"]
    assert (run.path / "earlier" / "step-00000006" / "plan.toml").read_bytes() == old
    assert (run.path / "earlier" / "step-00000006-2" / "plan.toml").read_bytes() == middle


def test_a_second_end_after_the_same_step_has_a_folder_of_its_own(run):
    save(run, 6)
    end(run, "first")
    assert "The old end is kept in" in resume.extend_run(run, SIX)
    damage(save(run, 12))
    end(run, "second")
    assert resume.extend_run(run, SIX).endswith(f"The old end is kept in {run.path / 'earlier' / 'step-00000006-2'}.")
    assert aside(run) == [f"step-00000006{part}/{name}" for part in ("-2", "") for name in END]
    assert (run.path / "earlier" / "step-00000006" / "report.html").read_text() == "first"
    assert not run.extension_file.exists() and run.read_plan().recipe.steps == 18


def test_an_end_that_a_crash_has_moved_in_part_is_moved_to_the_same_folder(run, monkeypatch):
    crash_in_extending(run, monkeypatch)
    half = run.path / "earlier" / "step-00000006"
    half.mkdir(parents=True)
    (half / "plan.toml").write_bytes(run.plan_file.read_bytes())
    run.bundle.rename(half / "model")
    assert resume.finish_extension(run) == half
    assert aside(run) == [f"step-00000006/{name}" for name in END]


def test_what_an_extension_changed_is_no_change_also_where_its_step_was_saved_again(run):
    again = dataclasses.replace(PLAN, recipe=Recipe(steps=9, extended_at=6))
    run.write_plan(again, {})
    save(run, 6)  # done again under the longer plan, because the one before was damaged
    resume.extend_run(run, SIX)
    newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
    assert resume._changes_since_checkpoint(run, run.read_plan(), newest) == []
    save(run, 7)
    newest, _ = checkpoint.find_newest_checkpoint(run.checkpoints)
    edited = dataclasses.replace(run.read_plan(), recipe=dataclasses.replace(run.read_plan().recipe, steps=99))
    assert resume._changes_since_checkpoint(run, edited, newest) == [plan_changes.PlanChange("recipe.steps", 15, 99)]


def test_a_plan_that_was_changed_otherwise_is_refused_before_it_is_extended(run):
    save(run, 3)
    run.write_plan(dataclasses.replace(PLAN, seed=5), {})
    kept = run.plan_file.read_bytes()
    with pytest.raises(UsageError, match=r"seed 0 -> 5\. That cannot be changed"):
        resume.reopen_run_as_json(run, SIX, None)
    assert run.plan_file.read_bytes() == kept and not (run.path / "earlier").exists()
