"""How a run was made, in sentences for a dossier: what the model is, what its images went through, how it was trained.

Source of every sentence: plan.toml and report.json of the run folder.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.model_card import describe_outputs
from ..evaluate.task_metrics import TaskMetrics
from ..formatting import format_count
from .cards import DataCard, overall_metric_lines
from .provenance import FactEntry, ReportFacts, to_entries

# fmt: off
AUGMENTATION_SETTINGS = (
    "crop_padding", "crop_scale", "flip", "flip_vertical", "transpose", "rotate", "scale", "translate", "auto_augment",
    "random_erasing", "mixup", "cutmix", "label_smoothing", "repeated_augmentation", "patch_keep_rate",
    "progressive_size",
)
OPTIMIZER_SETTINGS = (
    "optimizer", "muon_lr", "muon_momentum", "lr", "weight_decay", "warmup", "lr_schedule", "ema_decay",
)
# fmt: on
COPIES_UNKNOWN = "Not known, because there is no check.json in the run folder."
NEUTRAL_VALUES = {"patch_keep_rate": 1.0, "progressive_size": 1.0, "repeated_augmentation": 1, "auto_augment": "none"}
"""Neutral values of augmentation settings other than 0."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What the sentences are made from."""

    facts: ReportFacts
    metrics: TaskMetrics
    """Of the held-out images."""
    card: DataCard | None = None

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the plan."""
        return dict(self.plan.get(name, {}))

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan as TOML has it."""
        return tomllib.loads(self.facts.plan)


def describe_partitions(record: RunRecord) -> tuple[FactEntry, ...]:
    """Which images were used and how they were divided, a sentence or two on each step, by its name."""
    return to_entries(
        {
            "Pictures used": _describe_subset(record),
            "Missing data": _describe_missing_data(record),
            "Partitions": _describe_splits(record),
            "Separation of partitions": _describe_split_level(record),
            "Duplicates": " ".join(record.card.copies) if record.card and record.card.copies else COPIES_UNKNOWN,
        }
    )


def describe_methods(record: RunRecord) -> tuple[FactEntry, ...]:
    """How the model was made, a sentence or two on each step, by its name."""
    return to_entries(
        {
            "Method": _describe_method(record),
            "Architecture": _describe_model(record),
            "Preparation of pictures": _describe_preprocessing(record),
            "Initial values": _describe_initialization(record),
            "Training": _describe_training(record),
            "Choice of the final model": _describe_selection(record),
            "Several models": _describe_ensembling(record),
            "Measures": _describe_metrics(record),
        }
    )


def _describe_method(record: RunRecord) -> str:
    what = describe_outputs(record.facts.task, len(record.facts.classes))
    return f"Deep learning: a plain Vision Transformer ({record.facts.model}), which answers a picture with {what}."


def _describe_model(record: RunRecord) -> str:
    model = record.section("model")
    size, patch = ("x".join(map(str, model[name])) for name in ("image_size", "patch"))
    return (
        f"{size} pixels of {format_count(model['channels'], 'channel')} in patches of {patch}, "
        f"{format_count(model['depth'], 'block')} of width {model['width']} with "
        f"{format_count(model['heads'], 'head')}, pooling {model['pool']}, "
        f"{format_count(model['outputs'], 'output')}, {record.facts.parameters:,} parameters. "
        "model/config.json has every field."
    )


def _describe_preprocessing(record: RunRecord) -> str:
    image = record.section("image")
    window = image.get("window", "none")
    windowed = "" if window == "none" else f" through the window {window}"
    windowed += " in 16 bits" if image.get("bit_depth", 8) == 16 else ""
    return (
        f"Orientation by EXIF, resized to {image['height']} x {image['width']} pixels ({image['fit']}, "
        f"{image['interpolation']}), {format_count(image['channels'], 'channel')}; values from {image['low']:g} to "
        f"{image['high']:g}{windowed} scaled to 0 to 1, less {_format_numbers(image['mean'])}, divided by "
        f"{_format_numbers(image['std'])}. "
        "One function prepares images in training and in every interface."
    )


def _describe_subset(record: RunRecord) -> str:
    data, card = record.section("data"), record.card
    exclusions = [f"those listed in {Path(data['exclude']).name}"] if data.get("exclude") else []
    exclusions += ["those that cannot be read"] if data.get("skip_bad") else []
    used = f"All images but {' and '.join(exclusions)}." if exclusions else "Every image of the source was used."
    if card is None:
        return used
    return (
        f"{used} {format_count(card.num_images, 'image')} in the partitions at first, {card.num_unreadable:,} of the "
        f"{card.num_checked:,} looked at were unreadable; {sum(one.n for one in record.facts.counts):,} were used."
    )


def _describe_missing_data(record: RunRecord) -> str:
    if record.facts.task in ("classification", "anomaly"):
        return "An image without a class is in no partition."
    cells = {"multilabel": "A label", "regression": "A number", "segmentation": "A pixel"}[record.facts.task]
    uncertain = record.section("data").get("uncertain", "ignore")
    also = f" Uncertain labels: {uncertain}." if record.facts.task == "multilabel" else ""
    return f"{cells} that is not known for an image counts neither in the loss nor in any figure.{also}"


def _describe_splits(record: RunRecord) -> str:
    total = sum(one.n for one in record.facts.counts) or 1
    name = "group" if record.facts.case_pool is None else "case"
    rows = []
    for one in record.facts.counts:
        share = "" if "%" in one.origin else f"{one.n / total:.1%}"
        groups = "" if one.groups is None else f" of {format_count(one.groups, name)}"
        how = ", ".join(text for text in (share, one.origin) if text)
        rows += [f"{one.split} {format_count(one.n, 'picture')}{groups} ({how})"] * bool(one.n)
    return (
        f"{'; '.join(rows)}. Random choices by seed {record.plan.get('seed', 0)}; the run keeps the list (splits.csv)."
    )


def _describe_split_level(record: RunRecord) -> str:
    group = record.section("data").get("group", "")
    if group:
        return f"By {group}: no value of that column is in two partitions."
    return "By image. Images of the same thing may be in several, unless the source parts them itself."


def _describe_initialization(record: RunRecord) -> str:
    if record.facts.start != "from scratch":
        hashed = record.section("finetune").get("weights_sha256")
        return f"Transfer from {record.facts.start}{f' (SHA-256 of its tensors {hashed}...)' if hashed else ''}."
    init = record.section("model")["init"]
    return (
        f"Random values (scheme {init}) from seed "
        f"{record.plan.get('seed', 0)}{_describe_pretraining(record)}{_describe_distillation(record)}."
    )


def _describe_pretraining(record: RunRecord) -> str:
    settings = record.section("pretrain")
    if not settings.get("steps"):
        return ""
    further = f" and of {Path(settings['extra_images']).name}" if settings.get("extra_images") else ""
    return (
        f", then {format_count(settings['steps'], 'step')} of masked autoencoding of the training "
        f"pictures{further}, without labels"
    )


def _describe_distillation(record: RunRecord) -> str:
    settings = record.section("distill")
    if not settings.get("teacher"):
        return ""
    whose = "a small CNN trained first on the same pictures" if settings["teacher"] == "cnn" else settings["teacher"]
    if settings.get("kind") == "features":
        return f", then {format_count(settings['steps'], 'step')} of learning the features of {whose}"
    return f"; in training, answers of {whose} are {settings['alpha']:.0%} of the loss"


def _describe_training(record: RunRecord) -> str:
    recipe, facts = record.section("recipe"), record.facts
    if facts.task == "anomaly":
        return (
            f"No step: the network stays as it is. The features of the patches of "
            f"{format_count(facts.images_seen, 'good image')}, taken in {facts.seconds:,.0f} s, are the bank that a "
            "new image is compared with."
        )
    if not facts.steps:
        return (
            f"No step: the network stays as it is. A linear head was fitted to the features of the training images, "
            f"computed once ({format_count(facts.images_seen, 'picture')} with those for validation"
            f"{' and mirrored ones' * bool(recipe.get('flip'))}, {facts.seconds:,.0f} s)."
        )
    rates = ", ".join(f"{name} {recipe[name]}" for name in OPTIMIZER_SETTINGS if name in recipe)
    neutral = dict.fromkeys(AUGMENTATION_SETTINGS, 0) | NEUTRAL_VALUES
    used = {name: recipe[name] for name, value in neutral.items() if recipe.get(name, value) != value}
    varied = ", ".join(name if value is True else f"{name} {value}" for name, value in used.items())
    folds = record.section("data").get("folds", 0)
    models = f"{folds} models, one for each fold" if folds and facts.held_out_split == "out-of-fold" else "one model"
    return (
        f"{format_count(facts.steps, 'step')} of {recipe['batch_size']} images ({facts.images_seen:,} in all, "
        f"{facts.seconds:,.0f} s), {models}; {rates}; variety: {varied or 'none'}. plan.toml has every setting with "
        "its reason."
    )


def _describe_selection(record: RunRecord) -> str:
    if record.facts.task == "anomaly":
        return "There was none to choose; the limit of an alarm follows from the good images of the bank alone."
    if record.facts.start != "from scratch":
        what = (
            "The way of tuning" if record.facts.steps else "Which features the head reads, and how strongly it is held,"
        )
        return f"{what} was chosen on the validation images, never on the test images."
    mean = " (their running mean)" if record.section("recipe").get("ema_decay") else ""
    return f"The weights{mean} after the last step, whose number was fixed before the first; no figure chose it."


def _describe_ensembling(record: RunRecord) -> str:
    if record.facts.held_out_split == "out-of-fold":
        together = [one for one in record.facts.all_metrics if one.split == "ensemble-on-test"]
        measured = f" All together: {together[0].headline()}." if together else " All together are measured on none."
        return (
            f"The models of all folds answer together on new pictures; the figures here are of single ones.{measured}"
        )
    recipe = record.section("recipe")
    settings = {"mirror": "tta_flip", "shift": "tta_shift", "vertical shift": "tta_shift_vertical"}
    views = [name for name, setting in settings.items() if recipe.get(setting)]
    averaged = f" Answers are averaged over views of the same picture ({', '.join(views)})." if views else ""
    return f"No: one model answers.{averaged}"


def _describe_metrics(record: RunRecord) -> str:
    decided = record.facts.decisions
    rule = f" Thresholds by the rule {decided.rule}, fitted on validation images." if decided.thresholds else ""
    heat = " Probabilities calibrated by temperature on validation images." if decided.temperature else ""
    return f"{', '.join(line.name for line in overall_metric_lines(record.metrics))}.{rule}{heat}"


def _format_numbers(numbers: object) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers) if isinstance(numbers, list | tuple) else f"{numbers}"
