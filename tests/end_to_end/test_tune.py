"""`vitrail tune`, and `vitrail train` with sources of their own for val and test, as they are typed."""

from __future__ import annotations

import json

import pytest

from end_to_end.conftest import TINY


@pytest.mark.wide
def test_a_tuning_prints_its_trials_and_the_best_run_and_goes_on_when_asked(vitrail, flowers, tmp_path):
    out = tmp_path / "tuned"
    answer = vitrail("tune", flowers, *TINY, "--trials", 2, "--steps", 9, "--out", out)
    assert answer.code == 0, answer.err
    header, *rows = answer.out.splitlines()[:3]
    assert header.split()[:3] == ["trial", "rounds", "steps"] and rows[0].endswith("nothing")
    assert sorted(row.split()[1] for row in rows) == ["1", "2"]
    best = next(row.split()[0] for row in rows if row.split()[1] == "2")
    assert f"Run     {out / f'trial-{best}'}" in answer.out and " of 2 trials." in answer.out
    again = json.loads(vitrail("tune", "--resume", out, "--json").out)
    assert again["run"] == str(out / f"trial-{best}") and len(again["trials"]) == 2


@pytest.mark.parametrize(
    "words, message",
    [
        (("--resume", "DIR", "--trials", 3), "--resume goes on as the trials were begun, so --trials cannot be given"),
        (("--resume", "DIR"), "holds no trials: it has no tune.json"),
        (("FLOWERS", "--trials", 1), "compares at least 2 trials. Got --trials 1"),
        ((), "A training needs a SOURCE"),
    ],
)
def test_what_cannot_be_tuned_says_why(words, message, vitrail, flowers, tmp_path):
    named = {"DIR": tmp_path, "FLOWERS": flowers}
    answer = vitrail("tune", *(named.get(word, word) for word in words))
    assert answer.code == 2 and message in answer.err, answer.err


@pytest.mark.wide
def test_folders_of_their_own_for_val_and_test_are_in_the_plan_and_resumed(vitrail, flowers, tmp_path):
    words = ("train", flowers, "--val", flowers, "--test", flowers, *TINY, "--steps", 2)
    answer = vitrail(*words, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "10 train, 10 val, 10 test" in answer.err and "also in train" in answer.err
    plan = (tmp_path / "run" / "plan.toml").read_text()
    assert f'val_source = "{flowers}"' in plan
    more = vitrail("train", "--resume", tmp_path / "run", "--extend", "--steps", 1)
    assert more.code == 0, more.err
