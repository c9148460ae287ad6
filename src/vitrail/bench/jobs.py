"""What is timed, each by the very code that the verbs run: answers, training steps, files read, files answered."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..data.loader import InMemoryImageStore, iter_batches, load_images
from ..data.open import open_source
from ..data.preprocess import normalize
from ..data.random_crop import RandomResizedCrop
from ..evaluate.collect import ITSELF, answering, outputs_of
from ..model.vit import ViT
from ..predict.predictor import Predictor, PredictorMember
from ..spec import ImageSpec
from ..train.loop import TrainState, train_steps
from ..train.plan import Plan
from .clock import Job

PICTURES = 4
"""Batches of pictures that a training step is drawn from."""


def answers(model: nn.Module, spec: ImageSpec, batch: int, device: str, number_format: str) -> Job:
    """Outputs for a batch of prepared pictures that lie on the device."""
    images = noise(spec, batch).to(device)

    def job() -> Tensor:
        with answering(model):
            return outputs_of(model, images, spec, device, number_format, ITSELF)[0]

    return job


def step(learner: TrainState, plan: Plan) -> Job:
    """A step of the training loop: augmentation, forward, loss, backward, guards, optimiser."""
    count = PICTURES * plan.recipe.batch
    targets = np.arange(count) % plan.model.outputs
    made = train_steps(learner, InMemoryImageStore(noise(plan.image, count)), targets, plan)
    return lambda: next(made)


def reading(folder: Path, spec: ImageSpec, batch: int, workers: int) -> Job:
    """One pass over a folder of class folders: decoded, cut and mirrored at random, resized, normalised, in batches."""
    source = open_source(folder)
    rows = np.arange(len(source))
    pictures = load_images(source, rows, spec, 0, workers, RandomResizedCrop(0, mirror=True), training=True)

    def job() -> None:
        for _, _, part in islice(iter_batches(pictures, source.targets, batch, 0), len(rows) // batch):
            normalize(part.images, spec)

    return job


def predicting(model: ViT, spec: ImageSpec, files: list[Path], batch: int, device: str, number_format: str) -> Job:
    """Answers for files, from their bytes to the rows of a CSV."""
    names = tuple(f"class {number}" for number in range(model.config.outputs))
    predictor = Predictor([PredictorMember(model=model, spec=spec, classes=names, number_format=number_format)], device)
    return lambda: predictor.predict(files, batch).csv_bytes()


def noise(spec: ImageSpec, count: int) -> Tensor:
    """Prepared pictures uint8 [count, C, H, W] with nothing in them."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, spec.channels, *spec.size), dtype=torch.uint8, generator=generator)
