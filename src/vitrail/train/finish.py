"""After the last step: answers for the held-out pictures, figures, the portable bundle and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from ..checkpoints import bundle
from ..data.loader import Pictures
from ..errors import DataError
from ..evaluate.collect import collect, probabilities_of
from ..evaluate.metrics import Metrics, measure
from ..evaluate.predictions import Predictions, path_of
from ..files import atomic
from ..model.vit import ViT, parameter_count
from ..report import facts, page, thumbnails
from .dataset import Dataset, class_of
from .events import Event, Finished, Note
from .loop import Learner
from .optimizer import averaged
from .plan import Plan
from .planner import attention_paths
from .run import RunFolder, environment

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
    measured, held_out, pictures = [], None, None
    for split in ("val", "test"):
        if len(dataset.splits[split]):
            try:
                pictures = dataset.pictures(split, plan.image, plan.compute.workers)
                held_out = answers(learner, plan, dataset, split, pictures)
            except DataError as error:
                raise DataError(
                    f"{error} The trained model is in {run.bundle}; put the picture back, or remove it, and let the "
                    f"evaluation and the report follow with: vitrail train --resume {run.path}"
                ) from error
            measured.append(write_predictions(run, held_out))
    if held_out is None or pictures is None:
        yield Note(f"No pictures were held out, so there is no report. The model is in {run.bundle}.")
        return
    write_report(run, plan, reasons, dataset, held_out, pictures, tuple(measured), spent)
    yield Finished(run.path, run.path / page.NAME, measured[-1], spent.seconds)


def _spent(run: RunFolder) -> Spent:
    """Seconds and pictures of all steps: each recorded row stands for the steps since the one before it."""
    rows = [json.loads(line) for line in run.metrics_file.read_text(encoding="utf-8").splitlines()]
    seconds, images, before = 0.0, 0.0, 0
    for row in rows:
        if "seconds" in row:
            steps = row["step"] - before
            seconds, images, before = seconds + steps * row["seconds"], images + steps * row["images"], row["step"]
    return Spent(seconds, round(images))


def answers(learner: Learner, plan: Plan, dataset: Dataset, split: str, pictures: Pictures) -> Predictions:
    """The model's probabilities for a whole split, in the split's order."""
    rows = dataset.splits[split]
    with averaged(learner.model, learner.average):
        logits = collect(
            learner.model, pictures, rows, plan.image, EVALUATION_BATCH, plan.compute.device,
            plan.compute.number_format, plan.recipe.mirror,
        )  # fmt: skip
    source = dataset.source
    return Predictions(
        paths=tuple(path_of(source.pictures[row]) for row in rows.tolist()),
        ids=tuple(source.ids[row] for row in rows.tolist()),
        split=split,
        targets=class_of(source, rows),
        probabilities=probabilities_of(logits),
        classes=source.classes,
    )


def write_bundle(run: RunFolder, learner: Learner, plan: Plan, dataset: Dataset) -> None:
    """Keep the trained model in the portable form; a bundle that is there already is that of this run's end."""
    if run.bundle.exists():
        return
    assert isinstance(learner.model, ViT)
    training, inference = attention_paths(plan)
    info = {
        "model_name": plan.model_name,
        "number_format": plan.compute.number_format,
        "mirror": plan.recipe.mirror,
        "attention": {"training": training, "inference": inference},
        "data": {"source": dataset.source.name, "fingerprint": dataset.source.fingerprint()},
        "steps": plan.recipe.steps,
        "seed": plan.seed,
    }
    with averaged(learner.model, learner.average):
        bundle.save(run.bundle, learner.model, plan.image, dataset.source.task, dataset.source.classes, info)


def write_report(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    dataset: Dataset,
    held_out: Predictions,
    pictures: Pictures,
    measured: tuple[Metrics, ...],
    spent: Spent,
) -> None:
    """Thumbnails, report.json and report.html."""
    chosen = thumbnails.choose(held_out, THUMBNAILS)
    images = pictures.take(dataset.splits[held_out.split][chosen]).permute(0, 2, 3, 1).numpy()
    thumbnails.save(run.path, images, chosen)
    facts.write(run.path, _facts(run, plan, reasons, dataset, measured, spent))
    page.build(run.path)


def _facts(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    dataset: Dataset,
    measured: tuple[Metrics, ...],
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
        metrics=measured,
        notes=(*dataset.source.notes, *dataset.notes),
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


def write_predictions(run: RunFolder, predictions: Predictions) -> Metrics:
    """Store a split's answers and measure them."""
    run.predictions.mkdir(exist_ok=True)
    predictions.write_csv(run.predictions / f"{predictions.split}.csv")
    metrics = measure(predictions)
    atomic.write_json(run.path / f"metrics-{predictions.split}.json", metrics.to_json())
    return metrics
