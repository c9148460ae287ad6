"""The answers of all folds as one table: every picture answered by the one model that has not seen it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from ..evaluate.answers import Answers, join, read_csv
from ..evaluate.headline import headline
from ..evaluate.measuring import Figures, measured
from ..evaluate.number_predictions import NumberPredictions
from ..evaluate.out_of_fold import teachable
from ..evaluate.suspect_list import Listed, listed
from .dataset import Dataset, open_dataset
from .run import RunFolder

SPLIT = "out-of-fold"
"""What the table of all answers calls its pictures."""


@dataclass(frozen=True)
class Together:
    """What all folds have answered."""

    dataset: Dataset
    folds: tuple[RunFolder, ...]
    parts: tuple[Answers, ...]
    """Of each fold the answers to the pictures that it has held out."""
    ordered: bool
    """Whether the classes stand in an order."""

    @property
    def answers(self) -> Answers:
        """One table of all parts, in their order."""
        return join([replace(part, split=SPLIT) for part in self.parts])

    def rows(self, answers: Answers) -> NDArray[np.int64]:
        """The row of each answered picture in the source."""
        known = {name: row for row, name in enumerate(self.dataset.source.ids)}
        return np.array([known[name] for name in answers.ids], np.int64)

    def groups(self, answers: Answers) -> Shaped[np.ndarray, " n"] | None:
        """The group of each answered picture; None where pictures stand alone."""
        groups = self.dataset.source.groups
        return None if groups is None else groups[self.rows(answers)]

    def figures(self) -> Figures:
        """Every figure of all answers."""
        answers = self.answers
        return measured(answers, self.dataset.scaling, self.groups(answers), self.ordered)

    def suspects(self) -> Listed:
        """Labels that the models contradict, each those of the pictures that it has not seen.

        Source: Northcutt et al. 2021, as in `evaluate.suspects`.
        """
        answers, source = self.answers, self.dataset.source
        assert answers.targets is not None
        given = answers.values if isinstance(answers, NumberPredictions) else answers.probabilities
        told = np.where(self._teachable(), given, np.float32(np.nan))
        judges, figure = (len(self.folds), "models"), headline(answers)
        return listed(source, self.rows(answers), told, answers.targets, judges, figure.name, figure.value)

    def _teachable(self) -> np.ndarray:
        """Bool [n, K]: which cells the other folds have something to teach about."""
        source, found = self.dataset.source, []
        targets = [part.targets for part in self.parts]
        for number, asked in enumerate(targets):
            others = [one for place, one in enumerate(targets) if place != number and one is not None]
            assert asked is not None
            found.append(teachable(np.concatenate(others), asked, source.task, len(source.classes)))
        return np.concatenate(found)


def of_folds(folds: tuple[Path, ...], given: object | None = None) -> Together:
    """The answers of folds that are done.

    Args:
        folds: their run folders.
        given: the object that they were trained on, if it was one.

    Raises:
        DataError: the data is not what they were begun with, or a table of answers is missing or damaged.
    """
    runs = tuple(RunFolder.existing(path) for path in folds)
    plan = runs[0].read_plan()
    dataset = open_dataset(plan.data, plan.seed, runs[0], given)
    split = "val" if "test" in dataset.source.splits else "test"
    parts = tuple(read_csv(run.predictions / f"{split}.csv", dataset.source.task) for run in runs)
    return Together(dataset, runs, parts, plan.answers.ordered)
