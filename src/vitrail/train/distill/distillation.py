"""Set up the distillation teacher of a plan: load or train it, and copy it into the run folder."""

from __future__ import annotations

from collections.abc import Generator

import torch

from ...errors import UsageError
from ...model.vit import ViT
from .. import phase
from ..context import PlanContext, TrainContext
from ..dataset import Dataset
from ..distributed.collectives import RankGroup
from ..events import Event
from ..plan import CNN_TEACHER, Plan
from ..run_folder import RunFolder
from ..teacher_targets import (
    DistillationTeacher,
    check_teacher_images,
    find_output_scalings,
    load_teacher,
    match_output_order,
    save_teacher,
)
from . import cnn_teacher, feature_teacher
from .cnn_teacher import SmallCNN, set_memory_format


def prepare_teacher(
    context: TrainContext, model: ViT
) -> Generator[Event, None, tuple[Plan, DistillationTeacher | None]]:
    """Run what the teacher needs before the training; return the plan with the steps that this took, and the teacher
    that predicts during the training, or None.

    Raises:
        UsageError: the teacher does not fit the task.
        InterruptedRun, DivergedError: see `phase.run_phase`.
    """
    run, plan, dataset = context.run, context.plan, context.dataset
    if not plan.distill.is_enabled:
        return plan, None
    if plan.distill.teacher == CNN_TEACHER:
        plan = yield from cnn_teacher.train_cnn_teacher(context)
        return plan, _build_cnn_teacher(cnn_teacher.load_cnn_teacher(run, plan), plan, dataset)
    teacher = load_teacher(plan, run)
    check_teacher_images(teacher, plan)
    save_teacher(run, teacher)
    if plan.distill.kind == "features":
        return (yield from feature_teacher.distill_features(context, model, teacher)), None
    return plan, build_teacher(plan, dataset, run)


def build_teacher(plan: Plan, dataset: Dataset, run: RunFolder | None = None) -> DistillationTeacher | None:
    """The teacher of the training's steps; a CNN is untrained, which is enough to measure the throughput.

    Raises:
        UsageError: it does not fit the task.
    """
    if not plan.distill.is_enabled or plan.distill.kind == "features":
        return None
    if plan.distill.teacher == CNN_TEACHER:
        return _build_cnn_teacher(cnn_teacher.init_cnn_teacher(plan), plan, dataset)
    teacher = load_teacher(plan, run)
    check_teacher_images(teacher, plan)
    return DistillationTeacher(
        network=teacher.model.to(plan.compute.device).eval(),
        spec=teacher.spec,
        task=dataset.source.task,
        weight=plan.distill.alpha,
        temperature=plan.distill.temperature,
        output_order=match_output_order(teacher, dataset),
        output_scalings=find_output_scalings(teacher, dataset),
    )


def check_teacher(plan: Plan, dataset: Dataset) -> None:
    """Check the teacher before a run folder is made.

    Raises:
        UsageError: it does not exist, its task, outputs or image format differ, or the images have loss weights.
        DamagedFileError: it is damaged.
    """
    if plan.distill.is_enabled and dataset.source.weights is not None:
        raise UsageError(
            "Pictures with weights of their own cannot be learnt from a teacher, whose part of the loss knows no "
            "weights. Leave out the weights or --distill.teacher."
        )
    if plan.distill.is_enabled and plan.distill.teacher != CNN_TEACHER:
        teacher = load_teacher(plan)
        check_teacher_images(teacher, plan)
        if plan.distill.kind == "logits":
            match_output_order(teacher, dataset)


def measure_distill_step(context: PlanContext) -> float:
    """Seconds per step of the distillation phase before the training."""
    plan = context.plan
    if plan.distill.teacher == CNN_TEACHER:
        network = cnn_teacher.init_cnn_teacher(plan)
        return phase.measure_phase_step(cnn_teacher.make_cnn_phase(context, network, steps=1000))
    teacher = load_teacher(plan)
    check_teacher_images(teacher, plan)
    return feature_teacher.measure_feature_step(context, teacher)


def broadcast_teacher(group: RankGroup, teacher: DistillationTeacher | None, plan: Plan) -> DistillationTeacher | None:
    """The same teacher on every rank: only rank 0 has trained the CNN."""
    if teacher is not None and plan.distill.teacher == CNN_TEACHER:
        set_memory_format(teacher.network.to("cpu"), torch.contiguous_format)
        group.broadcast_weights(teacher.network)
        set_memory_format(teacher.network.to(plan.compute.device), torch.channels_last)
    return teacher


def _build_cnn_teacher(network: SmallCNN, plan: Plan, dataset: Dataset) -> DistillationTeacher:
    return DistillationTeacher(
        network.eval(), plan.image, dataset.source.task, plan.distill.alpha, plan.distill.temperature
    )
