"""What each decision costs, for the web page: the decisions, and the scores of the stored validation predictions."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from ..errors import VitrailError
from ..evaluate.predictions import LABEL_THRESHOLD, ClassificationPredictions, MultilabelPredictions
from ..predict.kept_decisions import KeptDecisions
from ..services.deciding import open_stored_run


def describe_decisions(kept: KeptDecisions) -> list[dict[str, Any]]:
    """Each decision with its thresholds, what it was asked for by, and who has kept it."""
    return [
        {
            "name": name,
            "rule": one.describe(),
            "positive": one.positive,
            "thresholds": list(one.thresholds),
            "sure": one.sure,
            "ratios": list(one.prior_ratio),
            "request": kept.records.get(name, {}).get("request", {}),
            "by": str(kept.records.get(name, {}).get("by", "")),
            "time": str(kept.records.get(name, {}).get("time", "")),
        }
        for name, one in kept.by_name.items()
    ]


def load_validation_scores(run: Path) -> dict[str, Any]:
    """The scores of the validation images of a run, without their names; only `why` where there are none.

    Of every label, and of every one of two classes, those of the images with it and without it. Of more classes those
    of the likeliest class, where it is right and where it is wrong; they have no name.
    """
    try:
        table = open_stored_run(run).validation
    except VitrailError as error:
        return {"why": str(error)}
    if isinstance(table, MultilabelPredictions) and table.targets is not None:
        known, positive = table.known_mask, table.targets >= LABEL_THRESHOLD
        scores = [
            _pack_scores(name, table.probabilities[known[:, k], k], positive[known[:, k], k])
            for k, name in enumerate(table.classes)
        ]
    elif isinstance(table, ClassificationPredictions) and table.targets is not None:
        rows = np.flatnonzero(table.targets >= 0)
        targets, chances = table.targets[rows], table.probabilities[rows]
        if len(table.classes) == 2:
            scores = [_pack_scores(name, chances[:, k], targets == k) for k, name in enumerate(table.classes)]
        else:
            scores = [_pack_scores("", chances.max(1), chances.argmax(1) == targets)]
    else:
        return {"why": "The decisions of numbers are ranges, whose costs vitrail decide RUN prints."}
    return {"n": len(table), "scores": scores}


def _pack_scores(name: str, scores: Float32[np.ndarray, " n"], positive: np.ndarray) -> dict[str, str]:
    """Scores of one label in rising order, as little-endian float32 in base64."""
    packed = {
        key: base64.b64encode(np.sort(scores[mask]).astype("<f4").tobytes()).decode()
        for key, mask in (("with", positive), ("without", ~positive))
    }
    return {"name": name, **packed}
