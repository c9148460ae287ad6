"""A model asked again with the centre of every picture covered, and with the border covered."""

from __future__ import annotations

from dataclasses import replace

from ..evaluate import shortcut_reliance
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.shortcut_reliance import MaskedModel, PixelMask, ShortcutReport
from ..predict.predictor import Predictor
from .evaluation import Counter, Labelled, answer, groups_of


def look_at_border(
    predictor: Predictor,
    labelled: Labelled,
    whole: TaskPredictions,
    skip_bad: bool = False,
    counted: Counter | None = None,
) -> ShortcutReport:
    """Ask again with the centre covered, then with the border covered, and compare.

    Args:
        whole: the answers to whole pictures.

    Raises:
        DataError: as `evaluation.answer`, or nothing can be measured.
    """
    outer = shortcut_reliance.border_mask(*predictor.spec.size)
    border = answer(covered(predictor, outer), labelled, skip_bad, counted)
    centre = answer(covered(predictor, ~outer), labelled, skip_bad, counted)
    return shortcut_reliance.compare_regions(whole, border, centre, groups_of(labelled, whole))


def covered(predictor: Predictor, shown: PixelMask) -> Predictor:
    """The same predictor, seeing only some of the pixels; it does not tell unlike pictures, since all of them are."""
    members = [
        replace(one, model=MaskedModel(one.model, shown), decided=replace(one.decided, unlike=None), familiar=None)
        for one in predictor.members
    ]
    found = Predictor(members, predictor.device)
    found.spec = predictor.spec
    return found
