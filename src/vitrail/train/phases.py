"""The phases before the training, pre-training and then distillation, and their fraction of the budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import UsageError
from ..formatting import format_count
from ..model.vit import ViT
from . import contamination
from .context import PlanContext, TrainContext
from .dataset import Dataset
from .distill import distillation
from .events import Event
from .plan import CNN_TEACHER, DistillSettings, Plan, PretrainSettings
from .planning.finalize import is_measured
from .pretrain import continuing, pretraining
from .request import Reasons
from .teacher_targets import DistillationTeacher

PhaseName = Literal["pretrain", "distill"]  # sections of the plan


def run_phases(context: TrainContext, model: ViT) -> Generator[Event, None, tuple[Plan, DistillationTeacher | None]]:
    """Run the phases before the training, or what is left of them; return the plan with their steps as they were
    followed, and the teacher of the training's steps, or None.

    Afterwards `model` has the initial weights of the training.

    Raises:
        UsageError: the plan's teacher does not fit the task.
        InterruptedRun, DivergedError: see `phase.run_phase`.
    """
    yield from contamination.report_contamination(context)
    plan = yield from pretraining.pretrain(context, model)
    return (yield from distillation.prepare_teacher(dataclasses.replace(context, plan=plan), model))


def finalize_phases(draft: PlanContext, dry_run: bool = False) -> tuple[Plan, Reasons, float]:
    """The plan with the steps of its phases, new reasons, and their seconds; 0 where `is_measured` says no.

    Raises:
        UsageError: they leave no time for the training; a teacher that does not fit the task.
    """
    plan = resolve_plan_paths(draft.plan)
    distillation.check_teacher(plan, draft.dataset)
    spent, step_seconds, measured = 0.0, 0.0, is_measured(plan, dry_run)
    reasons: Reasons = {}
    steps = 0.0 if plan.minutes else count_total_steps(plan)
    if plan.pretrain.is_enabled:
        check_extra_images(draft.with_plan(plan))
        check_can_continue(plan, draft.dataset)
        plan, why = pretraining.set_pretrain_batch_size(plan, draft.dataset)
        reasons |= why
        step_seconds = _measure_pretraining_step(draft.with_plan(plan)) if measured else 0.0
        plan, why, seconds = resolve_phase_steps(plan, "pretrain", steps, step_seconds)
        reasons |= why
        spent += seconds
    if plan.distill.has_first_stage:
        step_seconds = distillation.measure_distill_step(draft.with_plan(plan)) if measured else 0.0
        plan, why, seconds = resolve_phase_steps(plan, "distill", steps, step_seconds)
        reasons |= why
        spent += seconds
    if plan.minutes and spent >= plan.minutes * 60:
        raise UsageError(
            f"What comes before the training takes {spent / 60:.1f} minutes here, which leaves nothing of "
            f"{plan.minutes:g} for the training. Give more --minutes, or smaller shares or steps in [pretrain] and "
            "[distill]."
        )
    return plan, reasons, spent


def count_total_steps(plan: Plan) -> float:
    """Steps of the phases and the training together, where the budget is steps and phases have fractions of it.

    Raises:
        UsageError: the fractions leave no steps for the training.
    """
    sections: list[PretrainSettings | DistillSettings] = []
    sections += [plan.pretrain] if plan.pretrain.is_enabled else []
    sections += [plan.distill] if plan.distill.has_first_stage else []
    left = 1 - sum(section.budget_fraction for section in sections)
    if left <= 0:
        raise UsageError(
            "pretrain.budget_fraction and distill.budget_fraction together must be below 1, so that the training "
            f"has steps too. Got {plan.pretrain.budget_fraction:g} and {plan.distill.budget_fraction:g}."
        )
    return (plan.recipe.steps + sum(section.steps for section in sections)) / left


def resolve_phase_steps(
    plan: Plan, name: PhaseName, total_steps: float, seconds_per_step: float
) -> tuple[Plan, Reasons, float]:
    """The plan with a number of steps in place of a fraction of its budget, new reasons, and the seconds of the steps.

    Args:
        total_steps: from `count_total_steps`, before any fraction was replaced; unused with a budget of minutes.
        seconds_per_step: as measured; 0 if not measured, which a budget of steps allows.
    """
    section = plan.pretrain if name == "pretrain" else plan.distill
    share, steps = section.budget_fraction, section.steps
    reasons: Reasons = {}
    if not steps and not plan.minutes:
        steps = max(1, round(share * total_steps))
        reasons[f"{name}.steps"] = f"{share:g} of all steps; {plan.recipe.steps:,} of training follow"
    elif not steps:
        steps = max(1, round(share * plan.minutes * 60 / seconds_per_step))
        minutes = f"{share * plan.minutes:.3g} min of {plan.minutes:g}"
        reasons[f"{name}.steps"] = f"{minutes} at {seconds_per_step:.3f} s a step, measured before the first one"
    if share and not plan.minutes:
        reasons[f"{name}.budget_fraction"] = f"{share:g}, which are the steps below"
    kept = share if plan.minutes else 0.0  # by its clock the steps are replanned
    fixed: dict[str, Any] = {name: dataclasses.replace(section, steps=steps, budget_fraction=kept)}
    return dataclasses.replace(plan, **fixed), reasons, steps * seconds_per_step


def drop_fractions(plan: Plan, changes: Mapping[str, str]) -> Plan:
    """A written plan whose phases have the steps of their share of the minutes, without that share.

    Args:
        changes: explicit changes of the plan by dotted names; a share among them stays.
    """
    names: tuple[PhaseName, ...] = ("pretrain", "distill")
    for name in names:
        section = plan.pretrain if name == "pretrain" else plan.distill
        if section.steps and plan.minutes and f"{name}.budget_fraction" not in changes:
            fixed: dict[str, Any] = {name: dataclasses.replace(section, budget_fraction=0.0)}
            plan = dataclasses.replace(plan, **fixed)
    return plan


def estimate_phase_seconds(context: PlanContext) -> float:
    """Seconds of the phases of a written plan, from a few of their steps here."""
    plan, seconds = context.plan, 0.0
    if plan.pretrain.is_enabled:
        seconds += plan.pretrain.steps * _measure_pretraining_step(context)
    if plan.distill.has_first_stage:
        seconds += plan.distill.steps * distillation.measure_distill_step(context)
    return seconds


def _measure_pretraining_step(context: PlanContext) -> float:
    if context.plan.finetune.from_checkpoint:
        return continuing.measure_continuing_step(context)
    return pretraining.measure_pretraining_step(context)


def check_can_continue(plan: Plan, dataset: Dataset) -> None:
    """Check that a checkpoint that pre-training goes on from can be compared with what comes out.

    Raises:
        UsageError: another task, or no validation images.
    """
    if not (plan.pretrain.is_enabled and plan.finetune.from_checkpoint):
        return
    if dataset.source.task in ("anomaly", "segmentation"):
        raise UsageError(
            "--pretrain with --weights goes on without labels and is kept if a probe of the pictures' answers gains, "
            f"which --task {dataset.source.task} has none of. Leave --pretrain out, or name the folder pretrained/ of "
            "a run that has gone on with --task classification."
        )
    targets = dataset.metric_targets(dataset.splits["val"])
    if np.isnan(targets.astype(np.float64)).all():
        raise UsageError(
            "--pretrain with --weights is kept only if the probe gains on validation pictures, and none has an answer. "
            "Give some, for example with --data.val_fraction 0.15, or leave --pretrain out."
        )


def check_written_phases(plan: Plan, dataset: Dataset) -> None:
    """Check the phases of a written plan.

    Raises:
        UsageError: a phase has a fraction of the budget instead of steps; see also `distillation.check_teacher`.
    """
    distillation.check_teacher(plan, dataset)
    check_can_continue(plan, dataset)
    for name, share in (("pretrain", plan.pretrain.budget_fraction), ("distill", plan.distill.budget_fraction)):
        if share:
            raise UsageError(
                f"A plan that is followed has its steps written down, and {name}.budget_fraction is none. "
                f"Change {name}.steps instead."
            )


def resolve_plan_paths(plan: Plan) -> Plan:
    """The plan with absolute paths, so that a run can be resumed from anywhere."""
    pretrain, distill, finetune = plan.pretrain, plan.distill, plan.finetune
    pretrain = dataclasses.replace(pretrain, extra_images=to_absolute_path(pretrain.extra_images))
    if distill.teacher != CNN_TEACHER:
        distill = dataclasses.replace(distill, teacher=to_absolute_path(distill.teacher))
    if finetune.from_checkpoint:
        finetune = dataclasses.replace(finetune, weights=to_absolute_path(finetune.weights))
    return dataclasses.replace(plan, pretrain=pretrain, distill=distill, finetune=finetune)


def check_extra_images(context: PlanContext) -> None:
    """Check the further images of pre-training, before a run folder is made.

    Raises:
        DataError: see `gather_pretraining_images`.
    """
    if context.plan.pretrain.extra_images:
        pretraining.load_pretraining_images(context)


def describe_phases(plan: Plan) -> tuple[str, ...]:
    """Sentences about pre-training and distillation, for the report."""
    sentences, pretrain, distill = [], plan.pretrain, plan.distill
    if pretrain.steps and not plan.finetune.from_checkpoint:
        further = f" and of {Path(pretrain.extra_images).name}" if pretrain.extra_images else ""
        steps = f"{format_count(pretrain.steps, 'step')} of masked autoencoding"
        sentences.append(f"Before the training, {steps} of the training pictures{further}, without labels.")
    if distill.is_enabled and distill.kind == "features":
        sentences.append(
            f"Before the training, {format_count(distill.steps, 'step')} of learning the features of {distill.teacher}."
        )
    elif distill.is_enabled:
        own = f"a small CNN, trained first for {format_count(distill.steps, 'step')}"
        whose = own if distill.teacher == CNN_TEACHER else distill.teacher
        sentences.append(f"The answers of {whose} are {distill.alpha:.0%} of the loss.")
    return tuple(sentences)


def to_absolute_path(name: str) -> str:
    """The absolute path of an existing file or folder; any other name unchanged."""
    return str(Path(name).expanduser().absolute()) if name and Path(name).expanduser().exists() else name
