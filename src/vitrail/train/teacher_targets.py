"""Distillation from a trained teacher: open it, check its outputs, and keep it in the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from ..checkpoints import bundle, bundle_weights
from ..checkpoints.bundle import find_bundle, resolve_model
from ..checkpoints.load import load_checkpoint
from ..data.augment.crops import resize_images
from ..data.preprocess import normalize, white_level
from ..data.source import Task
from ..errors import UsageError
from ..evaluate.calibration import TargetScaling, read_scaling
from ..files.hub import is_hub_name
from ..formatting import format_count
from ..model.vit import ViT
from ..spec import ImageSpec
from .dataset import Dataset
from .losses import Loss
from .plan import Plan
from .run_folder import RunFolder

TEACHER_FOLDER = "teacher"
"""In a run folder: the teacher as a bundle, so that the run does not depend on the original."""


@dataclass(frozen=True)
class TeacherModel:
    """A trained model with its task and class names."""

    model: ViT
    spec: ImageSpec
    task: str
    classes: tuple[str, ...]
    info: Mapping[str, object]


def load_teacher(plan: Plan, run: RunFolder | None = None) -> TeacherModel:
    """The teacher of a plan: the copy in the run folder, else from the plan's path.

    Raises:
        UsageError: there is nothing at that path.
        DamagedFileError: it is damaged.
    """
    stored = None if run is None else run.path / TEACHER_FOLDER
    name = (
        str(stored) if stored is not None and bundle.is_bundle(stored) else str(Path(plan.distill.teacher).expanduser())
    )
    resolved = resolve_model(
        plan.distill.teacher if is_hub_name(plan.distill.teacher) and name != str(stored) else name
    )
    if resolved is None:
        raise UsageError(f"There is no teacher at {name}. Give a run folder, a bundle, a weights file, or cnn.")
    folder = find_bundle(resolved.path)
    if folder is None:
        loaded = load_checkpoint(resolved.path)
        return TeacherModel(loaded.model, loaded.spec, loaded.task, loaded.classes, {})
    stored_bundle = bundle_weights.load_bundle(folder)
    return TeacherModel(
        stored_bundle.model, stored_bundle.spec, stored_bundle.task, stored_bundle.classes, stored_bundle.info
    )


def save_teacher(run: RunFolder, teacher: TeacherModel) -> None:
    """Copy the teacher into the run folder, unless it is there."""
    path = run.path / TEACHER_FOLDER
    if not path.exists():
        names = teacher.classes or tuple(map(str, range(teacher.model.config.outputs)))
        bundle_weights.save_bundle(path, teacher.model, teacher.spec, teacher.task, names, teacher.info)


def match_output_order(teacher: TeacherModel, dataset: Dataset) -> tuple[int, ...]:
    """Index of the teacher's output for each class of the data; empty where the order is the same.

    Raises:
        UsageError: its task or its classes differ.
    """
    source = dataset.source
    if teacher.task != source.task:
        raise UsageError(
            f"The teacher is a {teacher.task} model, and {source.name} is a {source.task} source. Choose another "
            "teacher, or --distill.kind features."
        )
    if set(teacher.classes) != set(source.classes) or len(teacher.classes) != len(source.classes):
        raise UsageError(
            f"The teacher knows {_join_names(teacher.classes)}, and {source.name} has {_join_names(source.classes)}: "
            "its answers would mean something else. Choose a teacher of the same outputs, or --distill.kind features."
        )
    order = tuple(teacher.classes.index(name) for name in source.classes)
    return () if order == tuple(range(len(order))) else order


def check_teacher_images(teacher: TeacherModel, plan: Plan) -> None:
    """Check that the teacher can read the images of this run.

    The value range may differ for feature distillation, as for a checkpoint that is fine-tuned.

    Raises:
        UsageError: another value range or window, or channels that the run's cannot be converted to.
    """
    theirs, ours = teacher.spec, plan.image
    same = (theirs.low, theirs.high, theirs.window) == (ours.low, ours.high, ours.window)
    if plan.distill.kind != "features" and not same:
        raise UsageError(
            f"The teacher takes {theirs.low:g} to {theirs.high:g} (window {theirs.window}) for black to white, and "
            f"this run {ours.low:g} to {ours.high:g} (window {ours.window}), so it would see other pictures. "
            "Train it with the same --data.range, or choose another teacher."
        )
    if theirs.channels != ours.channels and {theirs.channels, ours.channels} != {1, 3}:
        raise UsageError(
            f"The teacher reads {format_count(theirs.channels, 'channel')}, which cannot be made of this run's "
            f"{ours.channels}."
        )


def find_output_scalings(teacher: TeacherModel, dataset: Dataset) -> tuple[TargetScaling, TargetScaling] | None:
    """For regression: the target scaling of the teacher, in the data's order, and that of the data."""
    ours = dataset.scaling
    if ours is None:
        return None
    columns = len(dataset.source.classes)
    theirs = read_scaling(teacher.info, columns, "The teacher")
    if theirs is None:
        theirs = TargetScaling((0.0,) * columns, (1.0,) * columns)  # its outputs are in units already
    order = match_output_order(teacher, dataset) or tuple(range(columns))
    return TargetScaling(*(tuple(part[index] for index in order) for part in (theirs.mean, theirs.deviation))), ours


def _join_names(names: tuple[str, ...]) -> str:
    if not names:
        return "no names of its outputs"
    return ", ".join(names[:6]) + (f" and {len(names) - 6:,} more" if len(names) > 6 else "")


# -- Teacher predictions for a batch, and the distillation loss


@dataclass(frozen=True)
class DistillationTeacher:
    """A teacher that predicts the same augmented images as the model."""

    network: nn.Module
    """In evaluation mode, on the device."""
    spec: ImageSpec
    """Of its images."""
    task: Task
    weight: float
    """Fraction of its loss in the total loss."""
    temperature: float
    output_order: tuple[int, ...] = ()
    """See `match_output_order`."""
    output_scalings: tuple[TargetScaling, TargetScaling] | None = None
    """See `find_output_scalings`."""

    @torch.no_grad()
    def predict(self, images: Integer[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """The teacher's outputs in the order and on the scale of the model's, float32.

        Args:
            images: augmented and mixed, at the model's full size.
        """
        outputs: Tensor = self.network(normalize(adapt_images(images, self.spec), self.spec)).float()
        outputs = outputs[:, list(self.output_order)] if self.output_order else outputs
        if self.output_scalings is None:
            return outputs
        theirs, ours = self.output_scalings
        values = outputs.double() * _make_row(theirs.deviation, outputs) + _make_row(theirs.mean, outputs)
        return ((values - _make_row(ours.mean, outputs)) / _make_row(ours.deviation, outputs)).float()

    def compute_loss(self, outputs: Float[Tensor, "B K"], teacher_outputs: Float[Tensor, "B K"]) -> Loss:
        """(total, weight) of the distillation loss; see `distillation_loss`."""
        return distillation_loss(outputs, teacher_outputs, self.task, self.temperature)

    def blend_losses(self, label_loss: Float[Tensor, ""], teacher_loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The weighted mean of label loss and distillation loss."""
        return (1 - self.weight) * label_loss + self.weight * teacher_loss


def adapt_images(images: Integer[Tensor, "B C H W"], spec: ImageSpec) -> Integer[Tensor, "B c h w"]:
    """Images at another model's size, channels and bit depth: grey is repeated, colour becomes luma (ITU-R BT.601)."""
    if tuple(images.shape[-2:]) != spec.size:
        images = resize_images(images, spec.size, spec.interpolation, spec.antialias)
    if images.shape[1] == 1 and spec.channels == 3:
        images = images.expand(-1, 3, -1, -1)
    if images.shape[1] == 3 and spec.channels == 1:
        luma = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
        images = (images * luma).sum(1, keepdim=True).round().to(images.dtype)
    if white_level(images) == spec.white:
        return images
    if spec.bit_depth == 16:
        return images.to(torch.int32) * 257
    return (images.float() / 257).round().to(torch.uint8)


def distillation_loss(
    outputs: Float[Tensor, "B K"], teacher_outputs: Float[Tensor, "B K"], task: Task, temperature: float
) -> Loss:
    """(total, weight): the distance of the outputs to the teacher's, summed over images, each of which weighs 1.

    classes  T^2 KL(softmax(teacher / T) || softmax(outputs / T)): the gradient keeps its size for any temperature T
    labels   T^2 times the mean over labels of the same, for two classes each
    number   the mean over columns of (outputs - teacher)^2, without a temperature

    Source: Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network".
    """
    ours, theirs = outputs.float(), teacher_outputs.float()
    if task == "regression":
        total = (ours - theirs).square().mean(1).sum()
    elif task == "classification":
        total = _kl_divergence(*((each / temperature).log_softmax(1) for each in (ours, theirs))) * temperature**2
    else:
        divergence = _kl_divergence(*(_binary_log_probabilities(each / temperature) for each in (ours, theirs)))
        total = divergence * temperature**2 / ours.shape[1]
    return total, torch.full_like(total, len(outputs))


def _kl_divergence(ours: Tensor, theirs: Tensor) -> Float[Tensor, ""]:
    """KL(theirs || ours) of log-probabilities, summed."""
    return F.kl_div(ours, theirs, reduction="sum", log_target=True)


def _binary_log_probabilities(logits: Float[Tensor, "B K"]) -> Float[Tensor, "2 B K"]:
    return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)])


def _make_row(values: Sequence[float], like: Tensor) -> Float[Tensor, "1 K"]:
    return torch.tensor([values], dtype=torch.float64, device=like.device)
