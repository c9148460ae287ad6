"""Plan a test: how many pictures settle a question about a model, from what it answered on its stored pictures.

No model is opened: the share of positives, how pictures of a group go together and how often two models differ are
counted in the stored predictions.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int64

from .. import config
from ..errors import DataError, UsageError
from ..evaluate.decision_figures import apply_decisions
from ..evaluate.predictions import LABEL_THRESHOLD, ClassificationPredictions, MultilabelPredictions, TaskPredictions
from ..formatting import format_count
from ..stats import study_size
from ..stats.auc import roc_auc_with_influence
from ..stats.intervals import effective_count, wilson_interval_of_share
from .deciding import StoredRun, open_stored_run

FigureName = Literal["sensitivity", "specificity", "accuracy", "auroc", "difference"]
QUESTION = re.compile(
    r"\s*(sensitivity|specificity|accuracy|auroc|difference)\s*=\s*([0-9.]+)\s*(?:(?:±|\+-|\+/-)\s*([0-9.]+))?\s*"
)
EXAMPLES = "sensitivity=0.95±0.03, auroc=0.9±0.02, difference=0.02 or doubling; +- may stand for ±"
POWER = 0.8


@dataclass(frozen=True)
class StudyQuestion:
    """What a study is to settle."""

    figure: FigureName
    value: float
    """The figure that is expected, or the difference in accuracy that is to be seen."""
    reach: float
    """Half of the width of its 95 % interval; 0 for a difference."""

    @classmethod
    def parse(cls, text: str) -> StudyQuestion:
        """Read a question.

        Raises:
            UsageError: it is none.
        """
        found = QUESTION.fullmatch(text)
        if found is None:
            raise UsageError(f"A planned test is written as {EXAMPLES}. Got {text!r}.")
        name, (value, reach) = found[1], (_number(each, text) for each in (found[2], found[3] or "0"))
        if (name == "difference") == (found[3] is not None):
            wanted = "no width: its power is 80 %" if name == "difference" else "a width, such as ±0.03"
            raise UsageError(f"A planned {name} has {wanted}. Got {text!r}.")
        if not 0 < value < 1 or (found[3] is not None and not 0 < reach < 0.5):
            raise UsageError(f"Shares lie between 0 and 1, and a width between 0 and 0.5. Got {text!r}.")
        return cls(name, value, reach)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.figure} {self.value:g}" + (f" ± {self.reach:g}" if self.reach else "")


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The size of a study that settles a question."""

    question: str
    positive: str
    """The class or label that the figure is of; empty for an accuracy."""
    split: str
    """The stored pictures that shares and groups were counted in."""
    images: int
    counted: int
    """Images that the interval is of: positives, negatives, or all of them."""
    groups: int | None = None
    """Number of groups, such as patients; None without groups."""
    stored_images: int
    stored_counted: int
    stored_reach: float | None = None
    """What the stored images reach for the same figure; None for a difference."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """A few lines for the terminal."""
        of = f" for {self.positive}" if self.positive else ""
        kind = {"sensitivity": f" with {self.positive}", "specificity": f" without {self.positive}"}
        counted = kind.get(self.question.split()[0], "")
        lines = [f"{self.question}{of}", f"pictures  {self.images:,}"]
        if counted:
            share = self.stored_counted / self.stored_images
            lines[-1] += f", of which {self.counted:,}{counted} ({share:.1%}, as in {self.split})"
        if self.groups is not None:
            each = self.images / self.groups
            lines.append(f"groups    {self.groups:,}, with {each:.1f} pictures each, as alike as in {self.split}")
        if self.stored_reach is not None and math.isfinite(self.stored_reach):
            stored = f"{format_count(self.stored_images, 'picture')} of {self.split} give"
            lines.append(f"now       the {stored} ± {self.stored_reach:.3f}")
        return "\n".join([*lines, *self.notes])


def plan_test(run: Path, question: str, positive: str = "", against: Path | None = None) -> StudyPlan:
    """How many images settle a question about a run's model.

    Args:
        question: such as `EXAMPLES`.
        positive: the class or label that the figure is of; not needed where there is one.
        against: another run, whose stored answers for the same images say how often the two models differ.

    Raises:
        UsageError: not a question, a class that is not there, or an option of another figure.
        DataError: the stored predictions do not say what is needed.
    """
    asked, stored = StudyQuestion.parse(question), open_stored_run(run)
    split = list(stored.tables)[-1]
    table, groups = apply_decisions(stored.tables[split], stored.current), stored.groups.get(split)
    if against is not None and asked.figure != "difference":
        raise UsageError(f"--against is for a planned difference. The question is {asked}.")
    if asked.figure in ("accuracy", "difference"):
        if not isinstance(table, ClassificationPredictions):
            raise UsageError(f"An accuracy is of classes, and {run} answers with {stored.task}. Plan for auroc=.")
        if positive:
            raise UsageError("--positive is for sensitivity, specificity and auroc. An accuracy is of all classes.")
        known = np.zeros(len(table), bool) if table.targets is None else table.targets >= 0
        if not known.any():
            raise DataError(f"The stored predictions of {split} have no known answers.")
        if asked.figure == "difference":
            return _plan_difference(asked, split, table, known, groups, against)
        return _plan_share(asked, "", split, known, known, groups)
    name = _choose_positive(stored, table, positive)
    known, mask = _positives(table, name)
    if not (mask.any() and (known & ~mask).any()):
        raise DataError(f"The stored predictions of {split} have no pictures both with and without {name}.")
    if asked.figure == "auroc":
        return _plan_roc_auc(asked, name, split, table, known, mask, groups)
    return _plan_share(asked, name, split, known, mask if asked.figure == "sensitivity" else known & ~mask, groups)


def _plan_share(
    asked: StudyQuestion, name: str, split: str, known: Bool[np.ndarray, " n"], counted: Bool[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"] | None,
) -> StudyPlan:  # fmt: skip
    """For the share of the counted images that are answered rightly."""
    stored, total = int(counted.sum()), int(known.sum())
    worth = 1.0 if groups is None else effective_count(groups[counted]) / stored
    now = wilson_interval_of_share(asked.value, stored * worth)
    needed = math.ceil(study_size.count_for_share(asked.value, asked.reach) / worth)
    return _build_plan(asked, name, split, known, groups, math.ceil(needed * total / stored), needed, stored,
                       (now.high - now.low) / 2)  # fmt: skip


def _plan_roc_auc(
    asked: StudyQuestion, name: str, split: str, table: TaskPredictions, known: Bool[np.ndarray, " n"],
    positive: Bool[np.ndarray, " n"], groups: Int64[np.ndarray, " n"] | None,
) -> StudyPlan:  # fmt: skip
    """For the area under the ROC curve; of how groups weigh only the counts decide."""
    assert isinstance(table, ClassificationPredictions | MultilabelPredictions)
    scores = table.probabilities[:, table.classes.index(name)]
    weights = roc_auc_with_influence(positive, scores, known, groups).weights
    ups, downs = int(positive.sum()), int((known & ~positive).sum())
    effect, share = float(np.square(weights).sum()) / (1 / ups + 1 / downs), ups / (ups + downs)
    needed = study_size.count_for_roc_auc(asked.value, asked.reach, share, effect)
    now = study_size.roc_auc_reach(asked.value, ups + downs, share, effect)
    return _build_plan(asked, name, split, known, groups, needed, needed, ups + downs, now)


def _plan_difference(
    asked: StudyQuestion, split: str, table: ClassificationPredictions, known: Bool[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"] | None, against: Path | None,
) -> StudyPlan:  # fmt: skip
    """For a difference in accuracy, seen with a power of 80 % at the 5 % level on the same images."""
    right = _right(table)[known]
    own = None if groups is None else groups[known]
    if against is None:
        accuracy = float(right.mean())
        other = accuracy + asked.value if accuracy + asked.value <= 1 else accuracy - asked.value
        discordance = accuracy * (1 - other) + (1 - accuracy) * other
        gaps = right
        note = (
            f"Another model is taken to be right and wrong on other pictures, on {discordance:.1%} of them only one of "
            "the two being right: most models differ less and need fewer. --against RUN counts it."
        )
    else:
        second = open_stored_run(against)
        answers = second.tables.get(split)
        if not isinstance(answers, ClassificationPredictions) or answers.ids != table.ids:
            raise DataError(f"The stored predictions of {against} are not of the same pictures ({split}) and classes.")
        gaps = right - _right(apply_decisions(answers, second.current))[known]
        discordance = max(float(np.abs(gaps).mean()), asked.value)
        note = f"On {discordance:.1%} of the pictures of {split} only one of the two is right."
    effect = 1.0 if own is None else study_size.mean_design_effect(gaps, own)
    needed = study_size.count_for_difference(asked.value, max(discordance, asked.value), POWER, effect)
    notes = (f"Seen with a power of {POWER:.0%} at the 5 % level, both models on the same pictures. {note}",)
    return _build_plan(asked, "", split, known, groups, needed, needed, int(known.sum()), None, notes)


def _build_plan(
    asked: StudyQuestion, name: str, split: str, known: Bool[np.ndarray, " n"],
    groups: Int64[np.ndarray, " n"] | None, images: int, counted: int, stored: int, now: float | None,
    notes: tuple[str, ...] = (),
) -> StudyPlan:  # fmt: skip
    if images >= study_size.MOST_IMAGES:
        raise UsageError(f"No study of less than a billion pictures reaches {asked}. Ask for a wider interval.")
    total = int(known.sum())
    return StudyPlan(
        question=str(asked),
        positive=name,
        split=split,
        images=images,
        counted=counted,
        groups=None if groups is None else math.ceil(images * len(np.unique(groups[known])) / total),
        stored_images=total,
        stored_counted=stored,
        stored_reach=now,
        notes=notes,
    )


def _choose_positive(stored: StoredRun, table: TaskPredictions, positive: str) -> str:
    if not isinstance(table, ClassificationPredictions | MultilabelPredictions):
        raise UsageError(f"A study is planned for classes or labels, and {stored.run.path} answers with {stored.task}.")
    if positive and positive not in table.classes:
        raise UsageError(f"--positive must be one of {', '.join(table.classes[:12])}. Got {positive!r}.")
    chosen = positive or stored.current.positive or (table.classes[0] if len(table.classes) == 1 else "")
    if not chosen:
        raise UsageError(f"Of which of {', '.join(table.classes[:12])}? Name it: --positive {table.classes[0]}")
    return chosen


def _positives(table: TaskPredictions, name: str) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Which images have a known answer, and which are positive."""
    none = np.zeros(len(table), bool)
    if isinstance(table, ClassificationPredictions):
        known = none if table.targets is None else table.targets >= 0
        return known, known if table.targets is None else table.targets == table.classes.index(name)
    assert isinstance(table, MultilabelPredictions)
    if table.targets is None:
        return none, none
    column = table.classes.index(name)
    known = table.known_mask[:, column]
    return known, known & (np.nan_to_num(table.targets[:, column]) >= LABEL_THRESHOLD)


def _right(table: TaskPredictions) -> Float[np.ndarray, " n"]:
    assert isinstance(table, ClassificationPredictions)
    return (table.indices == table.targets).astype(np.float64)


def _number(text: str, question: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"A planned test is written as {EXAMPLES}. Got {question!r}.") from None
