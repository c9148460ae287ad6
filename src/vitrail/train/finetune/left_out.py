"""Good images of a bank, each judged without its own patches: what a run of good images alone can show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from ...checkpoints.adapt import build_model
from ...checkpoints.bundle import BANK_ROWS
from ...model.vit import ViT
from ..calibration_file import read_scores
from ..context import TrainContext
from ..held_out import ModelOutputs
from . import bank_store, coreset


def read_left_out_outputs(context: TrainContext) -> ModelOutputs:
    """The score of each good image from a bank without it, in the order of the split.

    Raises:
        DamagedFileError: the run's calibration.csv is missing or damaged.
    """
    dataset, scores = context.dataset, read_scores(context.run.calibration_file)
    rows = np.array([row for row in dataset.splits["train"].tolist() if dataset.source.ids[row] in scores], np.int64)
    images = dataset.load_rows(rows, context.plan.image, context.plan.compute.num_workers)
    outputs = np.array([[scores[dataset.source.ids[row]]] for row in rows.tolist()], np.float32)
    return ModelOutputs(rows, images, outputs, np.zeros((len(rows), 0), np.float32))


def open_models_without(context: TrainContext, model: ViT) -> Callable[[str], ViT]:
    """From the id of a good image to the model whose bank has no patch of its group.

    Raises:
        DamagedFileError: a file in bank/ of the run is missing or damaged.
    """
    pictures = bank_store.load_pictures(context.run.path)
    groups, tensors = pictures.number_groups(), model.state_dict()
    owners = coreset.list_owners(pictures.features, groups, context.plan.model, context.plan.seed)
    of_id = dict(zip(pictures.ids, groups.tolist(), strict=True))

    def without(id: str) -> ViT:
        kept = torch.from_numpy(owners != of_id[id]).to(tensors[BANK_ROWS].device)
        rows = tensors[BANK_ROWS][kept]
        return build_model(replace(model.config, bank_size=len(rows)), {**tensors, BANK_ROWS: rows})

    return without
