"""`vitrail decide` beside a training with the same rule, and predictions that follow the decision in use."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from end_to_end.drawn_tasks import draw_labels
from vitrail.checkpoints import bundle
from vitrail.evaluate.decision_figures import apply_decisions
from vitrail.services.deciding import DecisionRequest, fit_new_decisions, open_stored_run

pytestmark = pytest.mark.wide

WORDS = (
    "--model", "vit_mu_patch8_16", "--recipe.batch_size", "32", "--compute.threads", "1", "--data.val_fraction", "0.4",
    "--data.test_fraction", "0.2", "--recipe.evaluate_every", "40", "--steps", "40",
)  # fmt: skip


def draw_grades(folder: Path, kinds: tuple[str, ...] = ("sound", "defect"), n: int = 300) -> Path:
    """Grey noise with a square that is the brighter, the higher the grade."""
    generator = np.random.default_rng(1)
    for number in range(n):
        grade = number % len(kinds)
        grey = generator.normal(100, 16, (16, 16))
        grey[4:9, 4:9] += generator.uniform(0, 50) * grade
        (folder / kinds[grade]).mkdir(exist_ok=True, parents=True)
        Image.fromarray(grey.clip(0, 255).astype(np.uint8)).save(folder / kinds[grade] / f"{number:03d}.png")
    return folder


ORDERED = ("--decisions.ordered", "true")
FIELDS = {"rule": "--decisions.threshold_rule", "abstain": "--decisions.abstain_fraction",
          "alpha": "--decisions.conformal_alpha"}  # fmt: skip
TASKS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "classes": (("--decisions.positive", "defect"), {"rule": "cost 7.65"}),
    "labels": ((), {"rule": "sensitivity 0.9"}),
    "grades": (ORDERED, {"abstain": 0.1, "alpha": 0.1}),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_rule_gives_what_a_training_with_that_rule_gives(vitrail, tmp_path, task):
    more, request = TASKS[task]
    kinds = ("a mild", "b clear", "c severe") if task == "grades" else ("sound", "defect")
    source = draw_labels(tmp_path / "films", n=400) if task == "labels" else draw_grades(tmp_path / "parts", kinds)
    assert vitrail("train", source, *WORDS, *more, "--out", tmp_path / "run").code == 0
    changed = [word for name, value in request.items() for word in (FIELDS[name], value)]
    again = vitrail("train", "--plan", tmp_path / "run" / "plan.toml", *changed, "--out", tmp_path / "again")
    assert again.code == 0, again.err
    stored, anew = open_stored_run(tmp_path / "run"), open_stored_run(tmp_path / "again")
    fitted, _ = fit_new_decisions(stored, DecisionRequest(**request))
    assert fitted == anew.trained != stored.trained
    for split, table in anew.tables.items():
        assert apply_decisions(stored.tables[split], fitted).records() == table.records()

    pictures = sorted(path for path in source.parent.rglob("*.png"))[:20]
    flags = [word for name, value in request.items() for word in (f"--{name}", value)]
    assert vitrail("decide", tmp_path / "run", *flags, "--keep", "other", "--use", "other").code == 0
    answers = [vitrail("predict", tmp_path / name, *pictures) for name in ("run", "again")]
    assert answers[0].err.startswith("Answers by the kept decision other.")
    ours, theirs = ([*csv.DictReader(answer.out.splitlines())] for answer in answers)
    assert {row.pop("decision") for row in ours} == {"other"} and ours == theirs
    assert bundle.read_bundle_info(tmp_path / "run" / "model").decision == "other"
    told = json.loads(vitrail("decide", tmp_path / "run", "--use", "training", "--json").out)
    assert told["in_use"] == "training" and told["kept"] == ["other"]


def test_python_follows_the_decision_in_use(vitrail, tmp_path):
    import vitrail as package

    assert vitrail("train", draw_grades(tmp_path / "parts"), *WORDS, "--out", tmp_path / "run").code == 0
    run = package.open(tmp_path / "run")
    picture = tmp_path / "parts" / "defect" / "001.png"
    chance = run.predict([picture]).records()[0]["prob_defect"]
    run.decide(at={"defect": min(0.99, chance + 0.005)}, keep="high", use="high")
    assert run.predict([picture]).records()[0]["label"] == "sound"
    run.decide(at={"defect": chance - 0.005}, keep="low", use="low")
    assert run.predict([picture]).records()[0]["label"] == "defect"
    run.decide(prevalence={"defect": 0.01}, keep="rare", use="rare")
    assert run.predict([picture]).records()[0]["prob_defect"] < chance
    run.decide(use="training")
    assert run.predict([picture]).records()[0]["prob_defect"] == chance
