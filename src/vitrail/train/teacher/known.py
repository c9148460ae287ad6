"""A teacher that somebody has trained: found, judged by its outputs, and kept in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...checkpoints import bundle
from ...checkpoints.bundle import find_bundle, resolve_model
from ...checkpoints.load import load_checkpoint
from ...errors import UsageError
from ...evaluate.scaling import Scaling, scaling_in
from ...files.hub import is_hub_name
from ...model.vit import ViT
from ...spec import ImageSpec
from ..dataset import Dataset
from ..plan import Plan
from ..run import RunFolder

FOLDER = "teacher"
"""Of a run: the teacher as a bundle, so that a run can be continued when the teacher has gone."""


@dataclass(frozen=True)
class Known:
    """A trained model with what its outputs mean."""

    model: ViT
    spec: ImageSpec
    task: str
    classes: tuple[str, ...]
    info: Mapping[str, object]


def known(plan: Plan, run: RunFolder | None = None) -> Known:
    """The teacher of a plan: as the run has kept it, else from where the plan names it.

    Raises:
        UsageError: there is nothing at that path.
        DamagedFileError: it cannot be trusted.
    """
    kept = None if run is None else run.path / FOLDER
    name = str(kept) if kept is not None and bundle.is_bundle(kept) else str(Path(plan.teacher.model).expanduser())
    place = resolve_model(plan.teacher.model if is_hub_name(plan.teacher.model) and name != str(kept) else name)
    if place is None:
        raise UsageError(f"There is no teacher at {name}. Give a run folder, a bundle, a weights file, or cnn.")
    folder = find_bundle(place.path)
    if folder is None:
        loaded = load_checkpoint(place.path)
        return Known(loaded.model, loaded.spec, loaded.task, loaded.classes, {})
    opened = bundle.load_bundle(folder)
    return Known(opened.model, opened.spec, opened.task, opened.classes, opened.info)


def keep(run: RunFolder, teacher: Known) -> None:
    """Write it into the run folder, unless it is there."""
    path = run.path / FOLDER
    if not path.exists():
        names = teacher.classes or tuple(map(str, range(teacher.model.config.outputs)))
        bundle.save_bundle(path, teacher.model, teacher.spec, teacher.task, names, teacher.info)


def order_of(teacher: Known, dataset: Dataset) -> tuple[int, ...]:
    """Which of its outputs is the first of the data, the second, and so on; empty where they are in the same order.

    Raises:
        UsageError: its task or its classes are others.
    """
    source = dataset.source
    if teacher.task != source.task:
        raise UsageError(
            f"The teacher answers a task of {teacher.task}, and {source.name} is one of {source.task}. Choose another "
            "teacher, or --teacher.kind features."
        )
    if set(teacher.classes) != set(source.classes) or len(teacher.classes) != len(source.classes):
        raise UsageError(
            f"The teacher knows {_listed(teacher.classes)}, and {source.name} has {_listed(source.classes)}: its "
            "answers would mean something else. Choose a teacher of the same outputs, or --teacher.kind features."
        )
    order = tuple(teacher.classes.index(name) for name in source.classes)
    return () if order == tuple(range(len(order))) else order


def check_pictures(teacher: Known, plan: Plan) -> None:
    """Refuse a teacher that reads other values than the pictures of this run hold.

    One of features sees them between black and white of this run, as a checkpoint does that a training begins from.

    Raises:
        UsageError: another value range or window, or channels that cannot be made of the run's.
    """
    theirs, ours = teacher.spec, plan.image
    same = (theirs.low, theirs.high, theirs.window) == (ours.low, ours.high, ours.window)
    if plan.teacher.kind != "features" and not same:
        raise UsageError(
            f"The teacher takes {theirs.low:g} to {theirs.high:g} (window {theirs.window}) for black to white, and "
            f"this run {ours.low:g} to {ours.high:g} (window {ours.window}), so it would see other pictures. "
            "Train it with the same --data.range, or choose another teacher."
        )
    if theirs.channels != ours.channels and {theirs.channels, ours.channels} != {1, 3}:
        raise UsageError(
            f"The teacher reads {theirs.channels} channels, which cannot be made of this run's {ours.channels}."
        )


def scales_of(teacher: Known, dataset: Dataset) -> tuple[Scaling, Scaling] | None:
    """Its scale and that of the data, where numbers are learnt."""
    ours = dataset.scaling
    if ours is None:
        return None
    columns = len(dataset.source.classes)
    theirs = scaling_in(teacher.info, columns, "The teacher")
    if theirs is None:
        theirs = Scaling((0.0,) * columns, (1.0,) * columns)  # it answers in units by itself
    order = order_of(teacher, dataset) or tuple(range(columns))
    return Scaling(*(tuple(part[number] for number in order) for part in (theirs.mean, theirs.deviation))), ours


def _listed(names: tuple[str, ...]) -> str:
    if not names:
        return "no names of its outputs"
    return ", ".join(names[:6]) + (f" and {len(names) - 6:,} more" if len(names) > 6 else "")
