"""Every line of a plan has a reason, and those of the rules can be told from those behind defaults."""

from __future__ import annotations

import dataclasses

from vitrail import config
from vitrail.data.settings import DataSettings
from vitrail.train.plan import DistillSettings, FinetuneSettings, Plan, Recipe
from vitrail.train.plan_reasons import complete_reasons, drop_default_reasons

PLAN = Plan(model_name="vit_pico_patch4_28", data=DataSettings(source="fashion-mnist", folds=5))


def test_every_line_of_a_plan_has_a_reason():
    lines = {field.name for field in config.describe(Plan) if not field.name.startswith("compute.")}
    found = complete_reasons(PLAN, {"recipe.steps": "asked for"})
    ruled = {"model_name", "recipe.batch_size", "recipe.patch_keep_rate", "recipe.crop_padding", "recipe.flip"}
    assert lines - found.keys() == ruled  # which a rule always explains
    assert all(why.strip() for why in found.values())


def test_what_was_said_about_the_pictures_is_called_given():
    found = complete_reasons(PLAN, {"seed": "why"})
    assert found["data.source"] == found["data.folds"] == "given" != found["data.strata"]


def test_groups_that_a_plan_makes_no_use_of_say_so():
    found = complete_reasons(PLAN, {"seed": "why"})
    assert (
        found["distill.temperature"] == "no teacher" and found["finetune.wise_ft_alphas"] == "begins from random values"
    )
    taught = dataclasses.replace(PLAN, distill=DistillSettings(teacher="cnn"), finetune=FinetuneSettings(weights="x"))
    found = complete_reasons(taught, {"seed": "why"})
    assert (
        found["distill.temperature"] == "as published" and found["finetune.wise_ft_alphas"] == "as usual after a probe"
    )


def test_the_reasons_of_rules_can_be_told_from_the_others():
    rules = {"recipe.steps": "asked for", "recipe.ema_decay": "a rule of its own"}
    assert drop_default_reasons(PLAN, complete_reasons(PLAN, rules)) == rules
    assert complete_reasons(Plan(recipe=Recipe(steps=3)), {}) == {}
