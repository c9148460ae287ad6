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
from vitrail.train.keeping.extend import RESULTS
from vitrail.train.run import RunFolder

LINE = ("--recipe.save_every", "3", "--recipe.keep_patches", "0.5", "--recipe.keep_until", "0.6")
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
    assert (recipe.steps, recipe.extended_at, recipe.extended_from) == (12, 6, 0.0)
    assert [recipe.rate_factor(step) for step in range(6, 12)] == after[6:], "the plan alone says it"


def test_the_old_end_is_kept_beside_its_plan_and_can_still_be_asked(finished, extended, vitrail):
    aside = extended / "earlier" / "step-00000006"
    assert (aside / "plan.toml").read_bytes() == (finished / "plan.toml").read_bytes()
    assert (aside / "metrics-test.json").read_bytes() == (finished / "metrics-test.json").read_bytes()
    assert all((aside / name).exists() == (finished / name).exists() for name in RESULTS)
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
    assert recipe.extended_from == rates(run)[2]
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
        (["--extend"], "--extend needs one budget: --minutes, --epochs or --steps."),
        (["--extend", "--minutes", "1", "--steps", "3"], "--extend needs one budget"),
        (["--extend", "--minutes", "0"], "--minutes must be above 0. Got 0.0."),
        (["--steps", "3"], "or give this one more time with --extend"),
        (["--extend", "--steps", "3", "--seed", "1"], "so --seed cannot be given with it"),
    ],
)
def test_what_makes_no_sense_with_a_resume_is_refused(words, said, vitrail, finished):
    answer = vitrail("train", "--resume", finished, *words)
    assert answer.code == 2 and said in answer.err


def test_extend_needs_a_run(vitrail):
    answer = vitrail("train", "digits", "--extend", "--steps", 3)
    assert answer.code == 2 and "--extend gives a run more time: name it with --resume RUN." in answer.err


def test_a_run_of_frozen_features_has_no_steps_to_go_on_with(vitrail, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / "plan.toml").read_text().replace("\nsteps = 6 ", "\nsteps = 0 ")
    (run / "plan.toml").write_text(text)
    answer = vitrail("train", "--resume", run, "--extend", "--steps", 3)
    assert answer.code == 2 and "has no steps to go on with: its answers come from frozen features alone." in answer.err
