"""The phase itself: from a fresh model to one whose encoder has learnt from pictures, kept as `start.safetensors`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...data.loader import Batch, ImageStore
from ...data.preprocess import normalize
from ...errors import DataError
from ...model.vit import ViT, create_model
from ...randomness import derive
from .. import prelude as preludes
from ..batch_size import batch_for
from ..dataset import Dataset
from ..events import Event, Note
from ..keeping import started
from ..plan import Plan
from ..prelude import Prelude, filled
from ..recipe import Recipe
from ..run import RunFolder
from ..stepping.objective import Loss
from ..stepping.views import augment, cut_of
from . import figure
from .masked import Autoencoder, aims_of, masks, painted_loss
from .unlabelled import Shown, further, shown

NAME, TITLE = "pretrain", "pre-training"


def pretrain(run: RunFolder, plan: Plan, model: ViT, dataset: Dataset, pictures: ImageStore) -> Iterator[Event]:
    """Pre-train `model` as the plan says, from where it stands; at once if that has been done in this run.

    Afterwards the weights that the training begins with lie in the run folder.

    Raises:
        InterruptedRun, DivergedError, ResourceError: see `prelude.pursue`.
    """
    if not plan.pretrain.steps:
        return
    if started.has_done(run, NAME):
        filled(run.path / started.START, model)
        return
    looked_at = seen(plan, dataset, pictures)
    for text in looked_at.notes:
        yield Note(text)
    autoencoder = Autoencoder(model, plan.pretrain, plan.seed)
    yield from preludes.pursue(run, prelude_of(plan, autoencoder, looked_at))
    try:
        figure.write(run.figures / figure.NAME, autoencoder, dataset, plan)
    except DataError as error:  # the training decides about pictures that cannot be read
        yield Note(f"There is no picture of the pre-training: {error}")
    started.keep(run, NAME, model, plan, dataset)
    preludes.forget(run, NAME)
    yield Note(f"Pre-training is done; the weights that the training begins with are in {run.path / started.START}.")


def seen(plan: Plan, dataset: Dataset, pictures: ImageStore) -> Shown:
    """What the phase looks at.

    Raises:
        DataError: see `unlabelled.shown`.
    """
    return shown(plan, dataset, pictures, cut_of(recipe_of(plan), seed_of(plan)))


def sized(plan: Plan, dataset: Dataset, reasons: dict[str, str]) -> Plan:
    """The plan with a batch for the pictures of pre-training, which may be many more than those that have labels."""
    if plan.pretrain.batch:
        return plan
    count = len(dataset.splits["train"])
    more = len(further(plan.pretrain.pictures, plan.data)) if plan.pretrain.pictures else 0
    count += more
    reasons["pretrain.batch"] = f"{'at most ' if more else ''}{count:,} pictures"
    return dataclasses.replace(plan, pretrain=dataclasses.replace(plan.pretrain, batch=batch_for(count)))


def seconds_per_step(plan: Plan, dataset: Dataset, pictures: ImageStore) -> float:
    """Of pre-training here, on a model of its own."""
    autoencoder = Autoencoder(create_model(plan.model, plan.seed), plan.pretrain, plan.seed)
    return preludes.seconds_per_step(prelude_of(plan, autoencoder, seen(plan, dataset, pictures), steps=1000))


def prelude_of(plan: Plan, autoencoder: Autoencoder, looked_at: Shown, steps: int = 0) -> Prelude:
    """The masked autoencoding of a plan; with `steps` of that length."""
    autoencoder.to(plan.compute.device)
    forward = torch.compile(autoencoder) if plan.compute.compile else autoencoder
    recipe, seed, settings, model = recipe_of(plan, steps), seed_of(plan), plan.pretrain, plan.model
    patches = model.grid.patches

    def loss_of(batch: Batch, step: int, epoch: int) -> Loss:
        images = normalize(augment(batch, recipe, seed, epoch, plan.compute.device), plan.image)
        hiding = masks(seed, epoch, batch.keys, patches, settings.visible(patches))
        visible, hidden = (part.to(images.device) for part in hiding)
        aims = aims_of(images, hidden, model.patch, settings.normalise)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=plan.compute.number_format == "bfloat16"):
            painted: Tensor = forward(images, visible, hidden)
        return painted_loss(painted, aims)

    return Prelude(
        name=NAME,
        title=TITLE,
        plan=plan,
        module=autoencoder,
        recipe=recipe,
        seed=seed,
        loss_of=loss_of,
        pictures=looked_at.pictures,
        targets=np.zeros(len(looked_at.pictures.indices), np.int64),
        blocks=looked_at.blocks,
        advice=f"Lower its rates, for example --pretrain.rate {settings.rate / 3:.2g}, and begin again.",
        seen=looked_at.digest,
        names=looked_at.names,
    )


def recipe_of(plan: Plan, steps: int = 0) -> Recipe:
    """Rates, batch and crops of the phase: those of the training but for what [pretrain] says."""
    recipe, settings = plan.recipe, plan.pretrain
    return Recipe(
        steps=steps or max(settings.steps, 1),
        batch=settings.batch or recipe.batch // recipe.repeats,
        optimizer=recipe.optimizer,
        muon_rate=recipe.muon_rate * settings.rate,
        momentum=recipe.momentum,
        rate=recipe.rate * settings.rate,
        weight_decay=recipe.weight_decay,
        warmup=settings.warmup,
        decay="cosine",
        clip=recipe.clip,
        skip_spikes=recipe.skip_spikes,
        crop_padding=0 if settings.crop_scale else recipe.crop_padding,
        flip=recipe.flip,
        flip_vertical=recipe.flip_vertical,
        crop_scale=settings.crop_scale,
        save_every=recipe.save_every,
    )


def seed_of(plan: Plan) -> int:
    """Where the phase's randomness starts."""
    return derive(plan.seed, NAME)
