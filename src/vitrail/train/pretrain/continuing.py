"""Pre-training that goes on from a checkpoint: views of a picture learn to find the features of the whole picture.

Instance discrimination (Wu et al. 2018) with targets that stay: what the checkpoint makes of the whole picture. The
features of an augmented view, by the trained upper blocks, have to find those of their own picture, by the checkpoint,
among the pictures of the batch. So the features learn what varies within a picture of this kind and what between two,
and cannot leave the start far, which is their only target. No label is read.
"""

from __future__ import annotations

import copy
from collections.abc import Generator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...data.loader import Batch
from ...data.preprocess import normalize, widen
from ...model.config import ViTConfig
from ...model.vit import ViT, create_model
from .. import phase
from ..batch_augment import augment_batch
from ..context import PlanContext, TrainContext
from ..events import Event, Note
from ..losses import Loss
from ..optim import layer_index
from ..phase import TrainingPhase
from ..plan import Plan, Recipe
from .pretraining import derive_pretraining_seed, make_unlabelled_phase
from .unlabelled_images import PretrainingImages, gather_pretraining_images

PHASE_TITLE = "continued pre-training"
TRAINED_FRACTION = 1 / 3
"""Fraction of the blocks that are trained, the upper ones."""
LR = 2e-4
"""Of AdamW, times pretrain.lr_scale."""
TEMPERATURE, SMOOTHING = 0.1, 0.1
MIN_DEVIATION = 1e-3
VIEW_SCALE, VIEW_TRANSLATE = 0.25, 0.1
"""Views are larger or smaller by this fraction at most, and shifted by so much of a side."""


class ContinuedEncoder(nn.Module):
    """Images to the pooled features of the last block [B, P], with only the upper blocks to be trained."""

    def __init__(self, model: ViT):
        super().__init__()
        self.model = model
        frozen = round(model.config.depth * (1 - TRAINED_FRACTION))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("encoder.blocks.") and layer_index(name, 0) > frozen)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B P"]:
        return last_block_features(self.model.pooled(images), self.model.config)


def last_block_features(pooled: Float[Tensor, "B Q"], config: ViTConfig) -> Float[Tensor, "B P"]:
    """Of the pooled features of several blocks side by side those of the last one."""
    return pooled.unflatten(1, (-1, config.pool_blocks, config.width))[:, :, -1].flatten(1)


def find_own_picture(views: Float[Tensor, "B P"], anchors: Float[Tensor, "B P"]) -> Loss:
    """(total, weight) of the cross-entropy with which views find their own picture's anchor among those of the batch.

    Similarities are cosines of features that are standardised by the anchors of the batch, so that what all pictures of
    a kind have in common does not count, over `TEMPERATURE`.
    """
    views, anchors = views.float(), anchors.float()
    mean, deviation = anchors.mean(0), anchors.std(0, correction=0) + MIN_DEVIATION
    scaled = [F.normalize((each - mean) / deviation, dim=1) for each in (views, anchors)]
    rows = torch.arange(len(views), device=views.device)
    total = F.cross_entropy(scaled[0] @ scaled[1].T / TEMPERATURE, rows, label_smoothing=SMOOTHING, reduction="sum")
    return total, total.new_tensor(float(len(views)))


def continue_pretraining(context: TrainContext, model: ViT) -> Generator[Event, None, Plan]:
    """Train the upper blocks of `model`, from the newest checkpoint of the phase on; return the plan with the steps
    that were made.

    Raises:
        DataError: see `gather_pretraining_images`.
        InterruptedRun, DivergedError, ResourceError: see `phase.run_phase`.
    """
    images = _load_images(context)
    for text in images.notes:
        yield Note(text)
    return (yield from phase.run_phase(context.run, make_continuing_phase(context.plan, model, images)))


def measure_continuing_step(context: PlanContext) -> float:
    """Seconds of a step here, on a fresh model."""
    model = create_model(context.plan.model, context.plan.seed)
    return phase.measure_phase_step(make_continuing_phase(context.plan, model, _load_images(context), steps=1000))


def _load_images(context: PlanContext) -> PretrainingImages:
    return gather_pretraining_images(context.plan, context.dataset, context.images, None)


def make_continuing_phase(
    plan: Plan, model: ViT, pretraining_images: PretrainingImages, steps: int = 0
) -> TrainingPhase:
    """The phase for the plan's steps or for `steps`; `model` is the start, and is trained."""
    device = plan.compute.device
    start = ContinuedEncoder(copy.deepcopy(model)).to(device).eval()
    encoder = ContinuedEncoder(model).to(device)
    forward = torch.compile(encoder) if plan.compute.compile else encoder
    recipe, seed = make_continuing_recipe(plan, steps), derive_pretraining_seed(plan)

    def batch_loss(batch: Batch, step: int, epoch: int) -> Loss:
        views = normalize(augment_batch(batch, recipe, seed, epoch, device), plan.image)
        whole = normalize(widen(batch.images.to(device)), plan.image)
        with torch.autocast(views.device.type, torch.bfloat16, enabled=plan.compute.precision == "bfloat16"):
            with torch.no_grad():
                anchors = start(whole)
            return find_own_picture(forward(views), anchors)

    return make_unlabelled_phase(plan, PHASE_TITLE, encoder, recipe, batch_loss, pretraining_images)


def make_continuing_recipe(plan: Plan, steps: int = 0) -> Recipe:
    """The recipe of the phase: AdamW, the flips of the training, and views that are moved and scaled."""
    recipe, settings = plan.recipe, plan.pretrain
    return Recipe(
        steps=steps or max(settings.steps, 1),
        steps_history=() if steps else settings.steps_history,
        batch_size=settings.batch_size or recipe.batch_size,
        optimizer="adamw",
        lr=LR * settings.lr_scale,
        weight_decay=recipe.weight_decay,
        warmup=settings.warmup,
        lr_schedule="cosine",
        grad_clip_norm=recipe.grad_clip_norm,
        skip_spikes=recipe.skip_spikes,
        crop_padding=0,
        flip=recipe.flip,
        flip_vertical=recipe.flip_vertical,
        transpose=recipe.transpose,
        scale=VIEW_SCALE,
        translate=VIEW_TRANSLATE,
        save_every=recipe.save_every,
    )
