"""A plan in a few lines, and what its run is expected to take."""

from __future__ import annotations

import dataclasses

import pytest

from vitrail.formatting import format_bytes
from vitrail.services import train_progress as words
from vitrail.train.events import PlanEvent, RunCost
from vitrail.train.plan import DistillSettings, Plan, PretrainSettings, Recipe

COST = RunCost(preparation=3.0, training=60.0, evaluation=7.0, memory=850_000_000)
RECIPE = Recipe(patch_keep_rate=0.5, patch_keep_until=0.7, flip=True, flip_vertical=True, crop_padding=1, mixup=0.2)


def test_every_choice_has_a_line_its_value_and_its_reason_in_columns():
    reasons = {"recipe.steps": "asked for", "recipe.mixup": "40 epochs: mixed\x1b[31m"}
    lines = words.format_plan(PlanEvent(Plan(model_name="vit_x", recipe=RECIPE), reasons, COST))
    assert lines[3:5] == [
        "early steps  50% of the patches until 70%",
        "variety      mirror, upside down, shift 1, mixup 0.2  40 epochs: mixed\\x1b[31m",
    ]
    assert lines[-1] == "takes        1 min 10 s, 850 MB                       as the first steps here did"


def test_a_long_reason_goes_on_below_itself_and_no_word_is_lost():
    reason = "few pictures: patch dropout reduces overfitting in long trainings, which " + "takes words " * 8 + "to say"
    lines = words.format_plan(PlanEvent(Plan(recipe=RECIPE), {"recipe.patch_keep_rate": reason}))
    (place,) = (number for number, line in enumerate(lines) if line.startswith("early steps"))
    column = lines[place].index("few pictures")
    below = lines[place + 1 : place + 3]
    assert all(line[:column].isspace() for line in below)
    assert " ".join(line[column:] for line in (lines[place], *below)) == reason
    assert max(map(len, lines)) <= words.MAX_LINE_WIDTH


@pytest.mark.parametrize("columns", [40, 80])
def test_in_a_narrow_terminal_reasons_stand_below_their_choices(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    reasons = {"recipe.mixup": "40 epochs: " + "takes words " * 8 + "to say"}
    lines = words.format_plan(PlanEvent(Plan(model_name="vit_x", recipe=RECIPE), reasons, COST))
    place = lines.index("variety      mirror, upside down, shift 1, mixup 0.2")
    below = [line.strip() for line in lines[place + 1 :] if line.startswith(" " * 13)]
    assert " ".join(below[:-1]) == reasons["recipe.mixup"] and below[-1] == "as the first steps here did"
    assert max(map(len, lines)) < max(columns, 60)


def test_a_smaller_early_size_and_no_variety_are_told_and_left_out():
    plan = Plan(recipe=Recipe(progressive_size=0.5, progressive_until=0.3))
    lines = words.format_plan(PlanEvent(plan, {}))
    assert any(line.endswith("50% of the size until 30%") for line in lines)
    assert not any(line.startswith("variety") for line in lines)


def test_answers_that_are_averaged_are_told():
    reasons = {"recipe.tta_shift": "small pictures", "recipe.tta_flip": "as in training"}
    reasons["recipe.tta_shift_vertical"] = "five times the work"
    four, both, mirror = (
        words.format_plan(PlanEvent(Plan(recipe=Recipe(tta_flip=True, **shifts)), reasons))
        for shifts in ({"tta_shift": 2, "tta_shift_vertical": True}, {"tta_shift": 2}, {})
    )
    assert [" ".join(line.split()) for line in (four[-2], both[-2], mirror[-2])] == [
        "answers mean of 10 views: mirrored, moved by 2 to every side five times the work",
        "answers mean of 6 views: mirrored, moved by 2 small pictures",
        "answers mean of 2 views: mirrored as in training",
    ]


def test_what_a_run_takes_is_a_sentence_where_it_was_measured():
    planned = PlanEvent(Plan(), {}, COST)
    (sentence,) = words.format_expected_cost(planned)
    parts = "preparation 3 s, training 1 min 00 s, evaluation and report 7 s"
    assert sentence == f"Expected on this machine: 1 min 10 s ({parts}), 850 MB of memory."
    assert words.format_expected_cost(dataclasses.replace(planned, cost=None)) == []


def test_bytes_are_said_in_thousands():
    assert (format_bytes(12_345_678), format_bytes(1_234_567_890)) == ("12 MB", "1.2 GB")


@pytest.mark.parametrize(
    ("learnt", "teacher", "said"),
    [
        (
            PretrainSettings(steps=297, batch_size=32, extra_images="/here/unlabelled"),
            DistillSettings(),
            ["pre-training 297 steps of 32 pictures, also of unlabelled, 75% hidden 0.2 of 0.5 minutes"],
        ),
        (
            PretrainSettings(),
            DistillSettings(teacher="cnn", steps=120),
            ["teacher a CNN of 120 steps, 50% of the loss measured"],
        ),
        (
            PretrainSettings(),
            DistillSettings(teacher="runs/large", alpha=0.7),
            ["teacher large, 70% of the loss asked for"],
        ),
        (
            PretrainSettings(),
            DistillSettings(teacher="runs/large", kind="features", steps=9),
            ["teacher 9 steps of the features of large measured"],
        ),
        (PretrainSettings(), DistillSettings(), []),
    ],
)
def test_what_comes_before_the_training_is_told_with_its_steps(learnt, teacher, said):
    reasons = {"pretrain.steps": "0.2 of 0.5 minutes", "distill.steps": "measured", "distill.teacher": "asked for"}
    lines = words.format_plan(PlanEvent(Plan(pretrain=learnt, distill=teacher), reasons))
    assert [" ".join(line.split()) for line in lines if line.startswith(("pre-training", "teacher"))] == said
