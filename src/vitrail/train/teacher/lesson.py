"""What a teacher says of a batch, and the loss of not agreeing with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ...data.augment.crops import resize_images
from ...data.preprocess import normalize
from ...data.source import Task
from ...evaluate.scaling import Scaling
from ...spec import ImageSpec
from ..stepping.objective import Loss


@dataclass(frozen=True)
class Lesson:
    """A teacher that answers for the pictures that the model is shown, as it is shown them."""

    network: nn.Module
    """In evaluation mode, on the device."""
    spec: ImageSpec
    """What it reads."""
    task: Task
    weight: float
    """Part of the loss that follows it."""
    temperature: float
    order: tuple[int, ...] = ()
    """Which of its outputs is the model's first, second, ...; empty where the order is the same."""
    scales: tuple[Scaling, Scaling] | None = None
    """For numbers: its scale, and the one that the model learns on."""

    @torch.no_grad()
    def answers(self, images: UInt8[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Its outputs in the order and on the scale of the model's, float32.

        Args:
            images: augmented and mixed, of the model's size, with all their patches.
        """
        said: Tensor = self.network(normalize(adapted(images, self.spec), self.spec)).float()
        said = said[:, list(self.order)] if self.order else said
        if self.scales is None:
            return said
        theirs, ours = self.scales
        values = said.double() * _row(theirs.deviation, said) + _row(theirs.mean, said)
        return ((values - _row(ours.mean, said)) / _row(ours.deviation, said)).float()

    def disagreement(self, outputs: Float[Tensor, "B K"], said: Float[Tensor, "B K"]) -> Loss:
        """(total, weight) of not agreeing with what it has said; see `disagreement`."""
        return disagreement(outputs, said, self.task, self.temperature)

    def blended(self, labels: Float[Tensor, ""], teacher: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The mean loss of the labels and that of the teacher, in the shares of the plan."""
        return (1 - self.weight) * labels + self.weight * teacher


def adapted(images: UInt8[Tensor, "B C H W"], spec: ImageSpec) -> UInt8[Tensor, "B c h w"]:
    """Pictures with another model's size and channels: grey is repeated, colour weighed to grey as the eye does."""
    if tuple(images.shape[-2:]) != spec.size:
        images = resize_images(images, spec.size, spec.interpolation, spec.antialias)
    if images.shape[1] == 1 and spec.channels == 3:
        return images.expand(-1, 3, -1, -1)
    if images.shape[1] == 3 and spec.channels == 1:
        eye = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
        return (images * eye).sum(1, keepdim=True).round().byte()
    return images


def disagreement(outputs: Float[Tensor, "B K"], said: Float[Tensor, "B K"], task: Task, temperature: float) -> Loss:
    """(total, weight): how far the model is from its teacher, summed over pictures, each of which weighs 1.

    classes  T^2 KL(softmax(said / T) || softmax(outputs / T)): the gradient keeps its size for any temperature T
    labels   T^2 times the mean over labels of the same, for the two answers yes and no
    number   the mean over columns of (outputs - said)^2, without a temperature

    Source: Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network".
    """
    ours, theirs = outputs.float(), said.float()
    if task == "number":
        total = (ours - theirs).square().mean(1).sum()
    elif task == "classes":
        total = _divergence(*((each / temperature).log_softmax(1) for each in (ours, theirs))) * temperature**2
    else:
        divergence = _divergence(*(_yes_and_no(each / temperature) for each in (ours, theirs)))
        total = divergence * temperature**2 / ours.shape[1]
    return total, torch.full_like(total, len(outputs))


def _divergence(ours: Tensor, theirs: Tensor) -> Float[Tensor, ""]:
    """KL of our logarithms of probabilities from theirs, summed."""
    return F.kl_div(ours, theirs, reduction="sum", log_target=True)


def _yes_and_no(logits: Float[Tensor, "B K"]) -> Float[Tensor, "2 B K"]:
    return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)])


def _row(numbers: Sequence[float], like: Tensor) -> Float[Tensor, "1 K"]:
    return torch.tensor([numbers], dtype=torch.float64, device=like.device)
