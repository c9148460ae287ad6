"""Why the lines of a plan that no rule has looked at are as they are, so that every line of plan.toml has a reason."""

from __future__ import annotations

from collections.abc import Mapping

from ... import config
from ..plan import Plan
from .wishes import Reasons

STANDING = {
    "seed": "start of every random choice; any number does",
    "minutes": "ten where nothing was said; 0 where steps or epochs were",
    "recipe.optimizer": "2 epochs of Fashion-MNIST: Muon 87 %, AdamW 67 % (EXPERIMENTS.md)",
    "recipe.muon_rate": "best of 0.003, 0.008, 0.02, 0.035, 0.06 and 0.15 on Fashion-MNIST",
    "recipe.keep_until": "the last steps see whole pictures, as the answers will",
    "recipe.decay": "to nothing at the last step, so that no running mean is needed",
    "recipe.small_size": "smaller pictures in early steps gained nothing over dropped patches",
    "recipe.evaluate_every": "ten looks at the validation pictures",
    "recipe.save_every": "about once a minute",
}
GROUPS = {
    "model": "as {name} has it",
    "image": "the usual preparation",
    "data": "as usual",
    "recipe": "as usual",
    "pretrain": "as usual",
    "teacher": "as usual",
    "start": "as usual where there is a checkpoint",
}


def explained(plan: Plan, reasons: Mapping[str, str]) -> Reasons:
    """A reason for every line: the rule's that chose it, else what stands behind its default.

    A plan without any reasons, one that somebody has written, is left without.
    """
    return _standing(plan) | dict(reasons) if reasons else {}


def chosen(plan: Plan, written: Mapping[str, str]) -> Reasons:
    """Of the reasons that `explained` gave, those of the rules: without what stands behind the defaults."""
    standing = _standing(plan)
    return {name: why for name, why in written.items() if standing.get(name) != why}


def _standing(plan: Plan) -> Reasons:
    usual = {
        field.name: GROUPS[group] for field in config.describe(Plan) if (group := field.name.split(".")[0]) in GROUPS
    }
    filled = {name: text.format(name=plan.model_name) for name, text in usual.items()}
    return filled | STANDING
