"""Feature distillation (Romero et al. 2015, one projection): learn a teacher's features before the labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...data.loader import Batch
from ...data.preprocess import normalize
from ...model.attention import TokenPositions
from ...model.vit import ViT, create_model
from ...randomness import derive
from ...spec import Grid
from .. import phase
from ..batch_augment import augment_batch
from ..context import PlanContext, TrainContext
from ..events import Event, Note
from ..losses import Loss
from ..phase import TrainingPhase, load_module
from ..plan import Plan, Recipe
from ..teacher_targets import TeacherModel, adapt_images

PHASE_NAME, PHASE_TITLE = "teacher", "learning of features"


class FeatureStudent(nn.Module):
    """A model's patch tokens, projected to the width of its teacher's: [B, N, d].

    It shares the modules of `model` up to the encoder; the projection is discarded afterwards.
    """

    def __init__(self, model: ViT, width: int, seed: int):
        super().__init__()
        self.prefix = model.config.prefix
        self.tokens = model.tokens
        self.positions = model.positions
        self.rotary = model.rotary
        self.encoder = model.encoder
        self.projection = nn.Linear(model.config.width, width)
        generator = torch.Generator().manual_seed(derive(seed, "projection"))
        nn.init.trunc_normal_(self.projection.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N d"]:
        x, grid = self.tokens(images)
        x = self.positions(x, grid)
        x = self.encoder(x, TokenPositions(grid, None, self.rotary(grid, x)))
        return self.projection(x[:, self.prefix :])


def distill_features(context: TrainContext, model: ViT, teacher: TeacherModel) -> Generator[Event, None, Plan]:
    """Let `model` learn the teacher's features, or load the weights if this run has done it already; return the plan
    with the steps that were made.

    Raises:
        InterruptedRun, DivergedError, ResourceError: see `phase.run_phase`.
    """
    run, plan = context.run, context.plan
    if phase.is_phase_done(run, PHASE_NAME):
        load_module(run.path / phase.START_WEIGHTS_FILE, model)
        return plan
    student = FeatureStudent(model, teacher.model.config.width, plan.seed)
    plan = yield from phase.run_phase(run, make_feature_phase(context, student, teacher))
    phase.save_start_weights(dataclasses.replace(context, plan=plan), PHASE_NAME, model)
    phase.remove_phase_checkpoints(run, PHASE_NAME)
    yield Note(
        f"The model has learnt the teacher's features; its weights are in {run.path / phase.START_WEIGHTS_FILE}."
    )
    return plan


def measure_feature_step(context: PlanContext, teacher: TeacherModel) -> float:
    """Seconds of a step here, on a fresh model."""
    plan = context.plan
    student = FeatureStudent(create_model(plan.model, plan.seed), teacher.model.config.width, plan.seed)
    return phase.measure_phase_step(make_feature_phase(context, student, teacher, steps=1000))


def make_feature_phase(
    context: PlanContext, student: FeatureStudent, teacher: TeacherModel, steps: int = 0
) -> TrainingPhase:
    """Feature distillation, for the plan's steps or for `steps`."""
    plan, dataset, images = context.plan, context.dataset, context.images
    device, recipe, seed = plan.compute.device, plan.recipe, derive(plan.seed, PHASE_NAME)
    student.to(device)
    teacher.model.to(device).eval()
    low = plan.compute.precision == "bfloat16"

    def batch_loss(batch: Batch, step: int, epoch: int) -> Loss:
        augmented = augment_batch(batch, recipe, seed, epoch, device)
        with torch.autocast(augmented.device.type, torch.bfloat16, enabled=low):
            with torch.no_grad():
                teacher_features = teacher.model.dense(normalize(adapt_images(augmented, teacher.spec), teacher.spec))
            student_features = student(normalize(augmented, plan.image))
        return cosine_loss(student_features, resize_features(teacher_features.float(), plan.model.grid))

    return TrainingPhase(
        name=PHASE_NAME,
        title=PHASE_TITLE,
        plan=plan,
        module=student,
        recipe=Recipe(
            steps=steps or max(plan.distill.steps, 1),
            steps_history=() if steps else plan.distill.steps_history,
            batch_size=recipe.batch_size,
            repeated_augmentation=recipe.repeated_augmentation,
            optimizer=recipe.optimizer,
            muon_lr=recipe.muon_lr,
            muon_momentum=recipe.muon_momentum,
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            warmup=recipe.warmup,
            lr_schedule="cosine",
            grad_clip_norm=recipe.grad_clip_norm,
            skip_spikes=recipe.skip_spikes,
            save_every=recipe.save_every,
        ),
        seed=seed,
        compute_loss=batch_loss,
        images=images,
        targets=np.zeros(len(images.indices), np.int64),
        shard_ids=dataset.shard_ids("train"),
        advice=(
            f"Lower its rates, for example --recipe.muon_lr {recipe.muon_lr / 3:.2g} "
            f"--recipe.lr {recipe.lr / 3:.2g}, and begin again."
        ),
        image_names=dataset.source.ids,
    )


def resize_features(dense: Float[Tensor, "B D h w"], grid: Grid) -> Float[Tensor, "B N D"]:
    """A teacher's patch tokens on the model's patch grid, resized bilinearly with antialiasing if it differs."""
    if tuple(dense.shape[-2:]) != tuple(grid):
        dense = F.interpolate(dense, size=tuple(grid), mode="bilinear", antialias=True, align_corners=False)
    return dense.flatten(2).transpose(1, 2)


def cosine_loss(student_features: Float[Tensor, "B N D"], teacher_features: Float[Tensor, "B N D"]) -> Loss:
    """(total, weight): 1 - cosine similarity, summed over patches, each of which weighs 1.

    The teacher's features are centered over the batch and its patches first, because their common part carries no
    information.
    """
    centered = teacher_features - teacher_features.mean((0, 1), keepdim=True)
    total = (1 - F.cosine_similarity(student_features.float(), centered, dim=-1)).sum()
    return total, torch.full_like(total, student_features.shape[0] * student_features.shape[1])
