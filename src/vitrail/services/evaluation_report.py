"""What is left of an evaluation on other images: predictions, metrics, and a page that shows the wrong ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..data.decoding.decode import to_8_bits
from ..errors import UsageError
from ..evaluate import task_metrics
from ..evaluate.decisions import describe_limits
from ..evaluate.inference import DEFAULT_SETTINGS
from ..evaluate.mask_overlap import MaskComparison
from ..evaluate.metrics import CASES_SUFFIX
from ..evaluate.predictions import RegressionPredictions, TaskPredictions
from ..files import atomic
from ..model.vit import ViT
from ..predict.predictor import Predictor
from ..report import image_selection, page, provenance, task_sections, thumbnails
from ..report.mask_panels import draw_masks
from ..train.dataset import Dataset
from ..train.run_folder import RunFolder, find_run, is_folds_folder
from .evaluation import EvaluationResult, LabelledImages, find_predicted_rows, get_prediction_groups

MAX_WRONG = 10
"""Wrong predictions that are named."""


@dataclass(frozen=True)
class WrongPredictions:
    """Wrong predictions, the surest first; of numbers those with the largest errors."""

    count: int | None
    """How many there are; None for numbers, which are never exactly right."""
    lines: tuple[tuple[str, str], ...]
    """(path or id, what is true and what was predicted) of the first ones."""

    def table(self) -> str:
        """The first ones as text; empty if there are none."""
        if not self.lines:
            return ""
        width = min(60, max(len(name) for name, _ in self.lines))
        what = "Largest errors" if self.count is None else f"Wrong: {self.count:,}, the surest first"
        rows = [f"  {name:<{width}}  {text}" for name, text in self.lines]
        more = [] if self.count is None or self.count <= len(rows) else [f"  and {self.count - len(rows):,} more"]
        return "\n".join([what, *rows, *more])

    def to_json(self) -> dict[str, object]:
        """The same as plain values."""
        return {"count": self.count, "first": [{"path": name, "text": text} for name, text in self.lines]}


def list_wrong(predictions: TaskPredictions) -> WrongPredictions:
    """The wrong predictions of a table with targets, and the first ones in words."""
    rows = image_selection.select_images(predictions, MAX_WRONG)[:MAX_WRONG]
    count = None
    if not isinstance(predictions, RegressionPredictions):
        wrong, known = image_selection.wrong_and_known_masks(predictions)
        rows, count = rows[wrong[rows] & known[rows]], int((wrong & known).sum())
    return WrongPredictions(
        count,
        tuple(
            (predictions.paths[row] or predictions.ids[row], task_sections.describe_answer(predictions, row))
            for row in rows.tolist()
        ),
    )


def choose_evaluation_folder(model: str, source: str, out: Path | None) -> Path | None:
    """Where an evaluation of a model on another source is kept: `out`, or a folder in its run folder; None without one.

    The same evaluation replaces its former one, and another one of the same name gets a number.

    Raises:
        UsageError: `out` holds something else.
    """
    command = _command(model, source)
    if out is not None:
        if not _is_free(out, command):
            raise UsageError(f"{out} exists already and is kept. Choose another --out.")
        return out
    run = RunFolder(find_run(Path(model)))
    if not (run.plan_file.is_file() or is_folds_folder(run.path)):
        return None
    name = re.sub(r"[^\w.-]+", "-", Path(source).name).strip("-") or "pictures"
    number, folder = 1, run.path / provenance.EVALUATIONS_FOLDER / name
    while not _is_free(folder, command):
        number += 1
        folder = folder.with_name(f"{name}-{number}")
    return folder


def _command(model: str, source: str) -> str:
    where = str(Path(source).absolute()) if source and Path(source).exists() else source
    return f"vitrail evaluate {model} {where}".rstrip()


def _is_free(folder: Path, command: str) -> bool:
    """Whether a folder is not there, is empty, or holds the same evaluation."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return True
    facts = provenance.read_json_table(folder / provenance.FACTS_FILE) if folder.is_dir() else None
    return facts is not None and facts.get("command") == command


def write_evaluation(
    folder: Path, model: str, source: str, predictor: Predictor, labelled: LabelledImages, result: EvaluationResult
) -> Path:
    """Write predictions, metrics, thumbnails and the page of an evaluation; returns the page.

    Args:
        model, source: as they were named.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
        DataError: a wrongly predicted image cannot be read any more.
    """
    predictions, metrics = result.predictions, result.metrics
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    predictions.write_csv(folder / "predictions" / f"{metrics.split}.csv")
    atomic.write_json(folder / f"metrics-{metrics.split}.json", metrics.to_json())
    measured = [metrics, *([] if result.cases is None else [result.cases])]
    if predictions.cases is not None:
        predictions.cases.write_csv(folder / "predictions" / f"{metrics.split}{CASES_SUFFIX}.csv")
    copies = {} if result.seen is None else {metrics.split: int(result.seen.train.sum())}
    task_metrics.write_results_csv(folder / task_metrics.RESULTS_FILE, measured, copies)
    chosen = image_selection.select_with_worst(predictions, predictor.decisions, thumbnails.MAX_THUMBNAILS)
    rows = find_predicted_rows(labelled, predictions)[chosen]
    dataset = Dataset(labelled.source, {})
    images = dataset.load_rows(rows, predictor.spec, 0).take(rows)
    aspects = dataset.aspect_ratios(rows, predictor.spec)
    shown = to_8_bits(images.permute(0, 2, 3, 1).numpy())
    if predictor.task == "segmentation":
        member = predictor.single_member()
        assert isinstance(member.model, ViT)
        stored = dataset.load_rows(rows, predictor.spec, 0)
        shown = draw_masks(MaskComparison(member.model, stored, labelled.source, rows, predictor.spec, member.settings))
        aspects = 2 * aspects
    thumbnails.save_thumbnails(folder, shown, chosen, aspects)
    provenance.save_groups(folder, get_prediction_groups(labelled, predictions))
    provenance.write_facts(folder, _make_facts(model, source, predictor, labelled, result))
    return page.build_report(folder)


def _make_facts(
    model: str, source: str, predictor: Predictor, labelled: LabelledImages, result: EvaluationResult
) -> provenance.ReportFacts:
    """The facts of the model's own report, as far as there is one, with those of this evaluation."""
    origin = source or "held out by the run"
    metrics, run, precision = result.metrics, RunFolder(find_run(Path(model))), predictor.settings.precision
    limits = describe_limits(predictor.task, [member.decisions for member in predictor.members])
    own: dict[str, Any] = {}
    if provenance.read_json_table(run.path / provenance.FACTS_FILE) is not None:
        own = dict(vars(provenance.read_facts(run.path)))
    else:
        counted = sum(each.numel() for one in predictor.members for each in one.model.parameters())
        own = {"model": Path(model).name, "parameters": counted, "seconds": 0.0, "steps": 0, "images_seen": 0}
        own |= {"images_per_second": 0.0, "plan": "", "task": predictor.task}
    return provenance.ReportFacts(
        **own
        | {
            "kind": "evaluation",
            "title": f"{result.source}: {Path(model).name}",
            "source": result.source,
            "counts": (provenance.SplitCount(split=metrics.split, n=metrics.n, origin=origin),),
            "classes": predictor.classes,
            "command": _command(model, source),
            "created": f"{datetime.now():%Y-%m-%d %H:%M}",
            **provenance.metrics_by_task([metrics, *([] if result.cases is None else [result.cases])]),
            "case_pool": None if result.cases is None else predictor.case_pool,
            "decisions": predictor.decisions,
            "evaluated_precision": precision if precision == DEFAULT_SETTINGS.precision else "",
            "fast_precision": None,
            "notes": labelled.notes,
            "warnings": (*[result.warning] * bool(result.warning), *limits),
        }
    )
