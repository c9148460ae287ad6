"""What the scripts that compare plans, levers and predictions make of their rows. Nothing is trained here."""

from __future__ import annotations

import pytest

from scripts import script
from vitrail import config
from vitrail.model.registry import config_from_name
from vitrail.train.plan import Plan

ablation, plans, predictions, making = (script(name) for name in ("ablation", "plans", "predictions", "making.cases"))
minutes = script("minutes")


def lever(name: str, seed: int, accuracy: float) -> dict[str, object]:
    return {"lever": name, "seed": seed, "val_accuracy": accuracy, "steps": 100}


def test_a_lever_is_compared_with_the_baseline_of_the_same_seeds():
    rows = [lever("baseline", seed, 0.80 + seed / 100) for seed in range(3)]
    rows += [lever("adamw", seed, 0.78 + seed / 100) for seed in range(2)] + [lever("mimetic", 7, 0.9)]
    base, adamw = ablation.comparison(rows, ())
    assert (base["lever"], base["accuracy"]["n"], base["worth"]) == ("baseline", 3, None)
    assert adamw["worth"]["mean"] == pytest.approx(-0.02) and adamw["worth"]["n"] == 2
    table = ablation.table([base, adamw]).splitlines()
    assert table[2].startswith("| baseline | the plan's own choice, for pico | 100 | 81.00 % (n = 3) |")
    assert table[3].startswith("| adamw | `--recipe.optimizer adamw` | 100 | 78.50 % (n = 2) | -2.00 (-2.00 to -2.00)")


def test_every_lever_and_every_plan_by_hand_is_one_that_can_be_asked_for(tmp_path):
    found = making.cases(None, tmp_path)
    assert found.keys() == {"fashion-mnist", "digits"}
    by_hand = [words for case in found.values() for words in plans.by_hand(case).values()]
    assert len(by_hand) == 12
    levers = [words for words in ablation.LEVERS.values() if words != ("--pretrain",)]  # a flag of train, and no field
    assert len(levers) == len(ablation.LEVERS) - 1
    for words in (*levers, *by_hand):
        fields = dict(zip(words[::2], map(str, words[1::2]), strict=True))
        if name := fields.pop("--model", None):
            config_from_name(name)
        config.override(Plan(), {field.removeprefix("--"): text for field, text in fields.items()})


def test_the_best_by_hand_is_the_one_with_the_best_mean_over_common_seeds():
    accuracies = {plans.OURS: (0.90, 0.92, 0.99), "larger": (0.93, 0.90), "smaller": (0.80, 0.99)}
    rows = [
        {"case": "digits-0.5", "plan": plan, "seed": seed, "val_accuracy": accuracy}
        for plan, found in accuracies.items()
        for seed, accuracy in enumerate(found)
    ]
    compared = plans.comparison(rows, "digits-0.5")
    assert (compared["best_by_hand"], compared["seeds"]) == ("larger", [0, 1])
    assert compared["difference"]["mean"] == pytest.approx(-0.005)
    assert plans.table([compared]).splitlines()[2] == "| digits-0.5 | 2 | 91.00 % | 91.50 % | larger | -0.50 |"


def test_a_plan_that_is_one_by_hand_word_for_word_has_its_rows(tmp_path):
    words = {"larger": ("digits", "--model", "nano"), "smaller": ("digits", "--model", "femto")}
    assert plans.twin_of(plans.OURS, {**words, plans.OURS: ("digits", "--model", "femto")}) == "smaller"
    assert plans.twin_of(plans.OURS, {**words, plans.OURS: ("digits", "--model", "pico")}) is None
    results = script("making.records").Results("trial", tmp_path)
    for plan, accuracy in {"larger": 0.93, "smaller": 0.9}.items():
        results.rows.append({"case": "digits-0.5", "plan": plan, "seed": 0, "val_accuracy": accuracy})
    results.write({})
    for _ in range(2):  # the second time they are there
        plans.lend(results, "digits-0.5", "smaller")
    assert len(results.rows) == 3
    compared = plans.comparison(results.rows, "digits-0.5")
    assert compared["difference"]["mean"] == pytest.approx(-0.03)
    assert "| 90.00 % (smaller) | 93.00 % | larger |" in plans.table([compared])


def test_predictions_stand_beside_what_happened():
    told = {"seconds": 100.0, "memory": 500e6}
    row = {"run": "digits", "predicted": told, "actual": {"seconds": 80.0, "memory": 600e6}}
    assert predictions.shares(row) == pytest.approx((0.8, 1.2))
    assert predictions.table([row]).splitlines()[2] == "| digits | 100 | 80 | -20% | 500 MB | 600 MB | +20% |"


def test_minutes_taken_stand_beside_minutes_asked():
    row = {"source": "digits", "minutes": 1.0, "load": "quiet", "seconds": 57.0, "steps": 4000, "accuracy": 0.975}
    assert minutes.deviation(row) == pytest.approx(-0.05)
    assert minutes.table([row]).splitlines()[2] == "| digits | quiet | 60 | 57.0 | -5.0% | 4,000 | 97.50% |"


def test_other_processes_run_in_their_part_of_a_training_and_end_with_it(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(minutes, "BUSY", "import time; time.sleep(60)")
    real = minutes.subprocess.Popen
    monkeypatch.setattr(minutes.subprocess, "Popen", lambda words: begun.append(real(words)) or begun[-1])
    monkeypatch.setattr(minutes.time, "sleep", lambda seconds: None)
    with minutes.busy_machine(tmp_path, 0.3, (1 / 3, 2 / 3)):
        assert not begun
        (tmp_path / "metrics.jsonl").touch()
        minutes.Event().wait(0.6)
    assert len(begun) == 2 and all(one.poll() is not None for one in begun)
