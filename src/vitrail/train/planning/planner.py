"""Draft a plan from fingerprint, request and machine, each line with its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from ... import config
from ...data.source import Task
from ...errors import UsageError
from ...evaluate.thresholds import DecisionSettings
from ...formatting import format_count
from ...model import attention
from ...model.config import T2T_PATCHES
from ...runtime import Runtime
from .. import losses
from ..plan import (
    CNN_TEACHER,
    MAX_VALIDATION_IMAGES,
    ComputeSettings,
    DistillSettings,
    Plan,
    PretrainSettings,
    Recipe,
)
from ..plan_reasons import make_override_reasons
from ..request import DatasetFingerprint, Reasons, TrainRequest
from . import augmentation_rules, model_size, unused_settings
from .throughput import Throughput

DEFAULT_MINUTES = 10.0
STEPS_FIELD = "recipe.steps"
MIN_STEPS = 20
EVALUATION_FRACTION = 0.1
"""Most of the training time for evaluations on validation images."""


def draft_plan(fingerprint: DatasetFingerprint, request: TrainRequest, runtime: Runtime) -> tuple[Plan, Reasons]:
    """The plan except what must be measured: mean and deviation of the images, and the number of steps; and reasons.

    Raises:
        UsageError: settings that contradict each other, or a field that does not exist.
    """
    reasons: Reasons = {f"compute.{name}": reason for name, reason in runtime.reasons.items()}
    name, model, model_reasons = model_size.choose_model(fingerprint, request, runtime.device)
    image, image_reasons = model_size.draft_image_spec(fingerprint, model)
    reasons |= model_reasons | image_reasons
    pretrain, why_pretrain = draft_pretrain_settings(request.pretrain, request.overrides)
    why_pretrain |= PRETRAIN_REASONS if pretrain.budget_fraction else {}
    distill, why_distill = draft_distill_settings(request.overrides)
    recipe, why_recipe = augmentation_rules.draft_recipe(fingerprint, model, request, runtime.device)
    decisions, why_decisions = draft_decision_settings(fingerprint.task)
    reasons |= why_pretrain | why_distill | why_recipe | why_decisions
    plan = Plan(
        model_name=name,
        seed=request.seed,
        minutes=resolve_minutes(request),
        data=request.data,
        image=image,
        model=model,
        pretrain=pretrain,
        distill=distill,
        recipe=recipe,
        compute=to_compute_settings(runtime),
        decisions=decisions,
    )
    plan = config.override(plan, request.overrides)
    plan, why = augmentation_rules.apply_step_budget(plan, fingerprint.num_images, request)
    reasons |= why
    reasons |= make_override_reasons(request.overrides)
    check_plan(plan, fingerprint.num_classes, fingerprint.task)
    unused_settings.check_unused_settings(plan, request.overrides)
    reasons["model.attention"] = describe_attention(plan)
    return plan, reasons


def describe_attention(plan: Plan) -> str:
    """The attention paths of training, in its precision, and of inference, in float32, in words."""
    training, inference = choose_attention_paths(plan)
    precisions = " and ".join(dict.fromkeys((plan.compute.precision, "float32")))
    return f"{training} in training, {inference} in inference: {precisions}, {plan.model.tokens} tokens"


def choose_attention_paths(plan: Plan) -> tuple[attention.AttentionPath, attention.AttentionPath]:
    """The attention paths of training and inference, by the measured table."""
    model, compute = plan.model, plan.compute
    capability = attention.device_capability(compute.device)
    training = attention.choose_path(model.attention, capability, compute.precision, model.tokens, True)
    return training, attention.choose_path(model.attention, capability, "float32", model.tokens, False)


def fix_steps(plan: Plan, throughput: Throughput, spent: float = 0.0) -> tuple[Plan, Reasons]:
    """The plan with the steps that its minutes allow at the measured throughput, and the reason.

    Args:
        spent: seconds of the budget that something else takes.
    """
    allowed = round((plan.minutes * 60 - spent) / throughput.mean_seconds)
    steps = max(MIN_STEPS, allowed)
    why = (
        f"{plan.minutes - spent / 60:.4g} min at {throughput.mean_seconds:.3f} s a step, measured before the first one"
    )
    if allowed < steps:
        why = f"at least, which take about {steps * throughput.mean_seconds / 60:.3g} min: {why}, are {max(allowed, 0)}"
    return dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, steps=steps)), {"recipe.steps": why}


def space_evaluations(plan: Plan, num_validation: int, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan with so few evaluations that they take at most a tenth of the training time, and the reason.

    Nothing is measured: a training step costs three forward passes, so evaluations may read three tenths as many images
    as the training.
    """
    recipe, num_images = plan.recipe, min(num_validation, MAX_VALIDATION_IMAGES)
    most = int(3 * EVALUATION_FRACTION * recipe.steps * recipe.batch_size / max(num_images, 1))
    if recipe.num_evaluations <= max(most, 1) or "recipe.evaluate_every" in request.overrides:
        return plan, {}
    every = math.ceil(recipe.steps / max(most, 1))
    why = f"{format_count(num_images, 'validation picture')} each; a tenth of the time is for evaluations"
    spaced = dataclasses.replace(plan, recipe=dataclasses.replace(recipe, evaluate_every=every))
    return spaced, {"recipe.evaluate_every": why}


AREA_ALPHA = 0.1
"""Conformal alpha of areas: it takes nine validation pictures, and masks are few."""


def draft_decision_settings(task: Task) -> tuple[DecisionSettings, Reasons]:
    """The section [decisions] before explicit fields, and reasons."""
    if task != "segmentation":
        return DecisionSettings(), {}
    why = "areas are right in 90 of 100 cases, which nine validation pictures can promise"
    return DecisionSettings(conformal_alpha=AREA_ALPHA), {"decisions.conformal_alpha": why}


def to_compute_settings(runtime: Runtime) -> ComputeSettings:
    """The section [compute] of a plan for a machine."""
    return ComputeSettings(
        device=runtime.device,
        precision=runtime.precision,
        threads=runtime.threads,
        num_workers=runtime.num_workers,
        compile=runtime.compile,
        strategy=runtime.strategy,
        timeout=runtime.timeout,
    )


def resolve_minutes(request: TrainRequest) -> float:
    """The requested or default minutes; 0 with another budget.

    Raises:
        UsageError: two budgets, or none above 0.
    """
    budgets = {"minutes": request.minutes, "epochs": request.epochs, "steps": request.steps}
    given = {name: value for name, value in budgets.items() if value is not None}
    written = [STEPS_FIELD] if STEPS_FIELD in request.overrides else []
    if len([*given, *written]) > 1:
        raise UsageError(f"Give one budget. Got --{' and --'.join([*given, *written])}.")
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise UsageError(f"--{name} must be above 0. Got {value}.")
    if request.epochs is not None or request.steps is not None or written:
        return 0.0
    return request.minutes or DEFAULT_MINUTES


def check_plan(plan: Plan, classes: int, task: Task = "classification") -> None:
    """Check the whole plan against the data's classes.

    Raises:
        UsageError: sections contradict each other, or the number of classes.
    """
    model_size.check_input_size(plan)
    if (task == "anomaly") != (plan.model.head == "bank"):
        raise UsageError(f'model.head="bank" belongs to --task anomaly. Got {plan.model.head} for {task}.')
    if (task == "segmentation") != plan.model.is_dense:
        raise UsageError(
            f'model.pool="patches" with a linear head belongs to --task segmentation. Got {plan.model.pool} for {task}.'
        )
    if plan.model.outputs != classes and task != "anomaly":
        what = {"multilabel": "label", "regression": "column of numbers"}.get(task, "class")
        raise UsageError(f"The model needs one output per {what}, {classes}. Got outputs={plan.model.outputs}.")
    if plan.recipe.transpose and plan.image.height != plan.image.width:
        raise UsageError(
            "recipe.transpose exchanges rows and columns, which only square pictures have alike. Leave it out, or give "
            f"a square --image-size. Got {plan.image.height}x{plan.image.width}."
        )
    if task == "segmentation":
        check_mask_settings(plan)
    plan.recipe.views.check_size(plan.image.height, plan.image.width, "recipe.tta_shift")
    if plan.recipe != plan.recipe.without_extension():
        raise UsageError(
            "recipe.extended_at and recipe.extended_lr_factor are written by --extend alone. Leave them out."
        )
    losses.check_loss_settings(task, plan.recipe)
    check_pretrain_settings(plan)
    check_distill_settings(plan, task)
    if plan.finetune.from_checkpoint and plan.finetune.freeze_blocks >= plan.model.depth:
        raise UsageError(
            f"finetune.freeze_blocks must leave a block to tune: the checkpoint has {plan.model.depth}. "
            f"Got {plan.finetune.freeze_blocks}; finetune.method probe tunes none."
        )
    if plan.recipe.steps and plan.finetune.from_checkpoint and plan.finetune.method == "probe":
        raise UsageError(
            f"finetune.method probe tunes nothing, so {format_count(plan.recipe.steps, 'step')} cannot be made. Leave "
            "the steps or epochs out, or tune with --finetune.method full or lora."
        )
    if not plan.recipe.steps and not (plan.finetune.from_checkpoint and plan.finetune.method == "probe"):
        raise UsageError("recipe.steps must be at least 1; only a probe of a checkpoint trains without steps. Got 0.")


MASK_FREE_FIELDS = (
    "crop_scale", "auto_augment", "random_erasing", "mixup", "cutmix", "patch_keep_until", "progressive_until",
    "tta_flip", "tta_shift", "custom_loss", "custom_augment",
)  # fmt: skip
"""Recipe fields that move, hide or mix pixels in ways that masks do not follow, or need one answer for each image."""


def check_mask_settings(plan: Plan) -> None:
    """Refuse settings that pictures with masks cannot follow.

    Raises:
        UsageError: with the name of the field.
    """
    usual, recipe = vars(Recipe()), vars(plan.recipe)
    for name in MASK_FREE_FIELDS:
        if recipe[name] != usual[name]:
            raise UsageError(
                f"recipe.{name} is not for masks, which are moved by shifts, flips, rotation and scale alone. Leave it "
                f"out, or set it to {usual[name] or 'nothing'}. Got {recipe[name]}."
            )
    if plan.distill.is_enabled:
        raise UsageError("A teacher answers pictures, and masks answer pixels. Leave --distill.teacher out.")


# -- Section [distill]: fraction of the budget, and refused combinations

DISTILL_FRACTIONS = {"logits": 0.15, "features": 0.4}
"""Default fraction of the budget for the phase in front of the training, by kind."""
DISTILL_FIELD_USES = {
    "cnn_width": "cnn",
    "budget_fraction": "first",
    "steps": "first",
    "alpha": "logits",
    "temperature": "logits",
}


def draft_distill_settings(overrides: Mapping[str, str]) -> tuple[DistillSettings, Reasons]:
    """The section before explicit fields, and reasons: a first stage gets a fraction of the budget by default."""
    teacher, kind = overrides.get("distill.teacher", "").strip(), overrides.get("distill.kind", "logits").strip()
    is_set = {"distill.budget_fraction", "distill.steps"} & overrides.keys()
    has_first_stage = teacher == CNN_TEACHER or (teacher and kind == "features")
    if is_set or kind not in DISTILL_FRACTIONS or not has_first_stage:
        return DistillSettings(), {}
    why = "a teacher need not be perfect, and the model has the rest of the time"
    return DistillSettings(budget_fraction=DISTILL_FRACTIONS[kind]), {"distill.steps": why}


def check_distill_settings(plan: Plan, task: Task) -> None:
    """Refuse settings of [distill] that have no effect, or contradict each other.

    Raises:
        UsageError: with the name of the field.
    """
    teacher, changed = plan.distill, _changed_fields(plan.distill)
    if not teacher.is_enabled:
        if changed:
            raise UsageError(f"distill.{changed[0]} was set, but there is no teacher. Name one by --distill.teacher.")
        return
    if teacher.teacher == CNN_TEACHER and teacher.kind == "features":
        raise UsageError("A CNN has no patches whose features could be learnt. Leave out --distill.kind features.")
    serves = {
        "cnn": teacher.teacher == CNN_TEACHER,
        "first": teacher.has_first_stage,
        "logits": teacher.kind == "logits",
    }
    for name in changed:
        if name in DISTILL_FIELD_USES and not serves[DISTILL_FIELD_USES[name]]:
            raise UsageError(
                f"distill.{name} has no use with distill.teacher={teacher.teacher} and distill.kind={teacher.kind}. "
                "Leave it out."
            )
    if task == "regression" and "temperature" in changed:
        raise UsageError("distill.temperature softens probabilities, which numbers are not. Leave it out.")
    if teacher.has_first_stage and not (teacher.budget_fraction or teacher.steps):
        raise UsageError("A teacher that takes time first needs --distill.budget_fraction or --distill.steps above 0.")
    if teacher.budget_fraction and teacher.steps:
        raise UsageError(
            f"distill.steps={teacher.steps} and distill.budget_fraction={teacher.budget_fraction:g} say the same in "
            "two ways. Leave one of them out."
        )
    if teacher.kind == "features" and plan.finetune.from_checkpoint:
        raise UsageError(
            "--distill.kind features teaches a model that begins from random values, and --weights begins from a "
            "checkpoint. Leave one of them out."
        )
    if plan.finetune.from_checkpoint and plan.finetune.method == "probe":
        raise UsageError(
            "finetune.method probe makes no steps in which a teacher could be asked. Leave one of them out."
        )
    if teacher.kind == "features" and plan.model.patches in T2T_PATCHES:
        raise UsageError(f'Features are learnt patch by patch, which patches="{plan.model.patches}" do not keep apart.')


# -- Section [pretrain]: fraction of the budget, step count, and refused combinations

PRETRAIN_FRACTION = 0.4
"""Default fraction of the budget for pre-training."""
MASKED_FIELDS = ("mask_ratio", "decoder_depth", "decoder_width", "norm_pix_loss", "crop_scale")
"""Fields of masked autoencoding, which pre-training from a checkpoint does not do."""
PRETRAIN_REASONS = {
    "pretrain.mask_ratio": "three quarters hidden make the task worth learning and the encoder cheap (He et al. 2021)",
    "pretrain.decoder_depth": "the decoder is discarded: it only has to give the encoder a good task",
    "pretrain.crop_scale": "crops of half the area or more: hidden patches already change the picture",
}


def draft_pretrain_settings(is_requested: bool, overrides: Mapping[str, str]) -> tuple[PretrainSettings, Reasons]:
    """The section before explicit fields, with `--pretrain` or without; and reasons.

    Raises:
        UsageError: `--pretrain` with no time or no steps.
    """
    if not is_requested:
        return PretrainSettings(), {}
    for name in ("pretrain.budget_fraction", "pretrain.steps"):
        text = overrides.get(name)
        if text is not None and text.strip("0. ") == "":
            raise UsageError(f"--pretrain asks for pre-training and --{name} {text} for none. Leave one of them out.")
    if "pretrain.steps" in overrides:
        return PretrainSettings(), {}
    return PretrainSettings(budget_fraction=PRETRAIN_FRACTION), {}


def check_pretrain_settings(plan: Plan) -> None:
    """Refuse settings of [pretrain] that have no effect, or do not fit the model.

    Raises:
        UsageError: settings without pre-training, or a model whose patches overlap or are too few to mask.
    """
    settings, model = plan.pretrain, plan.model
    if not settings.is_enabled:
        if changed := _changed_fields(settings):
            raise UsageError(
                f"pretrain.{changed[0]} was set, but there is no pre-training. Add --pretrain, or leave it out."
            )
        return
    if settings.budget_fraction and settings.steps:
        raise UsageError(
            f"pretrain.steps={settings.steps} and pretrain.budget_fraction={settings.budget_fraction:g} say the "
            "same in two ways. Leave one of them out."
        )
    if plan.finetune.from_checkpoint:
        if changed := [name for name in _changed_fields(settings) if name in MASKED_FIELDS]:
            raise UsageError(
                f"pretrain.{changed[0]} belongs to masked autoencoding, which begins from random values; what goes on "
                "from --weights has no use for it. Leave one of them out."
            )
        return
    if model.patches in T2T_PATCHES:
        raise UsageError(
            f'Masked autoencoding needs patches that do not overlap; with patches="{model.patches}" every patch has '
            "seen its neighbours before any is hidden. Leave --pretrain out, or choose another --model."
        )
    if model.grid.patches < 2:
        raise UsageError(
            f"Masked autoencoding hides some patches and shows others, and the model has {model.grid.patches}. "
            "Choose a smaller patch, or leave --pretrain out."
        )
    if settings.norm_pix_loss and model.patch_dim < 2:
        raise UsageError(
            "A patch of a single number has no deviation to be normalised by. Add --pretrain.norm_pix_loss false."
        )


def _changed_fields(settings: DistillSettings | PretrainSettings) -> list[str]:
    """Names of fields that differ from their defaults."""
    return [field.name for field in dataclasses.fields(settings) if vars(settings)[field.name] != field.default]
