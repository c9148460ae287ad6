"""What the scripts that compare plans, levers and predictions make of their rows. Nothing is trained here."""

from __future__ import annotations

import math
from functools import partial

import pytest

from scripts import script
from vitrail import config
from vitrail.model.registry import config_from_name
from vitrail.train.plan import Plan

ablation, plans, predictions, making = (script(name) for name in ("ablation", "plans", "predictions", "making.cases"))
minutes, levers = script("minutes"), script("making.levers")


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
    settings = [
        words for words in ablation.LEVERS.values() if words != ("--pretrain",)
    ]  # a flag of train, and no field
    assert len(settings) == len(ablation.LEVERS) - 1
    for words in (*settings, ablation.NO_CHANGE, *by_hand):
        fields = dict(zip(words[::2], map(str, words[1::2]), strict=True))
        if name := fields.pop("--model", None):
            config_from_name(name)
        if on_trial := fields.pop("--lever", None):
            levers.pull_levers(on_trial).close()
        config.override(Plan(), {field.removeprefix("--"): text for field, text in fields.items()})


def test_only_levers_that_leave_a_step_its_time_make_the_steps_of_the_baseline():
    same = {name for name, words in ablation.LEVERS.items() if ablation.keeps_pace(words)}
    assert {"smoothing", "Muon decay 0.1", "momentum 0.85 at the ends", "AdamW rate 0.004", "mimetic"} <= same
    assert not same & {
        "NorMuon",
        "NorMuon, cautious decay 0.1",
        "cautious decay 0.1",
        "qk norm",
        "masked pictures first",
    }
    assert ablation.keeps_pace(ablation.NO_CHANGE) and not ablation.keeps_pace(())


def difference(mean: float, half: float, n: int = 8) -> dict[str, object]:
    return {"mean": mean, "interval": [mean - half, mean + half], "n": n}


def test_a_lever_is_better_or_worse_where_no_interval_says_the_contrary():
    cases = {
        (0.003, 0.002, 0.0, 0.1): "better",
        (0.0, 0.1, -0.01, 0.005): "better",  # a lower log loss
        (-0.003, 0.002, 0.0, 0.1): "worse",
        (0.003, 0.002, 0.01, 0.005): "open",
        (0.003, 0.004, -0.01, 0.02): "open",
    }
    for (accuracy, half, loss, half_loss), expected in cases.items():
        found = {"val_accuracy": difference(accuracy, half), "val_log_loss": difference(loss, half_loss)}
        assert ablation.verdict(found) == expected
    assert ablation.verdict({"val_accuracy": {"mean": -0.1, "interval": None, "n": 1}}) == "open"
    assert ablation.is_dropped({"val_accuracy": difference(-0.1, 0.01, 4)})
    assert not ablation.is_dropped({"val_accuracy": difference(-0.1, 0.01, 3)})


def test_what_a_comparison_can_see_follows_from_a_change_without_effect():
    rows = []
    for seed, (accuracy, loss) in enumerate([(0.001, 0.004), (-0.001, -0.004), (0.001, -0.004), (-0.001, 0.004)]):
        rows.append({"lever": "baseline", "seed": seed, "val_accuracy": 0.9, "val_log_loss": 0.3})
        changed = {"val_accuracy": 0.9 + accuracy, "val_log_loss": 0.3 + loss}
        rows.append({"lever": ablation.NULL, "seed": seed, **changed})
    spread = math.sqrt(4 / 3)  # of +1, -1, +1, -1
    seen = [100 * 0.001 * spread * (3.182 + 0.978) / 2, 0.004 * spread * (3.182 + 0.978) / 2]
    assert [round(seen[0], 2), round(seen[1], 4)] == [0.24, 0.0096]
    assert "(n = 4): 0.24 points of accuracy, 0.0096 nats; the aim is 0.3 points, 0.01 nats." in ablation.sight(rows)
    assert ablation.sight(rows).endswith("nats.")
    rows[1]["val_accuracy"] = 0.91
    assert "The aim needs about " in ablation.sight(rows)
    assert ablation.sight(rows[:2]).startswith("Too few seeds")


def test_a_screening_drops_what_is_worse_goes_on_where_it_was_and_what_passes_is_confirmed(
    tmp_path, monkeypatch, capsys
):
    made = []

    def train(folder, *words):
        made.append(folder.name)
        seed = int(words[words.index("--seed") + 1])
        luck = 1e-4 * (len(folder.name) * (seed + 3) % 11 - 5)
        worth = -0.05 * ("adamw" in words) + 0.02 * ("--recipe.label_smoothing" in words)
        accuracy = 0.9 + seed / 1000 + worth + luck
        steps = words[words.index("--steps") + 1]
        return {"val_accuracy": accuracy, "val_log_loss": 1.2 - accuracy, "steps": steps, "wall_seconds": 90.0}

    monkeypatch.setattr(ablation, "RESULTS", tmp_path)
    monkeypatch.setattr(ablation, "Results", partial(ablation.Results, folder=tmp_path))
    monkeypatch.setattr(ablation, "train_and_validate", train)
    monkeypatch.setattr(ablation, "steps_of", lambda name, plans, minutes: {plan: ["--steps", 100] for plan in plans})

    def run(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["ablation.py", *words, "--folder", str(tmp_path)])
        ablation.main()
        return capsys.readouterr().out

    with pytest.raises(SystemExit, match=r"No lever passed in ablation-fashion-mnist-1min-screened\.json"):
        run("--confirm")
    chosen = ("--screen", "--levers", "adamw", "smoothing")
    said = run(*chosen, "--dry-run")
    assert "at most 74 minutes of a core (32 x 2.3), two at a time 37 minutes" in said and not made
    assert "2 minutes of dry runs (14)" in said  # seven rounds of the baseline and AdamW; smoothing has the same pace
    run(*chosen, "--stop-after", "0")
    assert not made
    said = run(*chosen)
    assert said.index("The smallest difference") < said.index("smoothing: accuracy")
    assert "Worse after 4 seeds, and dropped: adamw." in said
    names = ["baseline", "nothing", "adamw", "smoothing"]
    assert [sum(f"-{name}-" in folder for folder in made) for name in names] == [8, 8, 4, 8]
    table = (tmp_path / "ablation-fashion-mnist-1min-screened.md").read_text().splitlines()
    assert table[0].startswith("The smallest difference") and table[2].endswith("log loss (95 %) | verdict |")
    assert table[5].startswith("| adamw |") and table[5].endswith("| worse |") and table[-1].endswith("| better |")
    again = run(*chosen)
    assert len(made) == 28 and "at most 6 minutes of a core (4 x 1.5)" in again  # those that are dropped
    run("--confirm")
    assert sorted(made[28:]) == [
        f"ablation-fashion-mnist-{minutes}min-confirmed-{name}-seed{seed}"
        for minutes in (13, 3)
        for name in ("baseline", "smoothing")
        for seed in (10, 8, 9)
    ]
    assert "| better |" in (tmp_path / "ablation-fashion-mnist-13min-confirmed.md").read_text()


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
