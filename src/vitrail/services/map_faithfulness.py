"""Faithfulness of explanation methods, measured on labelled images or synthetic images with known evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.preprocess import normalize, preprocess_image
from ..data.source import Source
from ..data.sources import synthetic
from ..data.sources.synthetic import SyntheticImages
from ..errors import UsageError
from ..explain.faithfulness.benchmark import NUM_SHUFFLED, FaithfulnessReport, FaithfulnessRequest, SyntheticTruth
from ..explain.faithfulness.benchmark import measure_faithfulness as benchmark_measure_faithfulness
from ..explain.faithfulness.curves import TASK_SCORES, MapFunction
from ..explain.faithfulness.map_choice import map_function
from ..explain.methods import METHODS
from ..explain.recorder import inference_mode
from ..model.vit import ViT
from ..predict.predictor import Predictor
from .evaluation import LabelledImages, get_groups

NUM_IMAGES = 100
"""Images to measure: each costs about 70 forward passes for every method and every baseline."""
NUM_PAIRS = 96
"""Synthetic images with two classes."""
BATCH_SIZE = 64


def measure_faithfulness(
    predictor: Predictor,
    labelled: LabelledImages,
    methods: Mapping[str, MapFunction],
    num_images: int = NUM_IMAGES,
    num_randomized: int = NUM_SHUFFLED,
) -> FaithfulnessReport:
    """Measure methods on the first images, explaining the predicted classes.

    On images of the source `planted` the glyph's class is explained, and the location of its map is measured too.
    Confidence intervals resample whole groups if the source has groups.

    Args:
        num_randomized: images for the model randomisation test; 0 for none.

    Raises:
        UsageError: an ensemble, another model than a plain ViT, no outputs, or as the benchmark.
        DataError: an image cannot be read.
    """
    member = predictor.single_member()
    model = member.model
    if not isinstance(model, ViT) or not model.config.outputs:
        raise UsageError("Only a plain ViT with outputs can be measured: there must be an answer, and patches to drop.")
    rows, source = labelled.rows[:num_images], labelled.source
    prepared = torch.stack([preprocess_image(source.images[row], member.spec) for row in rows.tolist()])
    images = normalize(prepared, member.spec).to(predictor.device)
    truth = _find_synthetic_truth(source, rows) if tuple(predictor.classes) == synthetic.CLASSES else None
    synthetic_truth = None
    classes = torch.zeros(len(rows), dtype=torch.long, device=images.device)
    if truth is not None:
        synthetic_truth = SyntheticTruth(
            images=truth, pairs=synthetic.make_synthetic_pairs(NUM_PAIRS, seed=1), spec=member.spec
        )
        classes = torch.from_numpy(truth.targets).to(predictor.device)
    elif member.task != "regression":
        with inference_mode(model):
            batches = [model(batch).argmax(1) for batch in images.split(BATCH_SIZE)]
        classes = torch.cat(batches)
    return benchmark_measure_faithfulness(
        methods,
        FaithfulnessRequest(
            model=model,
            images=images,
            classes=classes,
            score=TASK_SCORES[member.task],
            synthetic=synthetic_truth,
            num_shuffled=num_randomized,
            groups=get_groups(source, rows),
        ),
    )


def get_map_function(name: str) -> MapFunction:
    """A method of `explain.methods` as a function for the benchmark, which counts empty maps instead of raising.

    Raises:
        UsageError: an unknown method, or one that needs an option.
    """
    if name not in METHODS or "patch" in METHODS[name].option_names:
        known = ", ".join(each for each, method in METHODS.items() if "patch" not in method.option_names)
        raise UsageError(f"Measured can be {known}. Got {name!r}.")
    return map_function(name)


def _find_synthetic_truth(source: Source, rows: NDArray[np.int64]) -> SyntheticImages | None:
    """The ground truth of images of the source `planted`, recognised by their pixels; None for other images."""
    if source.name != "planted" or not isinstance(source.images, np.ndarray):
        return None
    for tag in (False, True):
        made = synthetic.make_synthetic_images(int(rows.max()) + 1, seed=0, tag=tag)
        truth = SyntheticImages(*(vars(made)[field.name][rows] for field in fields(SyntheticImages)))
        if np.array_equal(truth.images, source.images[rows]):
            return truth
    return None
