"""Reasons of the plan lines that no rule has set, so that every line of plan.toml has one."""

from __future__ import annotations

from collections.abc import Mapping

from .. import config
from ..data.settings import DataSettings
from .plan import Plan
from .request import Reasons

DEFAULT_REASONS = {
    "seed": "start of every random choice; any number does",
    "minutes": "as asked for, ten where nothing was; 0 where steps, epochs or a plan were",
    "data.data_root": "the usual places of a named set; a table's own folder",
    "data.val_source": "no --val was given",
    "data.test_source": "no --test was given",
    "data.task": "the label columns tell it",
    "data.path": "found by its name and values",
    "data.targets": "found by their names and values",
    "data.split": "found by its name, where there is one",
    "data.good": "no class is called good by name",
    "data.group": "no --group was given",
    "data.decimal": "by the numbers of the whole column",
    "data.uncertain": "a guess about unsure labels would hide in every figure",
    "data.class_level": "the first folder names the class",
    "data.keep_empty": "a class without pictures cannot be learnt",
    "data.allow_outside_root": "a table from elsewhere should not reach other files",
    "data.range": "by the training pictures",
    "data.skip_bad": "what cannot be read should be known first",
    "data.exclude": "no list was given",
    "data.val_fraction": "what is chosen must be chosen on pictures that do not teach",
    "data.test_fraction": "the more pictures are held out, the narrower the interval, and the fewer teach",
    "data.folds": "parted once",
    "data.fold": "the first, or only one",
    "data.strata": "the classes alone are shown in proportion",
    "image.height": "as the model reads them",
    "image.width": "as the model reads them",
    "image.channels": "as the model reads them",
    "image.low": "black, in files of 8 bits",
    "image.high": "white, in files of 8 bits",
    "image.bit_depth": "8-bit pictures",
    "image.mean": "grey in the middle becomes 0",
    "image.std": "black and white become -1 and 1",
    "image.interpolation": "keeps edges sharper than bilinear",
    "image.antialias": "every pixel of a large picture counts in the smaller one",
    "image.fit": "whole pictures, so that nothing is cut off",
    "image.crop_fraction": "nothing is cut off",
    "image.crop_start": "nothing is cut off",
    "image.window": "stored values, by low and high",
    "image.page": "one picture a file",
    "image.max_pixels": "a file that claims more is more likely an attack than a picture",
    "recipe.steps": "the minutes decide, once the pace is known",
    "recipe.steps_history": "the steps are those planned before the first",
    "recipe.grad_accum_steps": "a step fits into memory at once",
    "recipe.optimizer": "three minutes of Fashion-MNIST: 2.5 points more than AdamW alone",
    "recipe.muon_lr": "best of 0.003, 0.008, 0.02, 0.035, 0.06 and 0.15 on Fashion-MNIST",
    "recipe.muon_momentum": "as Muon was published",
    "recipe.lr": "for norms, biases, tables and the head, which are few",
    "recipe.weight_decay": "small: short trainings overfit little",
    "recipe.warmup": "one step in twenty, until the moments are known",
    "recipe.patch_keep_until": "the last steps see whole pictures, as predictions do",
    "recipe.lr_schedule": "to nothing at the last step, so that no running mean is needed",
    "recipe.grad_clip_norm": "Muon's steps have a size of their own",
    "recipe.skip_spikes": "a step that cannot be applied is left out in any case",
    "recipe.label_smoothing": "the labels are taken at their word",
    "recipe.class_weights": "no class is ten times as large as another",
    "recipe.max_pos_weight": "each label is ranked by itself, which weights hardly change",
    "recipe.asl_gamma_neg": "plain cross-entropy of each label",
    "recipe.asl_gamma_pos": "plain cross-entropy of each label",
    "recipe.asl_margin": "plain cross-entropy of each label",
    "recipe.huber_delta": "squared errors",
    "recipe.dice_weight": "there are no masks",
    "recipe.custom_loss": "the loss of the task",
    "recipe.ema_decay": "a rate that falls to nothing does the same",
    "recipe.progressive_size": "a gain was measured for many pictures on a CPU alone",
    "recipe.progressive_until": "a gain was measured for many pictures on a CPU alone",
    "recipe.flip_vertical": "most subjects have a way up",
    "recipe.transpose": "most subjects have a way up",
    "recipe.rotate": "no gain measured for pictures like these",
    "recipe.scale": "no gain measured for pictures like these",
    "recipe.translate": "whole pixels do: see crop_padding",
    "recipe.crop_scale": "parts of a picture may not show what its label says",
    "recipe.auto_augment": "no gain measured",
    "recipe.randaugment_num_ops": "as RandAugment was published",
    "recipe.randaugment_magnitude": "as RandAugment was published",
    "recipe.random_erasing": "dropped patches hide parts already",
    "recipe.mixup": "no gain measured",
    "recipe.cutmix": "no gain measured",
    "recipe.custom_augment": "no function was given",
    "recipe.repeated_augmentation": "other pictures teach more than the same ones again",
    "data.legend": "classes of masks are named beside them, or by number",
    "data.pixel_size": "areas are fractions of the picture",
    "finetune.head_fraction": "all pictures with masks",
    "finetune.head_patches": "as many as the memory has room for, and fewer where the minutes ask for it",
    "recipe.tta_flip": "as the pictures are mirrored in training",
    "recipe.tta_shift": "measured for pictures of 28 to 55 pixels alone",
    "recipe.tta_shift_vertical": "only beside shifts to the sides",
    "recipe.extended_at": "never extended",
    "recipe.extended_lr_factor": "never extended",
    "compute.timeout": "a leader may look at a million pictures before the others hear of it",
    "track.report_to": "metrics.jsonl and the report have all of it",
    "track.project": "as their own variables say",
    "decisions.calibrate": "a probability should mean what it says",
    "decisions.threshold_rule": "misses and false alarms in proportion",
    "decisions.positive": "the likeliest class is answered",
    "decisions.abstain_fraction": "every picture is answered that is like those of the training",
    "decisions.conformal_alpha": "right in 95 of 100 cases, as is usual",
    "decisions.ordered": "classes have no order unless one is given",
    "decisions.case": "each picture has an answer of its own",
    "decisions.alpha": "of anomaly: one false alarm in a hundred good pictures",
    "recipe.evaluate_every": "ten evaluations in a run",
    "recipe.save_every": "about once a minute",
}
"""Reasons of default values."""
UNUSED_REASONS = {
    "finetune": "begins from random values",
    "pretrain": "no --pretrain",
    "distill": "no teacher",
}
"""Reasons of sections that a plan does not use."""
CUSTOM_LOSS_FIELDS = ("recipe.label_smoothing", "recipe.class_weights", "recipe.mixup", "recipe.cutmix")
"""Fields that have no effect with a custom loss."""
USED_REASONS = {"finetune": "as usual after a probe", "pretrain": "as published", "distill": "as published"}


def complete_reasons(plan: Plan, reasons: Mapping[str, str]) -> Reasons:
    """A reason for every field: that of the rule that chose it, else that of its default.

    A plan without any reasons, such as a hand-written one, gets none.
    """
    return _default_reasons(plan) | dict(reasons) if reasons else {}


def make_override_reasons(overrides: Mapping[str, str]) -> Reasons:
    """Reasons of explicit settings, a custom loss and a custom augmentation among them."""
    reasons = dict.fromkeys(overrides, "asked for")
    if "recipe.custom_loss" in overrides:
        unused = (name for name in CUSTOM_LOSS_FIELDS if overrides.get(name) in ("0.0", "none"))
        reasons |= dict.fromkeys(unused, "the loss is the program's own")
    functions = reasons.keys() & {"recipe.custom_loss", "recipe.custom_augment"}
    return reasons | dict.fromkeys(functions, "a function was given")


def drop_default_reasons(plan: Plan, written: Mapping[str, str]) -> Reasons:
    """The reasons of rules among those of `complete_reasons`."""
    defaults = _default_reasons(plan)
    return {name: why for name, why in written.items() if defaults.get(name) != why}


def _default_reasons(plan: Plan) -> Reasons:
    used = {
        "finetune": plan.finetune.from_checkpoint,
        "pretrain": plan.pretrain.is_enabled,
        "distill": plan.distill.is_enabled,
    }
    reasons = dict(DEFAULT_REASONS)
    for field in config.describe(Plan):
        section = field.name.split(".")[0]
        if section == "model":
            reasons[field.name] = f"as {plan.model_name} has it"
        elif section in used:
            reasons[field.name] = USED_REASONS[section] if used[section] else UNUSED_REASONS[section]
    defaults = vars(DataSettings())
    given = {name for name, value in vars(plan.data).items() if value != defaults[name]} | {"source"}
    return reasons | dict.fromkeys((f"data.{name}" for name in given), "given")
