"""What is decided, as named tensors of an exported graph, which `redecide` changes in a file without its weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from ..data.source import Task
from ..evaluate.decisions import Decisions
from ..evaluate.thresholds import DEFAULT_THRESHOLD

MODULE_NAME = "decision"
"""The submodule of an exported graph that decides; its tensors are the initializers `decision.NAME`."""
THRESHOLDS, CHOICE, SURE, PRIOR_RATIO, UNLIKE = "thresholds", "choice", "sure", "prior_ratio", "unlike"
CALIBRATION = "calibration"
"""Of anomaly, the scores of good images: no decision, so `redecide` leaves them."""
DECISION_NAMES = (THRESHOLDS, CHOICE, SURE, PRIOR_RATIO, UNLIKE)
NEVER = 2.0
"""A threshold that no probability reaches."""
LIKELIEST, SECOND_REACHED, FIRST_MISSED = range(3)
"""What `choice` can take of two classes: the likelier one; 1 if the second reaches its threshold; 1 if the first does
not."""


def decision_tensors(task: Task, classes: tuple[str, ...], decisions: Decisions) -> dict[str, np.ndarray]:
    """The tensors of a graph's decisions by their names in the module; only `unlike` for numbers.

    `thresholds` holds the probability from which each class or label is answered, of anomaly the score above which an
    image is called a defect.
    """
    if task == "anomaly":
        return {THRESHOLDS: np.array([decisions.alarm_score], np.float64)}
    if task == "segmentation":
        return {}
    K = len(classes)
    tensors: dict[str, np.ndarray] = {}
    if decisions.unlike is not None:
        tensors[UNLIKE] = np.array([decisions.unlike], np.float64)
    if task == "regression":
        return tensors
    tensors[PRIOR_RATIO] = np.array(decisions.prior_ratio or (1.0,) * K, np.float64)
    if task == "multilabel":
        tensors[THRESHOLDS] = np.array(decisions.thresholds or (DEFAULT_THRESHOLD,) * K, np.float64)
        return tensors
    tensors[SURE] = np.array([decisions.sure], np.float32)  # in which confidences are compared
    if K == 2:
        thresholds, choice = np.full(2, NEVER, np.float32), np.zeros(3, np.int64)
        positive = classes.index(decisions.positive) if decisions.positive and decisions.thresholds else None
        if positive is not None:
            thresholds[positive] = decisions.thresholds[0]
        choice[{None: LIKELIEST, 0: FIRST_MISSED, 1: SECOND_REACHED}[positive]] = 1
        tensors |= {THRESHOLDS: thresholds, CHOICE: choice}
    return tensors


def round_thresholds(decision: nn.Module) -> None:
    """Round what scores are compared with to float32, so that comparisons in float32 decide as those in float64 do.

    Scores are float32 numbers s: s > t as s > the largest float32 number up to t, and s >= t as s >= the smallest one
    from t on. The distance from the training images is a float32 number in such a graph, too.
    """
    task = decision.task
    strict = {UNLIKE, CALIBRATION} | ({THRESHOLDS} if task == "anomaly" else set())
    for name, values in decision.named_buffers():
        if values.dtype == torch.float64 and name in (*strict, THRESHOLDS):
            near = values.numpy().astype(np.float32)
            beyond = near > values.numpy() if name in strict else near < values.numpy()
            towards = np.float32(-np.inf if name in strict else np.inf)
            values.copy_(torch.from_numpy(np.where(beyond, np.nextafter(near, towards), near)))


def draw_placeholders(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of the same shapes whose values no optimizer of graphs can leave out, as it does with times 1."""
    drawn = {}
    for place, (name, tensor) in enumerate(sorted(tensors.items())):
        numbers = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
        drawn[name] = (numbers + place + 2 if tensor.dtype == torch.int64 else (numbers + 3) / (71 + place)).to(tensor)
    return drawn
