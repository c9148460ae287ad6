"""A custom loss or augmentation of the caller's Python program, named in the plan.

A plan stores the function's name. It is followed, and its run resumed, only where a function of that name is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Integer, Shaped
from torch import Tensor

from ..data.loader import Batch, ImageStore
from ..data.preprocess import white_level, widen
from ..errors import UsageError
from ..randomness import uniform
from ..runtime import is_out_of_memory
from .batch_augment import mix_batch
from .losses import Loss
from .plan import Plan

CustomLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs float32 [B, K] and targets to a loss per image [B], or their mean []."""
CustomAugment = Callable[[Tensor], Tensor]
"""From images [B, C, H, W], uint8 or at a bit depth of 16 int32 of levels 0..65535, to others of the same kind."""
REPLACED_FIELDS = ("label_smoothing", "class_weights", "mixup", "cutmix")
"""Recipe fields for the built-in losses, which are neutral under a custom loss unless set explicitly."""
NEUTRAL_VALUES = {"class_weights": "none"}


@dataclass(frozen=True)
class CustomFunctions:
    """The custom functions of a training; none by default."""

    loss: CustomLoss | None = None
    augment: CustomAugment | None = None

    def __bool__(self) -> bool:
        return self.loss is not None or self.augment is not None

    @property
    def plan_overrides(self) -> dict[str, str]:
        """Plan fields by their dotted names: the functions' names, and neutral values of what they replace."""
        overrides = {"recipe.custom_loss": qualified_name(self.loss)} if self.loss is not None else {}
        if self.loss is not None:
            overrides |= {f"recipe.{field}": NEUTRAL_VALUES.get(field, "0.0") for field in REPLACED_FIELDS}
        return overrides | ({"recipe.custom_augment": qualified_name(self.augment)} if self.augment is not None else {})

    def check(self, plan: Plan) -> None:
        """Check that the plan was made for these functions.

        Raises:
            UsageError: one is missing, too much, or another one.
        """
        for kind, planned, function in (
            ("loss", plan.recipe.custom_loss, self.loss), ("augment", plan.recipe.custom_augment, self.augment),
        ):  # fmt: skip
            description = "a loss of its own" if kind == "loss" else "an augmentation of its own"
            if planned and function is None:
                raise UsageError(
                    f"This training has {description}, {planned}: a function of the Python program that began it, "
                    f"which no file can hold. Give it in Python, vitrail.open(RUN).resume({kind}=...) or "
                    f"vitrail.fit(..., {kind}=...)."
                )
            if function is not None and qualified_name(function) != planned:
                raise UsageError(
                    f"This training has {f'{description}, {planned},' if planned else f'no {kind} of its own,'} and "
                    f"{kind}={qualified_name(function)} was given. Go on as it was begun, or begin a new run."
                )

    def try_out(
        self, plan: Plan, image_source: ImageStore, targets: Shaped[np.ndarray, " n *K"], is_weighted: bool = False
    ) -> None:
        """Call both functions with the first batch, before the training.

        Args:
            targets: in the order of `image_source.indices`, as `train_steps` takes them.
            is_weighted: the images have loss weights, which needs a loss for each of them.

        Raises:
            UsageError: a function fails, or its result is unusable; the message says what it should be.
        """
        if not self:
            return
        rows = image_source.indices[: plan.recipe.batch_size]
        batch = Batch(image_source.take(rows), torch.from_numpy(targets[: len(rows)]), rows)
        images = self.apply_augment(widen(batch.images.to(plan.compute.device)))
        if self.loss is None:
            return
        outputs = plan.model.outputs
        _, mixed_targets, _ = mix_batch(images, batch, plan.recipe, plan.seed, 0, outputs)
        drawn = uniform(plan.seed, "outputs for an own loss", 0, np.arange(len(rows)), outputs) - 0.5
        loss = self._try_loss(torch.from_numpy(drawn).float().to(images.device).requires_grad_(), mixed_targets)
        if is_weighted and not loss.ndim:
            raise UsageError(
                f"The loss {qualified_name(self.loss)} gives the mean of all pictures, so their weights cannot be "
                f"applied. It must give a number for each picture, a tensor [{len(rows)}], or leave the weights out."
            )

    def apply_augment(self, images: Integer[Tensor, "B C H W"]) -> Integer[Tensor, "B C H W"]:
        """The images after the custom augmentation, if there is one.

        Raises:
            UsageError: it failed, or returned another shape or dtype.
        """
        if self.augment is None:
            return images
        name, shape = qualified_name(self.augment), list(images.shape)
        dtype, white = str(images.dtype).removeprefix("torch."), white_level(images)
        try:
            augmented = self.augment(images)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise UsageError(
                f"The augmentation {name} failed on {dtype} pictures {shape}: {type(error).__name__}: {error}."
            ) from error
        if not isinstance(augmented, Tensor) or augmented.dtype != images.dtype or augmented.shape != images.shape:
            raise UsageError(
                f"The augmentation {name} must give back pictures as it takes them, {dtype} {shape}. Got "
                f"{_describe_value(augmented)}. Bring fractions back by images.round().clamp(0, {white})"
                f".to(torch.{dtype})."
            )
        return augmented.to(images.device)

    def compute_loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Loss:
        """The custom loss as (weighted sum over images, number of images), float32 scalars.

        With outputs that need no gradient only the weight counts, and the function is not called.

        Raises:
            UsageError: its result is neither a scalar nor one loss per image.
        """
        weight = torch.full((), float(len(outputs)), device=outputs.device)
        if not outputs.requires_grad:
            return torch.zeros_like(weight), weight
        assert self.loss is not None
        loss = self.loss(outputs.float(), targets)
        self._check_shape(loss, len(outputs))
        if weights is not None:
            loss = loss * weights
        return (loss.sum() if loss.ndim else loss * len(outputs)).float(), weight

    def _check_shape(self, value: object, num_images: int) -> None:
        if not isinstance(value, Tensor) or value.shape not in ((), (num_images,)):
            raise UsageError(
                f"The loss {qualified_name(self.loss)} must give a number for each picture, a tensor [{num_images}], "
                f"or one that is their mean, a tensor []. Got {_describe_value(value)}."
            )

    def _try_loss(self, outputs: Float32[Tensor, "B K"], targets: Tensor) -> Tensor:
        assert self.loss is not None
        name = qualified_name(self.loss)
        inputs = f"outputs {_describe_value(outputs)} and targets {_describe_value(targets)}"
        try:
            loss = self.loss(outputs, targets)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise UsageError(f"The loss {name} failed on {inputs}: {type(error).__name__}: {error}.") from error
        self._check_shape(loss, len(outputs))
        if not loss.is_floating_point():
            raise UsageError(f"The loss {name} must be of fractions, such as float32. Got {_describe_value(loss)}.")
        if not bool(loss.isfinite().all()):
            hint = " Unknown targets are NaN; leave them out." if bool(targets.isnan().any()) else ""
            raise UsageError(f"The loss {name} is NaN or infinite on the first batch, {inputs}.{hint}")
        gradient = None
        if loss.requires_grad:
            (gradient,) = torch.autograd.grad(loss.sum(), outputs, allow_unused=True)
        if gradient is None:
            raise UsageError(
                f"The loss {name} has no gradient by the outputs, so nothing can be learnt from it. Compute it by "
                "torch's operations alone: .item(), .detach(), argmax, comparisons and numpy end the gradient."
            )
        if not bool(gradient.isfinite().all()):
            raise UsageError(f"The gradient of the loss {name} is NaN or infinite on the first batch, {inputs}.")
        return loss


NO_CUSTOM_FUNCTIONS = CustomFunctions()


def qualified_name(function: object) -> str:
    """Module and name of a function, or of the class of a callable object."""
    wrapped = function.func if isinstance(function, functools.partial) else function
    named: Any = wrapped if hasattr(wrapped, "__qualname__") else type(wrapped)
    return f"{named.__module__ or 'builtins'}.{named.__qualname__}"


def _describe_value(value: object) -> str:
    """Dtype and shape of a tensor, the class of anything else."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
