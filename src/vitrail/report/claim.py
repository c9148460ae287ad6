"""CLAIM appendix for papers on medical imaging: the checklist, answered from the files of a run.

`claim.md` is rewritten each time. Answers that only the authors know are read from `claim.toml` beside it, which is
created with the open questions and never overwritten; they follow the run's own answers.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedFileError
from ..evaluate.anomaly_metrics import AnomalyMetrics
from ..evaluate.metrics import ClassificationMetrics
from ..evaluate.multilabel_metrics import MultilabelMetrics
from ..evaluate.predictions import RegressionPredictions, TaskPredictions
from ..evaluate.segmentation_metrics import SegmentationMetrics
from ..evaluate.task_metrics import TaskMetrics
from ..files import atomic
from ..formatting import format_count
from . import extra_findings, saliency
from .cards import DataCard, format_number, format_with_interval, overall_metric_lines, read_data_card
from .decision_section import decide_run
from .extra_findings import ExtraFindings
from .image_selection import wrong_and_known_masks
from .provenance import ReportFacts

CLAIM_PAGE, AUTHOR_ANSWERS_FILE = "claim.md", "claim.toml"
AUTHOR_ANSWERS_HEADER = """# What this run does not know, for {page}: an answer in quotes to each number; three quotes \
for several lines.
# Empty ones stay questions there. Write it again with: vitrail report RUN --claim
"""


class ClaimAppendix(NamedTuple):
    """The written page and its counts."""

    page: Path
    num_run_answers: int
    """Items that the run answers."""
    num_author_answers: int
    """Items that claim.toml answers or adds to."""
    num_open: int
    """Items without an answer."""


def build_claim_appendix(folder: Path) -> ClaimAppendix:
    """Write claim.md of a run folder, and claim.toml if there is none.

    Raises:
        UsageError: no run folder with a report.
        DamagedFileError: claim.toml is invalid.
    """
    known, own = claim_answers_from_run(folder), _read_author_answers(folder)
    rows = [_format_item(item, known.get(item.number, ""), own.get(item.number, "")) for item in CLAIM_ITEMS]
    unanswered = [item for item in CLAIM_ITEMS if item.number not in known and item.number not in own]
    counts = (
        f"Of {len(CLAIM_ITEMS)} items {len(known)} are answered from the files of the run and {len(own)} by its "
        f"authors ({AUTHOR_ANSWERS_FILE}); {len(unanswered)} are open. *Open* marks what authors have to add."
    )
    lines = ["# CLAIM: the checklist for artificial intelligence in medical imaging", "", counts]
    for index, item in enumerate(CLAIM_ITEMS):
        if not index or item.part != CLAIM_ITEMS[index - 1].part:
            lines += ["", f"## {item.part}", "", "| | item | answer |", "|---:|---|---|"]
        lines.append(rows[index])
    atomic.write_text(folder / CLAIM_PAGE, "\n".join(lines) + "\n")
    if not (folder / AUTHOR_ANSWERS_FILE).exists():
        questions = "".join(
            f'{item.number} = ""  # {item.topic}: {item.question}\n' for item in CLAIM_ITEMS if item.question
        )
        atomic.write_text(folder / AUTHOR_ANSWERS_FILE, AUTHOR_ANSWERS_HEADER.format(page=CLAIM_PAGE) + questions)
    return ClaimAppendix(folder / CLAIM_PAGE, len(known), len(own), len(unanswered))


def _read_author_answers(folder: Path) -> Mapping[int, str]:
    """The authors' answers by item number; empty answers are left out."""
    path = folder / AUTHOR_ANSWERS_FILE
    if not path.is_file():
        return {}
    try:
        answers = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DamagedFileError(f'{path} must be TOML, such as 5 = "Retrospective.". {error}.') from error
    numbers = {str(item.number) for item in CLAIM_ITEMS}
    for name, text in answers.items():
        if name not in numbers or not isinstance(text, str):
            raise DamagedFileError(
                f"{path} must hold numbers of items, 1 to {len(CLAIM_ITEMS)}, each with text in quotes. Got {name} = "
                f"{text!r}."
            )
    return {int(name): " ".join(text.split()) for name, text in answers.items() if text.strip()}


def _format_item(item: ClaimItem, run_answers: str, author_answers: str) -> str:
    """A table row: the run's answer, then the authors' answer or the open question."""
    open_question = f"*Open*: {item.question}" if item.question and not author_answers else ""
    cell = " ".join(text for text in (run_answers, author_answers, open_question) if text).replace("|", "\\|")
    return f"| {item.number} | {item.topic} | {cell} |"


# -- Answers from the run folder

TASK_WORDS = {
    "classification": "one of {n} classes for each image",
    "multilabel": "any of {n} findings for each image",
    "regression": "{n} for each image",
    "anomaly": "good or defect for each image, by a score of how unlike good ones it is",
    "segmentation": "one of {n} classes for each pixel",
}
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
NEUTRAL_VALUES = {"patch_keep_rate": 1.0, "progressive_size": 1.0, "repeated_augmentation": 1, "auto_augment": "none"}
"""Neutral values of augmentation settings other than 0."""
MAX_LISTED = 20
"""Classes or findings listed in an answer."""


class RunRecord(NamedTuple):
    """The files of a run that the answers use."""

    facts: ReportFacts
    plan: Mapping[str, Any]
    card: DataCard | None
    extra_findings: ExtraFindings
    predictions: TaskPredictions
    metrics: TaskMetrics
    maps: str
    """Method of the report's attribution maps; empty without any."""
    map_check: str = ""
    """What the check of the method found."""

    def plan_section(self, name: str) -> Mapping[str, Any]:
        """A section of the plan."""
        return dict(self.plan.get(name, {}))


def claim_answers_from_run(folder: Path) -> dict[int, str]:
    """Answers by item number, for the items that the run can answer.

    Raises:
        UsageError: no run folder with a report.
    """
    decided = decide_run(folder)
    facts, predictions = decided.facts, decided.predictions
    metrics = decided.metrics
    explanations = saliency.load_explanations(folder)
    record = RunRecord(
        facts=facts,
        plan=tomllib.loads(facts.plan),
        card=read_data_card(folder, facts, metrics),
        extra_findings=extra_findings.read_extra_findings(folder),
        predictions=predictions,
        metrics=metrics,
        maps="" if explanations is None or not len(explanations.rows) else explanations.about.method,
        map_check="" if explanations is None else explanations.about.checked,
    )
    answers = {
        1: _describe_method(record),
        7: _describe_source(record),
        9: _describe_preprocessing(record),
        10: _describe_subset(record),
        13: _describe_missing_data(record),
        19: f"{', '.join(f'{one.n:,} {one.split}' for one in facts.counts)}.",
        20: _describe_partitions(record),
        21: _describe_split_level(record),
        22: _describe_model(record),
        23: _describe_software(record),
        24: _describe_initialization(record),
        25: _describe_training(record),
        26: _describe_selection(record),
        27: _describe_ensembling(record),
        28: _describe_metrics(record),
        29: _describe_uncertainty(record),
        30: _describe_robustness(record),
        31: _describe_explanations(record),
        33: _describe_image_flow(record),
        34: _describe_subgroups(record),
        35: " ".join(f"{one.headline()}." for one in facts.all_metrics) or f"{metrics.headline()}.",
        36: _describe_accuracy(record),
        37: _describe_failures(record),
        38: _describe_limitations(record),
    }
    return {number: text for number, text in answers.items() if text}


def _describe_method(record: RunRecord) -> str:
    n = len(record.facts.classes)
    what = TASK_WORDS[record.facts.task].format(n=format_count(n, "number") if record.facts.task == "regression" else n)
    return f"Deep learning: a plain Vision Transformer ({record.facts.model}), which answers with {what}."


def _describe_source(record: RunRecord) -> str:
    mark = f", fingerprint {record.card.fingerprint}" if record.card is not None and record.card.fingerprint else ""
    return f"{record.facts.source}{mark}."


def _describe_preprocessing(record: RunRecord) -> str:
    image = record.plan_section("image")
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
    data = record.plan_section("data")
    exclusions = [f"those listed in {data['exclude']}"] if data.get("exclude") else []
    exclusions += ["those that cannot be read"] if data.get("skip_bad") else []
    return f"All images but {' and '.join(exclusions)}." if exclusions else "Every image of the source was used."


def _describe_missing_data(record: RunRecord) -> str:
    if record.facts.task in ("classification", "anomaly"):
        return "An image without a class is in no partition."
    cells = {"multilabel": "A label", "regression": "A number", "segmentation": "A pixel"}[record.facts.task]
    uncertain = record.plan_section("data").get("uncertain", "ignore")
    also = f" Uncertain labels: {uncertain}." if record.facts.task == "multilabel" else ""
    return f"{cells} that is not known for an image counts neither in the loss nor in any figure.{also}"


def _describe_partitions(record: RunRecord) -> str:
    total = sum(one.n for one in record.facts.counts) or 1
    rows = [
        f"{one.split} {one.n:,} ({one.n / total:.1%}){f', {one.origin}' if one.origin else ''}"
        for one in record.facts.counts
    ]
    return (
        f"{'; '.join(rows)}. Random choices by seed {record.plan.get('seed', 0)}; the run keeps the list (splits.csv)."
    )


def _describe_split_level(record: RunRecord) -> str:
    group = record.plan_section("data").get("group", "")
    if group:
        return f"By {group}: no value of that column is in two partitions."
    card = record.card
    partly = card is not None and card.num_checked < card.num_images
    seen = (
        f" (of {card.num_checked:,} of {format_count(card.num_images, 'image')})" if card is not None and partly else ""
    )
    return (
        f"By image; the check of the data{seen} tells exact and near copies in two partitions. Images of one patient "
        "may be in several, unless the source parts them itself."
    )


def _describe_model(record: RunRecord) -> str:
    model = record.plan_section("model")
    size, patch = ("x".join(map(str, model[name])) for name in ("image_size", "patch"))
    return (
        f"{size} pixels of {format_count(model['channels'], 'channel')} in patches of {patch}, "
        f"{format_count(model['depth'], 'block')} of width {model['width']} with "
        f"{format_count(model['heads'], 'head')}, pooling {model['pool']}, "
        f"{format_count(model['outputs'], 'output')}, {record.facts.parameters:,} parameters. "
        "model/config.json has every field."
    )


def _describe_software(record: RunRecord) -> str:
    rows = {one.name: one.text for one in record.facts.environment if one.text and one.name != "command"}
    packages = json.loads(rows.pop("versions", "{}"))
    return f"{'; '.join(f'{name} {text}' for name, text in {**packages, **rows}.items())}."


def _describe_initialization(record: RunRecord) -> str:
    if record.facts.start != "from scratch":
        return f"Transfer from {record.facts.start}."
    init = record.plan_section("model")["init"]
    return (
        f"Random values (scheme {init}) from seed "
        f"{record.plan.get('seed', 0)}{_describe_pretraining(record)}{_describe_distillation(record)}."
    )


def _describe_pretraining(record: RunRecord) -> str:
    settings = record.plan_section("pretrain")
    if not settings.get("steps"):
        return ""
    further = f" and of {Path(settings['extra_images']).name}" if settings.get("extra_images") else ""
    return (
        f", then {format_count(settings['steps'], 'step')} of masked autoencoding of the training "
        f"pictures{further}, without labels"
    )


def _describe_distillation(record: RunRecord) -> str:
    settings = record.plan_section("distill")
    if not settings.get("teacher"):
        return ""
    whose = "a small CNN trained first on the same pictures" if settings["teacher"] == "cnn" else settings["teacher"]
    if settings.get("kind") == "features":
        return f", then {format_count(settings['steps'], 'step')} of learning the features of {whose}"
    return f"; in training, answers of {whose} are {settings['alpha']:.0%} of the loss"


def _describe_training(record: RunRecord) -> str:
    recipe, facts = record.plan_section("recipe"), record.facts
    rates = ", ".join(f"{name} {recipe[name]}" for name in OPTIMIZER_SETTINGS if name in recipe)
    neutral = dict.fromkeys(AUGMENTATION_SETTINGS, 0) | NEUTRAL_VALUES
    used = {name: recipe[name] for name, value in neutral.items() if recipe.get(name, value) != value}
    varied = ", ".join(name if value is True else f"{name} {value}" for name, value in used.items())
    folds = record.plan_section("data").get("folds", 0)
    models = f"{folds} models, one for each fold" if folds and facts.held_out_split == "out-of-fold" else "one model"
    return (
        f"{format_count(facts.steps, 'step')} of {recipe['batch_size']} images ({facts.images_seen:,} in all, "
        f"{facts.seconds:,.0f} s), {models}; {rates}; variety: {varied or 'none'}. plan.toml has every setting with "
        "its reason."
    )


def _describe_selection(record: RunRecord) -> str:
    if record.facts.start != "from scratch":
        return "The way of tuning was chosen on the validation images, never on the test images."
    mean = " (their running mean)" if record.plan_section("recipe").get("ema_decay") else ""
    return f"The weights{mean} after the last step, whose number was fixed before the first; no figure chose it."


def _describe_ensembling(record: RunRecord) -> str:
    if record.facts.held_out_split == "out-of-fold":
        together = [one for one in record.facts.all_metrics if one.split == "ensemble-on-test"]
        measured = f" All together: {together[0].headline()}." if together else " All together are measured on none."
        return (
            f"The models of all folds answer together on new pictures; the figures here are of single ones.{measured}"
        )
    recipe = record.plan_section("recipe")
    settings = {"mirror": "tta_flip", "shift": "tta_shift", "vertical shift": "tta_shift_vertical"}
    views = [name for name, setting in settings.items() if recipe.get(setting)]
    averaged = f" Answers are averaged over views of the same picture ({', '.join(views)})." if views else ""
    return f"No: one model answers.{averaged}"


def _describe_metrics(record: RunRecord) -> str:
    names = [line.name for line in overall_metric_lines(record.metrics)]
    decided = record.facts.decisions
    rule = f" Thresholds by the rule {decided.rule}, fitted on validation images." if decided.thresholds else ""
    heat = " Probabilities calibrated by temperature on validation images." if decided.temperature else ""
    return f"{', '.join(names)}; and of each class or finding what item 36 lists.{rule}{heat}"


def _describe_uncertainty(record: RunRecord) -> str:
    if record.metrics.groups is None:
        return (
            "95 % intervals: Wilson's for shares, Newcombe's score interval for areas under the ROC curve, Gaffke's "
            "for log loss and Brier score, else the percentile bootstrap, in which images were drawn."
        )
    return (
        f"95 % intervals, by {format_count(record.metrics.groups, 'group')}: Wilson's for shares and Newcombe's score "
        "interval for areas under the ROC curve, in which groups and not images count; Gaffke's for log loss and Brier "
        "score, with a weight for each group; else the percentile bootstrap, in which whole groups were drawn."
    )


def _describe_robustness(record: RunRecord) -> str:
    report = record.extra_findings.robustness
    if report is None:
        return ""
    return (
        f"{report.figure} {report.clean:.3f} on clean images, {report.mean:.3f} on average over "
        f"{len(report.disturbances)} kinds of disturbance ({report.suite}); worst under {report.worst[0].kind}. All of "
        "them are in the report."
    )


def _describe_explanations(record: RunRecord) -> str:
    if not record.maps:
        return f"No maps are shown. {record.map_check}" if record.map_check else ""
    shown = f"Maps over the image by {record.maps}, shown in the report for mistakes and right answers alike."
    return f"{shown} {record.map_check}".strip()


def _describe_image_flow(record: RunRecord) -> str:
    if record.card is None:
        return ""
    left = sum(one.n for one in record.facts.counts)
    return (
        f"{format_count(record.card.num_images, 'image')} in the partitions at first, "
        f"{record.card.num_unreadable:,} of the {record.card.num_checked:,} looked at were unreadable; "
        f"{left:,} were used."
    )


def _describe_subgroups(record: RunRecord) -> str:
    subgroups = record.extra_findings.slices
    if subgroups is None:
        return ""
    return f"Figures by {', '.join(column.name for column in subgroups.columns)} are in the report and in slices.json."


def _describe_accuracy(record: RunRecord) -> str:
    metrics = record.metrics
    parts = [
        f"{name} {value}" if interval == "–" else f"{name} {value} ({interval})"
        for name, value, interval in overall_metric_lines(metrics)
    ]
    if isinstance(metrics, MultilabelMetrics):
        parts += [
            f"{one.name}: sensitivity {format_with_interval(one.sensitivity, one.sensitivity_interval)}, specificity "
            f"{format_with_interval(one.specificity, one.specificity_interval)}"
            for one in metrics.per_label[:MAX_LISTED]
        ]
    elif isinstance(metrics, ClassificationMetrics):
        parts += [
            f"{one.name}: sensitivity {format_with_interval(one.recall, one.recall_interval)}, positive predictive "
            f"value {format_with_interval(one.precision, one.precision_interval)}"
            for one in metrics.per_class[:MAX_LISTED]
        ]
    elif isinstance(metrics, AnomalyMetrics):
        parts += [f"{one.name}: recall {one.recall:.1%}" for one in metrics.per_type[:MAX_LISTED]]
    elif isinstance(metrics, SegmentationMetrics):
        parts += [
            f"{one.name}: IoU {format_with_interval(one.iou, one.iou_interval, format_number)}"
            for one in metrics.per_class[:MAX_LISTED]
        ]
    else:
        parts += [
            f"{one.name}: mean absolute error {format_with_interval(one.mae, one.mae_interval, format_number)}"
            for one in metrics.per_column[:MAX_LISTED]
        ]
    return f"On {format_count(metrics.n, 'image')} of {metrics.split}, at their prevalence: {'; '.join(parts)}."


def _describe_failures(record: RunRecord) -> str:
    if isinstance(record.predictions, RegressionPredictions) or record.predictions.targets is None:
        return "The largest errors are shown in the report."
    mask, known = wrong_and_known_masks(record.predictions)
    wrong = mask[known]
    abstained = int(record.predictions.abstained.sum())
    return (
        f"{int(wrong.sum()):,} of {format_count(len(wrong), 'image')} got a wrong answer, {abstained:,} are left "
        f"unanswered; the report shows the worst with their maps, and predictions/{record.metrics.split}.csv lists all."
    )


def _describe_limitations(record: RunRecord) -> str:
    limits = [f"Measured on {format_count(record.metrics.n, 'image')} of one source; this run has tested no other"]
    if isinstance(record.metrics, MultilabelMetrics) and record.metrics.rare:
        limits.append(f"too few known images, so left out of the means: {', '.join(record.metrics.rare[:MAX_LISTED])}")
    if record.metrics.groups is None:
        limits.append("images were taken as independent of each other")
    return f"{'; '.join(limits)}."


def _format_numbers(numbers: object) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers) if isinstance(numbers, list | tuple) else f"{numbers}"


# -- The 42 items of CLAIM in our own words
#
# Source: Mongan, Moy and Kahn 2020, "Checklist for Artificial Intelligence in Medical Imaging (CLAIM)", Radiology:
# Artificial Intelligence 2(2); numbers as there. The update of 2024 (Tejani et al.) has the same items under other
# numbers.


class ClaimItem(NamedTuple):
    """One item of the checklist."""

    number: int
    part: str
    topic: str
    question: str = ""
    """What the authors must add; empty if the run answers the whole item."""


# fmt: off
CLAIM_ITEMS = tuple(ClaimItem(number, *words) for number, words in enumerate((
    ("Title and abstract", "Named as a study of AI, with the kind of method"),
    ("Title and abstract", "A structured summary",
        "Write the abstract: design, methods, results, conclusion."),
    ("Introduction", "Background, intended use and clinical role",
        "What is known, who would use the model, at which moment of care, and what would follow from an answer?"),
    ("Introduction", "Aims and hypotheses",
        "What was the study to find out, stated before the figures were seen?"),
    ("Study design", "Prospective or retrospective",
        "Were the pictures collected for this study, or before it?"),
    ("Study design", "The goal of the study",
        "To make a model, to explore, to show feasibility, or that it is no worse than something?"),
    ("Data", "Sources of the data",
        "Which institutions, dates and machines do the pictures come from, and who may have them?"),
    ("Data", "Who was eligible",
        "How, where and when were patients and studies found, and by which criteria were they in or out?"),
    ("Data", "What was done to the pictures before the model"),
    ("Data", "Whether only a part of the data was used"),
    ("Data", "What each label and variable means",
        "Define every finding, with the common data element or code if there is one."),
    ("Data", "How patients were made unrecognisable",
        "How were names, dates and burnt-in letters removed, and who checked it?"),
    ("Data", "What was done about missing data"),
    ("Ground truth", "What counts as the truth",
        "What is the reference standard, in enough detail to do it again?"),
    ("Ground truth", "Why that",
        "Which other standards exist, and why was this one taken?"),
    ("Ground truth", "Who said so",
        "How many readers, with what training and experience, saw what?"),
    ("Ground truth", "With which tools",
        "Which software, display and instructions did the readers have?"),
    ("Ground truth", "How far readers agree",
        "How much do readers differ from each other and from themselves, and how were differences settled?"),
    ("Partitions", "How many cases, and why so many",
        "How was the number of cases decided?"),
    ("Partitions", "How cases were assigned"),
    ("Partitions", "At which level partitions are apart"),
    ("Model", "The model in full"),
    ("Model", "Software and versions"),
    ("Model", "What its parameters began with"),
    ("Training", "How it was trained"),
    ("Training", "How the final model was chosen"),
    ("Training", "Whether several models answer together"),
    ("Evaluation", "Which figures were measured"),
    ("Evaluation", "How uncertainty was measured"),
    ("Evaluation", "How robust it is",
        "Disturb the pictures: vitrail evaluate RUN --corruptions films --keep."),
    ("Evaluation", "How answers are explained, and how that was checked",
        "Measure how true the maps are (vitrail explain RUN --faithfulness) and state it."),
    ("Evaluation", "Tested on data from elsewhere",
        "Test it on images of another place (vitrail evaluate RUN ELSEWHERE) and state the figures."),
    ("Results", "The flow of cases",
        "Draw the flow of patients before the pictures reached the source."),
    ("Results", "Who is in each partition",
        "Give age, sex, disease and severity of each partition."),
    ("Results", "Figures on every partition"),
    ("Results", "Accuracy with its precision"),
    ("Results", "An analysis of failures",
        "Look at the pictures and say what the failures have in common."),
    ("Discussion", "Limitations",
        "Which biases of selection, labels and place remain?"),
    ("Discussion", "What follows for practice",
        "What would have to happen before it is used, and in which role?"),
    ("Other", "Registration",
        "Number and name of the registry."),
    ("Other", "The protocol",
        "Where can the full protocol be read?"),
    ("Other", "Funding",
        "Who paid, and what had they to say?"),
), 1))
# fmt: on
