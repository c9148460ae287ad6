"""What a run folder knows of the items of CLAIM, by their numbers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.prediction_tables import TaskPredictions, read_predictions_csv
from ..evaluate.predictions import LABEL_THRESHOLD, ClassificationPredictions, MultilabelPredictions
from ..evaluate.task_metrics import TaskMetrics, compute_metrics
from ..plural import counted
from . import beside, explanations, facts
from .beside import Beside
from .data_card import DataCard, data_card
from .facts import ReportFacts
from .model_card import whole, with_interval

TASKS = {
    "classes": "one of {n} classes for each image",
    "labels": "any of {n} findings for each image",
    "number": "{n} for each image",
}
AUGMENTATION = (
    *("crop_padding", "crop_scale", "flip", "flip_vertical", "transpose", "turn", "stretch", "move", "augment"),
    *("erase", "mixup", "cutmix", "smoothing", "repeats", "keep_patches", "small_size"),
)
RATES = ("optimizer", "muon_rate", "momentum", "rate", "weight_decay", "warmup", "decay", "ema")
AT_REST = {"keep_patches": 1.0, "small_size": 1.0, "repeats": 1, "augment": "none"}
"""Of the others nothing is at rest."""
MOST = 20
"""Classes or findings that an answer lists."""


class Told(NamedTuple):
    """What a run folder holds."""

    known: ReportFacts
    plan: Mapping[str, Any]
    card: DataCard | None
    beside: Beside
    answers: TaskPredictions
    figures: TaskMetrics
    maps: str
    """The method of the maps on the report; empty without any."""

    def part(self, name: str) -> Mapping[str, Any]:
        """A table of the plan."""
        return dict(self.plan.get(name, {}))


def answers(folder: Path) -> dict[int, str]:
    """An answer for every item of which the run knows something.

    Raises:
        UsageError: it is no run folder with a report.
    """
    told = _told(folder)
    found = {
        1: _method(told), 7: _source(told), 9: _preprocessing(told), 10: _subset(told), 13: _missing(told),
        19: _sizes(told), 20: _partitions(told), 21: _level(told), 22: _model(told), 23: _software(told),
        24: _start(told), 25: _training(told), 26: _selection(told), 27: _together(told), 28: _measured(told),
        29: _uncertainty(told), 30: _robustness(told), 31: _explained(told), 33: _flow(told), 34: _groups(told),
        35: _every_partition(told), 36: _accuracy(told), 37: _failures(told), 38: _limits(told),
    }  # fmt: skip
    return {number: text for number, text in found.items() if text}


def _told(folder: Path) -> Told:
    known = facts.read(folder)
    given = read_predictions_csv(folder / "predictions" / f"{known.held_out}.csv", known.task)
    figures = known.measured(known.held_out) or compute_metrics(given)
    plan = tomllib.loads(known.plan)
    kept = explanations.load(folder)
    maps = "" if kept is None else kept.about.method
    return Told(known, plan, data_card(folder, known, figures), beside.read(folder), given, figures, maps)


def _method(told: Told) -> str:
    n = len(told.known.classes)
    what = TASKS[told.known.task].format(n=counted(n, "number") if told.known.task == "number" else n)
    return f"Deep learning: a plain Vision Transformer ({told.known.model}), which answers with {what}."


def _source(told: Told) -> str:
    mark = f", fingerprint {told.card.fingerprint}" if told.card is not None and told.card.fingerprint else ""
    return f"{told.known.source}{mark}."


def _preprocessing(told: Told) -> str:
    image = told.part("image")
    window = image.get("window", "none")
    windowed = "" if window == "none" else f" through the window {window}"
    return (
        f"Orientation by EXIF, resized to {image['height']} x {image['width']} pixels ({image['fit']}, "
        f"{image['interpolation']}), {counted(image['channels'], 'channel')}; values from {image['low']:g} to "
        f"{image['high']:g}{windowed} scaled to 0 to 1, less {_list(image['mean'])}, divided by {_list(image['std'])}. "
        "One function prepares images in training and behind every door."
    )


def _subset(told: Told) -> str:
    data = told.part("data")
    ways = [f"those listed in {data['exclude']}"] if data.get("exclude") else []
    ways += ["those that cannot be read"] if data.get("skip_bad") else []
    return f"All images but {' and '.join(ways)}." if ways else "Every image of the source was used."


def _missing(told: Told) -> str:
    if told.known.task == "classes":
        return "An image without a class is in no partition."
    cells = {"labels": "A label", "number": "A number"}[told.known.task]
    uncertain = told.part("data").get("uncertain", "ignore")
    also = f" Uncertain labels: {uncertain}." if told.known.task == "labels" else ""
    return f"{cells} that is not known for an image counts neither in the loss nor in any figure.{also}"


def _sizes(told: Told) -> str:
    return f"{', '.join(f'{one.n:,} {one.split}' for one in told.known.counts)}."


def _partitions(told: Told) -> str:
    total = sum(one.n for one in told.known.counts) or 1
    rows = [
        f"{one.split} {one.n:,} ({one.n / total:.1%}){f', {one.origin}' if one.origin else ''}"
        for one in told.known.counts
    ]
    return f"{'; '.join(rows)}. Random choices by seed {told.plan.get('seed', 0)}; the run keeps the list (splits.csv)."


def _level(told: Told) -> str:
    group = told.part("data").get("group", "")
    if group:
        return f"By {group}: no value of that column is in two partitions."
    return (
        "By image; the check of the data tells exact and near copies in two partitions. Images of one patient may be "
        "in several, unless the source parts them itself."
    )


def _model(told: Told) -> str:
    model = told.part("model")
    size, patch = ("x".join(map(str, model[name])) for name in ("image_size", "patch"))
    return (
        f"{size} pixels of {counted(model['channels'], 'channel')} in patches of {patch}, "
        f"{counted(model['depth'], 'block')} of width {model['width']} with {counted(model['heads'], 'head')}, pooling "
        f"{model['pool']}, {counted(model['outputs'], 'output')}, {told.known.parameters:,} parameters. "
        "model/config.json has every field."
    )


def _software(told: Told) -> str:
    rows = {one.name: one.text for one in told.known.environment if one.text and one.name != "command"}
    packages = json.loads(rows.pop("versions", "{}"))
    return f"{'; '.join(f'{name} {text}' for name, text in {**packages, **rows}.items())}."


def _start(told: Told) -> str:
    if told.known.start != "from scratch":
        return f"Transfer from {told.known.start}."
    init = told.part("model")["init"]
    return f"Random values (scheme {init}) from seed {told.plan.get('seed', 0)}{_pretraining(told)}{_teacher(told)}."


def _pretraining(told: Told) -> str:
    settings = told.part("pretrain")
    if not settings.get("steps"):
        return ""
    further = f" and of {Path(settings['pictures']).name}" if settings.get("pictures") else ""
    return (
        f", then {settings['steps']:,} steps of masked autoencoding of the training pictures{further}, without labels"
    )


def _teacher(told: Told) -> str:
    settings = told.part("teacher")
    if not settings.get("model"):
        return ""
    whose = "a small CNN trained first on the same pictures" if settings["model"] == "cnn" else settings["model"]
    if settings.get("kind") == "features":
        return f", then {settings['steps']:,} steps of learning the features of {whose}"
    return f"; in training, answers of {whose} are {settings['weight']:.0%} of the loss"


def _training(told: Told) -> str:
    recipe, known = told.part("recipe"), told.known
    rates = ", ".join(f"{name} {recipe[name]}" for name in RATES if name in recipe)
    moved = [name for name in AUGMENTATION if recipe.get(name, AT_REST.get(name, 0)) != AT_REST.get(name, 0)]
    varied = ", ".join(name if recipe[name] is True else f"{name} {recipe[name]}" for name in moved)
    folds = told.part("data").get("folds", 0)
    models = f"{folds} models, one for each fold" if folds and known.held_out == "out-of-fold" else "one model"
    return (
        f"{known.steps:,} steps of {recipe['batch']} images ({known.images_seen:,} in all, {known.seconds:,.0f} s), "
        f"{models}; {rates}; variety: {varied or 'none'}. plan.toml has every setting with its reason."
    )


def _selection(told: Told) -> str:
    if told.known.start != "from scratch":
        return "The way of tuning was chosen on the validation images, never on the test images."
    mean = " (their running mean)" if told.part("recipe").get("ema") else ""
    return f"The weights{mean} after the last step, whose number was fixed before the first; no figure chose it."


def _together(told: Told) -> str:
    if told.known.held_out == "out-of-fold":
        return "The models of all folds answer together on new pictures; the figures here are of single ones."
    views = [name for name in ("mirror", "shift") if told.part("recipe").get(name)]
    told_views = f" Answers are averaged over views of the same picture ({', '.join(views)})." if views else ""
    return f"No: one model answers.{told_views}"


def _measured(told: Told) -> str:
    names = [line.name for line in whole(told.figures)]
    decided = told.known.decisions
    rule = f" Thresholds by the rule {decided.rule}, fitted on validation images." if decided.thresholds else ""
    heat = " Probabilities calibrated by temperature on validation images." if decided.temperature else ""
    return f"{', '.join(names)}; and of each class or finding what item 36 lists.{rule}{heat}"


def _uncertainty(told: Told) -> str:
    drawn = "whole groups were drawn" if told.figures.groups is not None else "images were drawn"
    return (
        "95 % intervals: Wilson's for shares, DeLong's for areas under the ROC curve, else the percentile bootstrap, "
        f"in which {drawn}."
    )


def _robustness(told: Told) -> str:
    found = told.beside.robustness
    if found is None:
        return ""
    worst = found.worst[0]
    return (
        f"{found.figure} {found.clean:.3f} on clean images, {found.mean:.3f} in the mean of {len(found.disturbances)} "
        f"kinds of disturbance ({found.suite}); worst under {worst.kind}. All of them are in the report."
    )


def _explained(told: Told) -> str:
    if not told.maps:
        return ""
    return f"Maps over the image by {told.maps}, shown in the report for mistakes and right answers alike."


def _flow(told: Told) -> str:
    if told.card is None:
        return ""
    left = sum(one.n for one in told.known.counts)
    there, bad = counted(told.card.pictures, "image"), f"{told.card.bad:,} of the {told.card.looked_at:,} looked at"
    return f"{there} in the partitions at first, {bad} were unreadable; {left:,} were used."


def _groups(told: Told) -> str:
    found = told.beside.slices
    if found is None:
        return ""
    return f"Figures by {', '.join(column.name for column in found.columns)} stand in the report and in slices.json."


def _every_partition(told: Told) -> str:
    return " ".join(f"{one.headline()}." for one in told.known.figures) or f"{told.figures.headline()}."


def _accuracy(told: Told) -> str:
    figures = told.figures
    overall = "; ".join(_told_with(*line) for line in whole(figures))
    each: list[str] = []
    if isinstance(figures, MultilabelMetrics):
        each = [
            f"{one.name}: sensitivity {with_interval(one.sensitivity, one.sensitivity_interval)}, specificity "
            f"{with_interval(one.specificity, one.specificity_interval)}"
            for one in figures.per_label[:MOST]
        ]
    elif isinstance(figures, ClassificationMetrics):
        each = [
            f"{one.name}: sensitivity {with_interval(one.recall, one.recall_interval)}, positive predictive value "
            f"{with_interval(one.precision, one.precision_interval)}"
            for one in figures.per_class[:MOST]
        ]
    else:
        each = [
            f"{one.name}: mean absolute error {_number(one.mae)}"
            + ("" if one.mae_interval is None else f" ({' to '.join(map(_number, one.mae_interval))})")
            for one in figures.per_column[:MOST]
        ]
    return f"On {counted(figures.n, 'image')} of {figures.split}, at their prevalence: {'; '.join([overall, *each])}."


def _failures(told: Told) -> str:
    wrong = _wrong(told.answers)
    if wrong is None:
        return "The largest errors are shown in the report."
    silent = int(told.answers.silent.sum())
    return (
        f"{int(wrong.sum()):,} of {counted(len(wrong), 'image')} got a wrong answer, {silent:,} are left unanswered; "
        f"the report shows the worst with their maps, and predictions/{told.figures.split}.csv lists all."
    )


def _wrong(given: TaskPredictions) -> np.ndarray | None:
    """bool [n] of the images whose truth is known; None where answers are numbers."""
    if isinstance(given, ClassificationPredictions) and given.targets is not None:
        known = given.targets >= 0
        return np.asarray(given.labels[known] != given.targets[known])
    if isinstance(given, MultilabelPredictions) and given.targets is not None:
        wrong = ((given.targets >= LABEL_THRESHOLD) != given.labels) & given.known  # [n, K]
        return np.asarray(wrong[given.known.any(1)].any(1))
    return None


def _limits(told: Told) -> str:
    found = [f"Measured on {counted(told.figures.n, 'image')} of one source; this run has tested no other"]
    if isinstance(told.figures, MultilabelMetrics) and told.figures.rare:
        found.append(f"too few known images, so in no mean: {', '.join(told.figures.rare[:MOST])}")
    if told.figures.groups is None:
        found.append("images were taken as independent of each other")
    return f"{'; '.join(found)}."


def _told_with(name: str, value: str, interval: str) -> str:
    return f"{name} {value}" if interval == "–" else f"{name} {value} ({interval})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _list(numbers: object) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers) if isinstance(numbers, list | tuple) else f"{numbers}"
