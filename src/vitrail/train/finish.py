"""After the last step: answers for the held-out pictures, figures, the portable bundle and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from ..checkpoints import bundle
from ..data.loader import Pictures
from ..errors import DataError
from ..evaluate.answers import Answers, answers_of
from ..evaluate.collect import collect
from ..evaluate.label_metrics import LabelMetrics
from ..evaluate.measuring import Figures, measured
from ..evaluate.metrics import Metrics
from ..evaluate.number_metrics import NumberMetrics
from ..evaluate.scaling import KEY, Scaling
from ..evaluate.table import path_of
from ..files import atomic
from ..model.vit import ViT, parameter_count
from ..report import choice, facts, page, thumbnails
from .dataset import Dataset, class_of
from .events import Event, Finished, Note
from .loop import Learner
from .plan import Plan
from .planning.planner import attention_paths
from .prelude import PRELUDES
from .prelude import spent as spent_before
from .run import RunFolder, environment
from .stepping.optimizer import averaged
from .transfer import begin, tried

THUMBNAILS = 12
EVALUATION_BATCH = 250


@dataclass(frozen=True)
class Spent:
    """What the training took."""

    seconds: float
    images_seen: int


def conclude(
    run: RunFolder, plan: Plan, reasons: Mapping[str, str], learner: Learner, dataset: Dataset
) -> Iterator[Event]:
    """Evaluate a trained learner on the held-out pictures and write everything that the run folder still lacks.

    Raises:
        DataError: a held-out picture cannot be read any more; the model is in the run folder by then.
    """
    spent = _spent(run)
    write_bundle(run, learner, plan, dataset)
    yield Note("Evaluating on the held-out pictures.")
    figures, held_out, pictures = [], None, None
    for split in ("val", "test"):
        if not len(dataset.splits[split]):
            continue
        try:
            shown = dataset.pictures(split, plan.image, plan.compute.workers)
            said = answers(learner, plan, dataset, split, shown)
        except DataError as error:
            raise DataError(
                f"{error} The trained model is in {run.bundle}; put the picture back, or remove it, and let the "
                f"evaluation and the report follow with: vitrail train --resume {run.path}"
            ) from error
        write_predictions(run, said)
        if not _anything_known(dataset, split):
            yield Note(f"Nothing is known of the {split} pictures, so they have answers and no figures.")
            continue
        held_out, pictures = said, shown
        figures.append(write_figures(run, said, dataset.scaling))
    if held_out is None or pictures is None:
        why = "Nothing could be measured" if run.predictions.is_dir() else "No pictures were held out"
        yield Note(f"{why}, so there is no report. The model is in {run.bundle}.")
        return
    write_report(run, plan, reasons, dataset, held_out, pictures, tuple(figures), spent)
    yield Finished(run.path, run.path / page.NAME, figures[-1], spent.seconds)


def _spent(run: RunFolder) -> Spent:
    """Seconds and pictures of all steps: each recorded row stands for the steps since the one before it."""
    seconds, images, before = 0.0, 0.0, 0.0
    for row in run.rows():
        if "seconds" in row:
            steps = row["step"] - before
            seconds, images, before = seconds + steps * row["seconds"], images + steps * row["images"], row["step"]
    for name in (*PRELUDES, begin.NAME):
        before_seconds, before_images = spent_before(run.rows(), name)
        seconds, images = seconds + before_seconds, images + before_images
    return Spent(seconds, round(images))


def answers(learner: Learner, plan: Plan, dataset: Dataset, split: str, pictures: Pictures) -> Answers:
    """The model's answers to a whole split, in the split's order."""
    rows = dataset.splits[split]
    with averaged(learner.model, learner.average):
        logits = collect(
            learner.model, pictures, rows, plan.image, EVALUATION_BATCH, plan.compute.device,
            plan.compute.number_format, plan.recipe.mirror, dataset.source.task,
        )  # fmt: skip
    source = dataset.source
    names = [(path_of(source.pictures[row]), source.ids[row]) for row in rows.tolist()]
    targets = class_of(source, rows) if source.task == "classes" else source.targets[rows]
    return answers_of(source.task, logits, source.classes, dataset.scaling, names, split, targets)


def write_bundle(run: RunFolder, learner: Learner, plan: Plan, dataset: Dataset) -> None:
    """Keep the trained model in the portable form; a bundle that is there already is that of this run's end."""
    if run.bundle.exists():
        return
    assert isinstance(learner.model, ViT)
    training, inference = attention_paths(plan)
    scaling = dataset.scaling
    info = {
        "model_name": plan.model_name,
        "number_format": plan.compute.number_format,
        "mirror": plan.recipe.mirror,
        "attention": {"training": training, "inference": inference},
        "data": {"source": dataset.source.name, "fingerprint": dataset.source.fingerprint()},
        "steps": plan.recipe.steps,
        "seed": plan.seed,
        **({} if scaling is None else {KEY: scaling.to_json()}),
    }
    with averaged(learner.model, learner.average):
        bundle.save(run.bundle, learner.model, plan.image, dataset.source.task, dataset.source.classes, info)


def write_report(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    dataset: Dataset,
    held_out: Answers,
    pictures: Pictures,
    figures: tuple[Figures, ...],
    spent: Spent,
) -> None:
    """Thumbnails, report.json and report.html."""
    chosen = choice.choose(held_out, THUMBNAILS)
    images = pictures.take(dataset.splits[held_out.split][chosen]).permute(0, 2, 3, 1).numpy()
    thumbnails.save(run.path, images, chosen)
    facts.write(run.path, _facts(run, plan, reasons, dataset, figures, spent))
    page.build(run.path)


def _facts(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    dataset: Dataset,
    figures: tuple[Figures, ...],
    spent: Spent,
) -> facts.ReportFacts:
    official = dataset.source.splits
    counts = tuple(
        facts.SplitCount(split=name, n=len(rows), origin=_origin(name, official, plan))
        for name, rows in dataset.splits.items()
    )
    around = {name: value if isinstance(value, str) else json.dumps(value) for name, value in environment().items()}
    return facts.ReportFacts(
        title=f"{dataset.source.name}: {plan.model_name}",
        source=dataset.source.name,
        counts=counts,
        classes=dataset.source.classes,
        model=plan.model_name,
        parameters=parameter_count(plan.model),
        seconds=spent.seconds,
        steps=plan.recipe.steps,
        images_seen=spent.images_seen,
        images_per_second=spent.images_seen / max(spent.seconds, 1e-9),
        command=f"vitrail train --plan {run.plan_file}",
        plan=run.plan_file.read_text(encoding="utf-8"),
        created=f"{datetime.now():%Y-%m-%d %H:%M}",
        reasons=facts.entries(dict(reasons)),
        environment=facts.entries(around),
        task=dataset.source.task,
        metrics=tuple(each for each in figures if isinstance(each, Metrics)),
        label_metrics=tuple(each for each in figures if isinstance(each, LabelMetrics)),
        number_metrics=tuple(each for each in figures if isinstance(each, NumberMetrics)),
        notes=(*dataset.source.notes, *dataset.notes, *tried.sentences(run.start_table)),
        start=plan.start.weights if plan.start.from_checkpoint else "from scratch",
    )


def _origin(name: str, official: Mapping[str, object], plan: Plan) -> str:
    data = plan.data
    if data.folds and name == ("val" if "test" in official else "test"):
        return f"fold {data.fold} of 0..{data.folds - 1}, seed {plan.seed}"
    published = set(official) & {"test"} if data.folds else set(official)
    if name in published and not (name == "train" and "val" not in published):
        return "official"
    share = {"val": data.val_fraction, "test": data.test_fraction}.get(name)
    return "what is left" if share is None else f"{share:.1%}, stratified, seed {plan.seed}"


def write_predictions(run: RunFolder, said: Answers) -> None:
    """Store a split's answers."""
    run.predictions.mkdir(exist_ok=True)
    said.write_csv(run.predictions / f"{said.split}.csv")


def write_figures(run: RunFolder, said: Answers, scaling: Scaling | None) -> Figures:
    """Measure a split's answers and store the figures."""
    figures = measured(said, scaling)
    atomic.write_json(run.path / f"metrics-{figures.split}.json", figures.to_json())
    return figures


def _anything_known(dataset: Dataset, split: str) -> bool:
    return dataset.source.task == "classes" or not bool(np.isnan(dataset.targets(split)).all())
