"""From the plan to a teacher that can be asked: found or trained first, kept in the run folder, ready for the loop."""

from __future__ import annotations

from collections.abc import Generator

import torch

from ...data.loader import ImageStore
from ...model.vit import ViT
from .. import prelude as preludes
from ..dataset import Dataset
from ..engines.team import Team
from ..events import Event
from ..plan import Plan
from ..run import RunFolder
from . import features, first
from .cnn import CNN as Network
from .cnn import lay_out
from .known import check_pictures, keep, known, order_of, scales_of
from .lesson import Lesson
from .settings import CNN


def taught(
    run: RunFolder, plan: Plan, model: ViT, dataset: Dataset, pictures: ImageStore
) -> Generator[Event, None, Lesson | None]:
    """Everything of the teacher that comes before the training; who is asked during it, or None.

    Raises:
        UsageError: the teacher of the plan cannot teach this.
        InterruptedRun, DivergedError: see `prelude.pursue`.
    """
    if not plan.teacher.wanted:
        return None
    if plan.teacher.model == CNN:
        yield from first.first(run, plan, dataset, pictures)
        return _lesson_of_cnn(first.kept(run, plan), plan, dataset)
    teacher = known(plan, run)
    check_pictures(teacher, plan)
    keep(run, teacher)
    if plan.teacher.kind == "features":
        yield from features.features(run, plan, model, teacher, dataset, pictures)
        return None
    return lesson(plan, dataset, run)


def lesson(plan: Plan, dataset: Dataset, run: RunFolder | None = None) -> Lesson | None:
    """A teacher to be asked, as it is before the run: a CNN is not trained yet, but takes as long to answer.

    Raises:
        UsageError: it cannot teach this.
    """
    if not plan.teacher.wanted or plan.teacher.kind == "features":
        return None
    if plan.teacher.model == CNN:
        return _lesson_of_cnn(first.fresh(plan), plan, dataset)
    teacher = known(plan, run)
    check_pictures(teacher, plan)
    return Lesson(
        network=teacher.model.to(plan.compute.device).eval(),
        spec=teacher.spec,
        task=dataset.source.task,
        weight=plan.teacher.weight,
        temperature=plan.teacher.temperature,
        order=order_of(teacher, dataset),
        scales=scales_of(teacher, dataset),
    )


def check(plan: Plan, dataset: Dataset) -> None:
    """Refuse a teacher that cannot teach this, before a run folder is made.

    Raises:
        UsageError: it is not there, or its task, its outputs or the pictures that it reads are others.
        DamagedFileError: it cannot be trusted.
    """
    if plan.teacher.wanted and plan.teacher.model != CNN:
        teacher = known(plan)
        check_pictures(teacher, plan)
        if plan.teacher.kind == "logits":
            order_of(teacher, dataset)


def seconds_per_step(plan: Plan, dataset: Dataset, pictures: ImageStore) -> float:
    """Of what comes before the training."""
    if plan.teacher.model == CNN:
        network = first.fresh(plan)
        return preludes.seconds_per_step(first.prelude_of(plan, network, dataset, pictures, steps=1000))
    teacher = known(plan)
    check_pictures(teacher, plan)
    return features.measured(plan, teacher, dataset, pictures)


def shared(team: Team, lesson: Lesson | None, plan: Plan) -> Lesson | None:
    """The same teacher in every process: rank 0's CNN is the one that has been trained."""
    if lesson is not None and plan.teacher.model == CNN:
        lay_out(lesson.network.to("cpu"), torch.contiguous_format)
        team.spread(lesson.network)
        lay_out(lesson.network.to(plan.compute.device), torch.channels_last)
    return lesson


def _lesson_of_cnn(network: Network, plan: Plan, dataset: Dataset) -> Lesson:
    return Lesson(network.eval(), plan.image, dataset.source.task, plan.teacher.weight, plan.teacher.temperature)
