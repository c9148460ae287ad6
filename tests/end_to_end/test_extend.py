"""`vitrail train --resume RUN --extend`: more time for a run, with a schedule that depends on the step alone."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from killing import SHORT, differences, draw
from nursery import Nursery
from vitrail.train.resume import RESULT_FILES
from vitrail.train.run_folder import RunFolder

pytestmark = pytest.mark.wide

LINE = ("--recipe.save_every", "3", "--recipe.patch_keep_rate", "0.5", "--recipe.patch_keep_until", "0.6")
PLACES = [
    "renamed extension.toml", "made plan.toml", "renamed plan.toml", "written plan.toml 2", "renamed plan.toml 2",
    "renamed step", "half-written report.html",
]  # fmt: skip


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as found:
        yield found


@pytest.fixture(scope="module")
def finished(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps."""
    folder = tmp_path_factory.mktemp("extended")
    run = folder / "finished"
    done = nursery.run("train", draw(folder / "pictures.npz"), *SHORT, *LINE, "--steps", 6, "--out", run)
    assert done.code == 0, done.said
    return run


@pytest.fixture(scope="module")
def extended(nursery: Nursery, finished: Path) -> Path:
    """The same run, extended by six steps without a break."""
    run = finished.with_name("longer")
    shutil.copytree(finished, run)
    done = nursery.run("train", "--resume", run, "--extend", "--steps", 6)
    assert done.code == 0, done.said
    assert "Extended after step 6: 6 steps become 12, and the rate rises again to 4" in done.said
    assert "Going on after step 6 of 12." in done.said
    return run


def rates(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["lr"] for row in rows if "lr" in row]


def test_the_rate_rises_to_where_a_run_planned_for_so_long_would_be_and_falls_to_nothing(finished, extended):
    before, after = rates(finished), rates(extended)
    assert after[:6] == before and len(after) == 12
    assert before[-1] == pytest.approx(1 / 6)
    planned = [1 - step / 12 for step in range(12)]
    risen = 1 / (0.05 * 6 + 1)
    assert after[6:] == pytest.approx([risen * planned[6], *planned[7:]])
    recipe = RunFolder(extended).read_plan().recipe
    assert (recipe.steps, recipe.extended_at, recipe.extended_lr_factor) == (12, 6, 0.0)
    assert [recipe.lr_factor(step) for step in range(6, 12)] == after[6:], "the plan alone says it"


def test_the_old_end_is_kept_beside_its_plan_and_can_still_be_asked(finished, extended, vitrail):
    aside = extended / "earlier" / "step-00000006"
    assert (aside / "plan.toml").read_bytes() == (finished / "plan.toml").read_bytes()
    assert (aside / "metrics-test.json").read_bytes() == (finished / "metrics-test.json").read_bytes()
    assert all((aside / name).exists() == (finished / name).exists() for name in RESULT_FILES)
    asked = finished.with_name("pictures.npz")
    assert vitrail("evaluate", aside, asked).code == 0
    assert (extended / "report.html").is_file() and (extended / "model" / "config.json").is_file()
    assert "6, and 6 more by --extend after step 6" in (extended / "plan.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_extending_with_kills_anywhere_equals_extending_unbroken(part, nursery, finished, extended, tmp_path):
    for number, place in enumerate(PLACES[part::4]):
        run = tmp_path / f"run-{number}"
        shutil.copytree(finished, run)
        died = nursery.run("train", "--resume", run, "--extend", "--steps", 6, VITRAIL_DIE_AT=place)
        assert died.code == -signal.SIGKILL, f"{place}: nobody came by\n{died.said}"
        resumed = nursery.run("train", "--resume", run)
        assert resumed.code == 0, f"{place}\n{resumed.said}"
        assert differences(run, extended) == [], place
        assert not (run / "extension.toml").exists()
        assert (run / "earlier" / "step-00000006" / "report.html").is_file()


@pytest.mark.slow
def test_a_run_on_its_way_goes_on_from_its_checkpoint_with_the_rates_of_the_longer_plan(nursery, finished, tmp_path):
    run, pictures = tmp_path / "run", finished.with_name("pictures.npz")
    line = ["train", pictures, *SHORT, *LINE, "--steps", 6, "--out", run]
    assert nursery.run(*line, VITRAIL_DIE_AT="lasting LATEST").code == -signal.SIGKILL
    longer = nursery.run("train", "--resume", run, "--extend", "--epochs", "1.2")
    assert longer.code == 0, longer.said
    assert "Extended after step 3: 6 steps become 13" in longer.said, "42 pictures, 8 a step, 1.2 times"
    recipe = RunFolder(run).read_plan().recipe
    assert recipe.extended_lr_factor == rates(run)[2]
    assert rates(run)[4:] == pytest.approx([1 - step / 13 for step in range(4, 13)])


def test_minutes_become_steps_by_the_pace_that_the_run_has_recorded(nursery, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    paced = [row | {"seconds": 0.1 if row["step"] <= 4 else 0.2} if "lr" in row else row for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in paced))
    died = nursery.run("train", "--resume", run, "--extend", "--minutes", "0.05", VITRAIL_DIE_AT="renamed plan.toml 2")
    assert died.code == -signal.SIGKILL
    steps = RunFolder(run).read_plan().recipe.steps
    few = max(0, -(-6 * steps // 10) - 6)  # steps that see half of the patches, to 60 % of all
    assert few * 0.1 + (steps - 6 - few) * 0.2 == pytest.approx(3.0, abs=0.2)


def test_python_extends_as_the_command_does(finished, extended, tmp_path, threads_kept):
    import vitrail

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    longer = vitrail.open(run).extend(steps=6, quiet=True)
    assert longer.plan.recipe.steps == 12 and differences(run, extended) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--extend"], "--extend takes one budget, --minutes, --epochs or --steps. Got none."),
        (
            ["--extend", "--minutes", "1", "--steps", "3"],
            "--extend takes one budget, --minutes, --epochs or --steps. Got 2.",
        ),
        (["--extend", "--minutes", "0"], "--minutes must be above 0. Got 0.0."),
        (["--steps", "3"], "or give this one more time with --extend"),
        (["--extend", "--steps", "3", "--seed", "1"], "so --seed cannot be given with it"),
    ],
)
def test_what_makes_no_sense_with_a_resume_is_refused(words, said, vitrail, finished):
    answer = vitrail("train", "--resume", finished, *words)
    assert answer.code == 2 and said in answer.err


def test_nothing_is_changed_where_the_data_is_gone_and_the_same_words_then_do_it_once(vitrail, finished, tmp_path):
    run, pictures = tmp_path / "run", draw(tmp_path / "pictures.npz")
    shutil.copytree(finished, run)
    (run / "plan.toml").write_text((run / "plan.toml").read_text().replace(str(finished.parent), str(tmp_path)))
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    pictures.rename(tmp_path / "elsewhere.npz")
    gone = vitrail("train", "--resume", run, "--extend", "--steps", 6)
    assert gone.code == 3 and "There is nothing at" in gone.err and "Extended" not in gone.err
    assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()} == before
    (tmp_path / "elsewhere.npz").rename(pictures)
    again = vitrail("train", "--resume", run, "--extend", "--steps", 6)
    assert again.code == 0 and "Extended after step 6: 6 steps become 12" in again.err


def test_typed_again_after_a_crash_it_adds_no_more_steps(nursery, finished, extended, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    died = nursery.run("train", "--resume", run, "--extend", "--steps", 6, VITRAIL_DIE_AT="before step")
    assert died.code == -signal.SIGKILL and "Extended after step 6: 6 steps become 12" in died.said
    again = nursery.run("train", "--resume", run, "--extend", "--steps", 6)
    assert again.code == 0, again.said
    assert "already, and no later step is saved: nothing is added now, 12 steps in all." in again.said
    assert differences(run, extended) == []


def test_a_damaged_last_step_is_done_again_in_a_second_extension_which_keeps_both_ends(nursery, extended, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(extended, run)
    shutil.rmtree(run / "checkpoints" / "step-00000009")
    shutil.copytree(extended.with_name("finished") / "checkpoints" / "step-00000006", run / "checkpoints/step-00000006")
    (run / "checkpoints" / "step-00000012" / "model.safetensors").write_bytes(b"")
    longer = nursery.run("train", "--resume", run, "--extend", "--steps", 6)
    assert longer.code == 0, longer.said
    assert "Extended after step 6: 12 steps become 18" in longer.said
    for name in ("step-00000006", "step-00000006-2"):
        assert (run / "earlier" / name / "model" / "config.json").is_file()
    recipe = RunFolder(run).read_plan().recipe
    assert (recipe.extended_at, recipe.extended_lr_factor) == (6, 0.0)
    assert sorted(path.name for path in run.glob("checkpoints/step-*")) == ["step-00000015", "step-00000018"]


def test_the_plan_of_an_extended_run_begins_anew_with_one_rise_and_one_fall(vitrail, extended, tmp_path):
    run = tmp_path / "anew"
    answer = vitrail("train", "--plan", extended / "plan.toml", "--out", run)
    assert answer.code == 0
    assert "The plan was extended after step 6. Begun anew, its rate rises once and falls once." in answer.err
    recipe = RunFolder(run).read_plan().recipe
    assert (recipe.steps, recipe.extended_at, recipe.extended_lr_factor) == (12, 0, 0.0)
    assert rates(run) == pytest.approx([1 / (0.05 * 12 + 1), *(1 - step / 12 for step in range(1, 12))])


def test_a_run_that_stopped_in_its_pretraining_is_extended_and_goes_on(nursery, finished, tmp_path):
    run, pictures = tmp_path / "run", finished.with_name("pictures.npz")
    line = ["train", pictures, *SHORT, "--steps", 4, "--pretrain", "--pretrain.steps", 6, "--recipe.save_every", 2]
    assert nursery.run(*line, "--out", run, VITRAIL_DIE_AT="lasting LATEST 1").code == -signal.SIGKILL
    longer = nursery.run("train", "--resume", run, "--extend", "--steps", 4)
    assert longer.code == 0, longer.said
    assert "Extended after step 0: 4 steps become 8" in longer.said
    assert "Going on after step 2 of 6 of the pre-training." in longer.said
    assert len(rates(run)) == 8 and "Changed since the run was saved" not in longer.said


def test_extend_needs_a_run(vitrail):
    answer = vitrail("train", "digits", "--extend", "--steps", 3)
    assert answer.code == 2 and "--extend gives a run more time: name it with --resume RUN." in answer.err


def test_a_run_of_frozen_features_has_no_steps_to_go_on_with(vitrail, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / "plan.toml").read_text().replace("\nsteps = 6 ", "\nsteps = 0 ")
    (run / "plan.toml").write_text(text)
    for checkpoint in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(checkpoint)  # without steps there are none
    answer = vitrail("train", "--resume", run, "--extend", "--steps", 3)
    assert answer.code == 2 and "has no steps to go on with: its answers come from frozen features alone." in answer.err
