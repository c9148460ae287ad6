"""The pre-training phase: train the encoder by masked autoencoding, and store it as `start.safetensors`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator

import numpy as np
import torch
from torch import Tensor, nn

from ...data.loader import Batch
from ...data.preprocess import normalize
from ...errors import DataError
from ...formatting import format_count
from ...model.vit import ViT, create_model
from ...randomness import derive
from .. import phase
from ..batch_augment import augment_batch, make_crop
from ..context import PlanContext, TrainContext
from ..dataset import Dataset
from ..events import Event, Note
from ..losses import Loss
from ..phase import TrainingPhase, load_module
from ..plan import Plan, Recipe, suggest_batch_size
from ..request import Reasons
from . import mae
from .mae import MaskedAutoencoder, draw_masks, make_reconstruction_targets, reconstruction_loss
from .unlabelled_images import PretrainingImages, gather_pretraining_images, open_extra_images

PHASE_NAME, PHASE_TITLE = "pretrain", "pre-training"


def pretrain(context: TrainContext, model: ViT) -> Generator[Event, None, Plan]:
    """Pre-train `model` as the plan says, or load the weights if this run has done it already; return the plan with the
    steps that were made.

    Afterwards the initial weights of the training are in the run folder.

    Raises:
        InterruptedRun, DivergedError, ResourceError: see `phase.run_phase`.
    """
    run, plan = context.run, context.plan
    if not plan.pretrain.steps or plan.finetune.from_checkpoint:  # see `continuing`
        return plan
    if phase.is_phase_done(run, PHASE_NAME):
        load_module(run.path / phase.START_WEIGHTS_FILE, model)
        return plan
    images = load_pretraining_images(context)
    for text in images.notes:
        yield Note(text)
    autoencoder = MaskedAutoencoder(model, plan.pretrain, plan.seed)
    plan = yield from phase.run_phase(run, make_pretraining_phase(plan, autoencoder, images))
    try:
        mae.write_reconstructions(run.figures / mae.PRETRAINING_PLOT, autoencoder, context.dataset, plan)
    except DataError as error:  # the training decides about images that cannot be read
        yield Note(f"There is no picture of the pre-training: {error}")
    phase.save_start_weights(dataclasses.replace(context, plan=plan), PHASE_NAME, model)
    phase.remove_phase_checkpoints(run, PHASE_NAME)
    yield Note(
        f"Pre-training is done; the weights that the training begins with are in {run.path / phase.START_WEIGHTS_FILE}."
    )
    return plan


def load_pretraining_images(context: PlanContext) -> PretrainingImages:
    """The images of the phase.

    Raises:
        DataError: see `gather_pretraining_images`.
    """
    crop = make_crop(make_pretraining_recipe(context.plan), derive_pretraining_seed(context.plan))
    return gather_pretraining_images(context.plan, context.dataset, context.images, crop)


def set_pretrain_batch_size(plan: Plan, dataset: Dataset) -> tuple[Plan, Reasons]:
    """The plan with a batch size for the images of pre-training, which may be many more than the labelled ones."""
    if plan.pretrain.batch_size:
        return plan, {}
    count = len(dataset.splits["train"])
    more = len(open_extra_images(plan.pretrain.extra_images, plan.data)) if plan.pretrain.extra_images else 0
    count += more
    pretrain = dataclasses.replace(plan.pretrain, batch_size=suggest_batch_size(count))
    why = f"{'at most ' if more else ''}{format_count(count, 'picture')}"
    return dataclasses.replace(plan, pretrain=pretrain), {"pretrain.batch_size": why}


def measure_pretraining_step(context: PlanContext) -> float:
    """Seconds of a step here, on a fresh model."""
    plan = context.plan
    autoencoder = MaskedAutoencoder(create_model(plan.model, plan.seed), plan.pretrain, plan.seed)
    images = load_pretraining_images(context)
    return phase.measure_phase_step(make_pretraining_phase(plan, autoencoder, images, steps=1000))


def make_pretraining_phase(
    plan: Plan, autoencoder: MaskedAutoencoder, pretraining_images: PretrainingImages, steps: int = 0
) -> TrainingPhase:
    """Masked autoencoding, for the plan's steps or for `steps`."""
    autoencoder.to(plan.compute.device)
    forward = torch.compile(autoencoder) if plan.compute.compile else autoencoder
    recipe, seed = make_pretraining_recipe(plan, steps), derive_pretraining_seed(plan)
    settings, model = plan.pretrain, plan.model
    patches = model.grid.patches

    def batch_loss(batch: Batch, step: int, epoch: int) -> Loss:
        images = normalize(augment_batch(batch, recipe, seed, epoch, plan.compute.device), plan.image)
        masks = draw_masks(seed, epoch, batch.random_keys, patches, settings.num_visible_patches(patches))
        visible, hidden = (part.to(images.device) for part in masks)
        patch_targets = make_reconstruction_targets(images, hidden, model.patch, settings.norm_pix_loss)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=plan.compute.precision == "bfloat16"):
            predicted: Tensor = forward(images, visible, hidden)
        return reconstruction_loss(predicted, patch_targets)

    return make_unlabelled_phase(plan, PHASE_TITLE, autoencoder, recipe, batch_loss, pretraining_images)


def make_unlabelled_phase(
    plan: Plan,
    title: str,
    module: nn.Module,
    recipe: Recipe,
    batch_loss: Callable[[Batch, int, int], Loss],
    images: PretrainingImages,
) -> TrainingPhase:
    """The phase `PHASE_NAME`, which reads no answer.

    Args:
        batch_loss: of a batch, a step and an epoch.
    """
    return TrainingPhase(
        name=PHASE_NAME,
        title=title,
        plan=plan,
        module=module,
        recipe=recipe,
        seed=derive_pretraining_seed(plan),
        compute_loss=batch_loss,
        images=images.images,
        targets=np.zeros(len(images.images.indices), np.int64),
        shard_ids=images.shard_ids,
        advice=f"Lower its rate, for example --pretrain.lr_scale {plan.pretrain.lr_scale / 3:.2g}, and begin again.",
        images_hash=images.extra_images_hash,
        image_names=images.image_names,
    )


def make_pretraining_recipe(plan: Plan, steps: int = 0) -> Recipe:
    """The recipe of the phase: that of the training, with the settings of [pretrain]."""
    recipe, settings = plan.recipe, plan.pretrain
    return Recipe(
        steps=steps or max(settings.steps, 1),
        steps_history=() if steps else settings.steps_history,
        batch_size=settings.batch_size or recipe.batch_size // recipe.repeated_augmentation,
        optimizer=recipe.optimizer,
        muon_lr=recipe.muon_lr * settings.lr_scale,
        muon_momentum=recipe.muon_momentum,
        lr=recipe.lr * settings.lr_scale,
        weight_decay=recipe.weight_decay,
        warmup=settings.warmup,
        lr_schedule="cosine",
        grad_clip_norm=recipe.grad_clip_norm,
        skip_spikes=recipe.skip_spikes,
        crop_padding=0 if settings.crop_scale else recipe.crop_padding,
        flip=recipe.flip,
        flip_vertical=recipe.flip_vertical,
        crop_scale=settings.crop_scale,
        save_every=recipe.save_every,
    )


def derive_pretraining_seed(plan: Plan) -> int:
    """The seed of the phase."""
    return derive(plan.seed, PHASE_NAME)
