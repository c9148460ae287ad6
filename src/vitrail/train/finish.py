"""After the last step: answers for the held-out pictures, figures, the portable bundle and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from .. import config
from ..checkpoints import bundle
from ..data.loader import Pictures
from ..errors import DataError
from ..evaluate import decisions
from ..evaluate.answers import Answers
from ..evaluate.decisions import Decisions
from ..evaluate.label_metrics import LabelMetrics
from ..evaluate.measuring import Figures, measured
from ..evaluate.metrics import Metrics
from ..evaluate.number_metrics import NumberMetrics
from ..evaluate.scaling import KEY
from ..evaluate.unlike import Familiar
from ..files import atomic
from ..model.vit import ViT, parameter_count
from ..report import choice, facts, page, thumbnails
from .dataset import Dataset
from .deciding import answers, look, settle
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
    yield Note("Evaluating on the held-out pictures.")
    figures, held_out, pictures = [], None, None
    with _kept_if_unreadable(run, learner, plan, dataset):
        seen = {split: look(learner, plan, dataset, dataset.splits[split]) for split in ("val", "test")}
        decided, familiar = _kept(run, learner, dataset) or settle(learner, plan, dataset, seen["val"])
    write_bundle(run, learner, plan, dataset, decided, familiar)
    for split, outputs in seen.items():
        if not len(outputs.rows):
            continue
        said = answers(dataset, split, outputs, decided, familiar)
        write_predictions(run, said)
        if not _anything_known(dataset, split):
            yield Note(f"Nothing is known of the {split} pictures, so they have answers and no figures.")
            continue
        held_out, pictures = said, outputs.pictures
        figures.append(write_figures(run, said, dataset, plan))
    if held_out is None or pictures is None:
        why = "Nothing could be measured" if run.predictions.is_dir() else "No pictures were held out"
        yield Note(f"{why}, so there is no report. The model is in {run.bundle}.")
        return
    write_report(run, plan, reasons, dataset, held_out, pictures, tuple(figures), spent, decided)
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


def _kept(run: RunFolder, learner: Learner, dataset: Dataset) -> tuple[Decisions, Familiar | None] | None:
    """What the bundle of this run's end holds already; None if there is none, or it could not decide yet."""
    info = bundle.describe(run.bundle).info if run.bundle.exists() else {}
    if decisions.KEY not in info:
        return None
    assert isinstance(learner.model, ViT)
    where, width = str(run.bundle), learner.model.config.width
    decided = decisions.read(info, dataset.source.task, dataset.source.classes, where)
    return decided, Familiar.of(bundle.familiar_in(run.bundle), width, where)


@contextmanager
def _kept_if_unreadable(run: RunFolder, learner: Learner, plan: Plan, dataset: Dataset) -> Iterator[None]:
    """A picture that cannot be read costs the evaluation and not the model, which is kept as it is, undecided."""
    try:
        yield
    except DataError as error:
        write_bundle(run, learner, plan, dataset, None, None)
        raise DataError(
            f"{error} The trained model is in {run.bundle}. Once that is mended, let the evaluation and the report "
            f"follow with: vitrail train --resume {run.path}"
        ) from error


def write_bundle(
    run: RunFolder,
    learner: Learner,
    plan: Plan,
    dataset: Dataset,
    decided: Decisions | None,
    known: Familiar | None,
) -> None:
    """Keep the trained model in the portable form; one that is there already and decided is that of this run's end.

    Args:
        decided: None where that could not be found out yet; such a bundle is replaced when it can.
    """
    if run.bundle.exists():
        if decided is None or decisions.KEY in bundle.describe(run.bundle).info:
            return
        atomic.remove_folder(run.bundle)
    assert isinstance(learner.model, ViT)
    training, inference = attention_paths(plan)
    scaling = dataset.scaling
    info = {
        "model_name": plan.model_name,
        "number_format": plan.compute.number_format,
        **plan.recipe.views.notes(),
        "attention": {"training": training, "inference": inference},
        "data": {"source": dataset.source.name, "fingerprint": dataset.source.fingerprint()},
        "steps": plan.recipe.steps,
        "seed": plan.seed,
        **({} if scaling is None else {KEY: scaling.to_json()}),
        **({} if decided is None else {decisions.KEY: config.write(decided)}),
    }
    tensors = None if known is None else known.tensors()
    with averaged(learner.model, learner.average):
        bundle.save(run.bundle, learner.model, plan.image, dataset.source.task, dataset.source.classes, info, tensors)


def write_report(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    dataset: Dataset,
    held_out: Answers,
    pictures: Pictures,
    figures: tuple[Figures, ...],
    spent: Spent,
    decided: Decisions,
) -> None:
    """Thumbnails, report.json and report.html."""
    chosen = choice.choose(held_out, THUMBNAILS)
    images = pictures.take(dataset.splits[held_out.split][chosen]).permute(0, 2, 3, 1).numpy()
    thumbnails.save(run.path, images, chosen)
    facts.write(run.path, _facts(run, plan, reasons, dataset, figures, spent, decided))
    page.build(run.path)


def _facts(
    run: RunFolder,
    plan: Plan,
    reasons: Mapping[str, str],
    dataset: Dataset,
    figures: tuple[Figures, ...],
    spent: Spent,
    decided: Decisions,
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
        decisions=decided,
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


def write_figures(run: RunFolder, said: Answers, dataset: Dataset, plan: Plan) -> Figures:
    """Measure a split's answers and store the figures."""
    groups = dataset.source.groups
    own = None if groups is None else groups[dataset.splits[said.split]]
    figures = measured(said, dataset.scaling, own, plan.answers.ordered)
    atomic.write_json(run.path / f"metrics-{figures.split}.json", figures.to_json())
    return figures


def _anything_known(dataset: Dataset, split: str) -> bool:
    return dataset.source.task == "classes" or not bool(np.isnan(dataset.targets(split)).all())
