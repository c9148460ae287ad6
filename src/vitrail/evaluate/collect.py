"""From a model and pictures to logits: the one forward pass that evaluation and prediction share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ..data.loader import ImageStore
from ..data.preprocess import normalize
from ..data.source import Task
from ..errors import UsageError
from ..model.layers import cast_linear_weights
from ..model.vit import ViT
from ..spec import ImageSpec
from .side_by_side import parts_of, side_by_side
from .views import Views

ITSELF = Views()
NUMBER_FORMATS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def collect(
    model: nn.Module,
    pictures: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    batch: int = 64,
    device: str | torch.device = "cpu",
    number_format: str = "float32",
    views: Views = ITSELF,
    task: Task = "classes",
) -> np.ndarray:
    """Outputs float32 [n, K] of the pictures at `indices`, in that order: logits, or numbers as they were learnt.

    The answers to all views of a picture are averaged, as `averaged` says for each task. The model is on `device`
    already and comes back in the mode it came in.

    Raises:
        UsageError: an unknown number format, or a batch below 1.
    """
    parts, _ = _gathered(model, pictures, indices, spec, batch, device, number_format, views, task, seen=False)
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def collect_with_features(
    model: ViT,
    pictures: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    batch: int = 64,
    device: str | torch.device = "cpu",
    number_format: str = "float32",
    views: Views = ITSELF,
    task: Task = "classes",
) -> tuple[np.ndarray, np.ndarray]:
    """The same outputs, and what the head reads of each picture's last block, float32 [n, D].

    Raises:
        as `collect`.
    """
    parts, read = _gathered(model, pictures, indices, spec, batch, device, number_format, views, task, seen=True)
    blank = [np.zeros((0, width), np.float32) for width in (model.config.outputs, model.config.width)]
    return np.concatenate([blank[0], *parts]), np.concatenate([blank[1], *read])


def _gathered(
    model: nn.Module,
    pictures: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    batch: int,
    device: str | torch.device,
    number_format: str,
    views: Views,
    task: Task,
    seen: bool,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Outputs batch by batch, and features where they are `seen`."""
    if batch < 1:
        raise UsageError(f"batch must be at least 1. Got {batch}.")
    parts: list[np.ndarray] = []
    read: list[np.ndarray] = []
    with answering(model):
        for images in _batches(pictures, indices, batch):
            outputs, features = outputs_of(model, images, spec, device, number_format, views, task, seen)
            parts.append(outputs.cpu().numpy())
            if features is not None:
                read.append(features.cpu().numpy())
    return parts, read


def _batches(pictures: ImageStore, indices: np.ndarray, batch: int) -> Iterator[UInt8[Tensor, "B C H W"]]:
    """Batches in order; the next one is being decoded while the model works on this one."""
    waiting: Callable[[], Tensor] | None = None
    for start in range(0, len(indices), batch):
        ready, waiting = waiting, pictures.begin(indices[start : start + batch])
        if ready is not None:
            yield ready()
    if waiting is not None:
        yield waiting()


def made_ready(model: nn.Module, number_format: str) -> nn.Module:
    """The model as it answers in a number format: matrices are cast once and not at every batch."""
    dtype = NUMBER_FORMATS.get(number_format, torch.float32)
    return model if dtype == torch.float32 else cast_linear_weights(model, dtype)


def outputs_of(
    model: nn.Module,
    images: UInt8[Tensor, "B C H W"],
    spec: ImageSpec,
    device: str | torch.device,
    number_format: str,
    views: Views,
    task: Task = "classes",
    seen: bool = False,
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B D"] | None]:
    """Outputs for one batch of prepared pictures, float32 on the device; call it inside `answering(model)`.

    Args:
        seen: also give what the head reads of the last block, of the pictures as they are; the model is a ViT then.
    """
    if number_format not in NUMBER_FORMATS:
        raise UsageError(f"The number format must be one of {', '.join(NUMBER_FORMATS)}. Got {number_format!r}.")
    device = torch.device(device)
    if (parts := parts_of(model, images, device, number_format)) > 1:
        one = partial(
            _outputs, model, spec=spec, device=device, number_format=number_format, views=views, task=task, seen=seen
        )
        outputs, features = zip(*side_by_side(one, images, parts), strict=True)
        return torch.cat(outputs), torch.cat(features) if seen else None
    return _outputs(model, images, spec, device, number_format, views, task, seen)


def _outputs(
    model: nn.Module,
    images: UInt8[Tensor, "B C H W"],
    spec: ImageSpec,
    device: torch.device,
    number_format: str,
    views: Views,
    task: Task,
    seen: bool,
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B D"] | None]:
    """The same, by as many threads as this one has."""
    dtype = NUMBER_FORMATS[number_format]
    x = normalize(images.to(device), spec)  # [B, C, H, W] float32
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        itself, *others = views.of_each(x)
        features = None
        if seen:
            assert isinstance(model, ViT)
            kept = model.features(itself, keep=("pooled", "outputs"))
            logits, features = kept["outputs"].float(), kept["pooled"][..., -model.config.width :].float()
        else:
            logits = model(itself).float()
        if not others:
            return logits, features
        outputs = torch.stack([logits, *(model(view).float() for view in others)])  # [views, B, K]
    return averaged(outputs, task), features


def averaged(views: Float[Tensor, "views B K"], task: Task) -> Float[Tensor, "B K"]:
    """The outputs whose answers are the mean of several: probabilities for classes and labels, values for numbers.

    For classes they are the logarithms of the mean probabilities, for labels log(p / (1 - p)) of each.
    """
    if task == "classes":
        return views.log_softmax(-1).logsumexp(0) - np.log(len(views))
    if task == "labels":
        return F.logsigmoid(views).logsumexp(0) - F.logsigmoid(-views).logsumexp(0)
    return views.mean(0)


def probabilities_of(logits: np.ndarray) -> np.ndarray:
    """The softmax of each row, computed in float64 and given as float32 [n, K]."""
    if not logits.size:
        return logits.astype(np.float32)
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).astype(np.float32)


def chances_of(logits: np.ndarray) -> np.ndarray:
    """The sigmoid of each logit, computed in float64 and given as float32 [n, K]: every label has its own."""
    from scipy.special import expit

    return np.asarray(expit(logits.astype(np.float64))).astype(np.float32)


@contextmanager
def answering(model: nn.Module) -> Iterator[None]:
    """Dropout off and no gradients inside; afterwards every module is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
