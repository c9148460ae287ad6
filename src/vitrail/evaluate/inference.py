"""From a model and pictures to logits: the one forward pass that evaluation and prediction share."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from ..data.loader import ImageStore
from ..data.preprocess import normalize
from ..data.source import Task
from ..errors import UsageError
from ..model.config import ViTConfig
from ..model.layers import cast_linear_weights
from ..model.vit import ViT
from ..runtime import set_thread_count
from ..spec import ImageSpec
from .tta import TtaViews

NO_TTA = TtaViews()
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def run_inference(
    model: nn.Module,
    image_store: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    batch_size: int = 64,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    views: TtaViews = NO_TTA,
    task: Task = "classes",
) -> np.ndarray:
    """Outputs float32 [n, K] of the pictures at `indices`, in that order: logits, or numbers as they were learnt.

    The answers to all views of a picture are averaged, as `averaged` says for each task. The model is on `device`
    already and comes back in the mode it came in.

    Raises:
        UsageError: an unknown number format, or a batch below 1.
    """
    parts, _ = _run_batches(
        model, image_store, indices, spec, batch_size, device, precision, views, task, with_features=False
    )
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def run_inference_with_features(
    model: ViT,
    image_store: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    batch_size: int = 64,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    views: TtaViews = NO_TTA,
    task: Task = "classes",
) -> tuple[np.ndarray, np.ndarray]:
    """The same outputs, and what the head reads of each picture's last block, float32 [n, D].

    Raises:
        as `collect`.
    """
    parts, read = _run_batches(
        model, image_store, indices, spec, batch_size, device, precision, views, task, with_features=True
    )
    blank = [np.zeros((0, width), np.float32) for width in (model.config.outputs, model.config.width)]
    return np.concatenate([blank[0], *parts]), np.concatenate([blank[1], *read])


def _run_batches(
    model: nn.Module,
    image_store: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    batch_size: int,
    device: str | torch.device,
    precision: str,
    views: TtaViews,
    task: Task,
    with_features: bool,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Outputs batch by batch, and features where they are `with_features`."""
    if batch_size < 1:
        raise UsageError(f"batch must be at least 1. Got {batch_size}.")
    parts: list[np.ndarray] = []
    read: list[np.ndarray] = []
    with inference_mode(model):
        for images in _prefetch_batches(image_store, indices, batch_size):
            outputs, features = forward_batch(model, images, spec, device, precision, views, task, with_features)
            parts.append(outputs.cpu().numpy())
            if features is not None:
                read.append(features.cpu().numpy())
    return parts, read


def _prefetch_batches(
    image_store: ImageStore, indices: np.ndarray, batch_size: int
) -> Iterator[UInt8[Tensor, "B C H W"]]:
    """Batches in order; the next one is being decoded while the model works on this one."""
    waiting: Callable[[], Tensor] | None = None
    for start in range(0, len(indices), batch_size):
        ready, waiting = waiting, image_store.begin(indices[start : start + batch_size])
        if ready is not None:
            yield ready()
    if waiting is not None:
        yield waiting()


def cast_weights(model: nn.Module, precision: str) -> nn.Module:
    """The model as it answers in a number format: matrices are cast once and not at every batch."""
    dtype = DTYPES.get(precision, torch.float32)
    return model if dtype == torch.float32 else cast_linear_weights(model, dtype)


def forward_batch(
    model: nn.Module,
    images: UInt8[Tensor, "B C H W"],
    spec: ImageSpec,
    device: str | torch.device,
    precision: str,
    views: TtaViews,
    task: Task = "classes",
    with_features: bool = False,
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B D"] | None]:
    """Outputs for one batch of prepared pictures, float32 on the device; call it inside `answering(model)`.

    Args:
        with_features: also give what the head reads of the last block, of the pictures as they are; the model is a ViT then.
    """
    if precision not in DTYPES:
        raise UsageError(f"The number format must be one of {', '.join(DTYPES)}. Got {precision!r}.")
    device = torch.device(device)
    if (parts := num_parallel_parts(model, images, device, precision)) > 1:
        one = partial(
            _forward_views,
            model,
            spec=spec,
            device=device,
            precision=precision,
            views=views,
            task=task,
            with_features=with_features,
        )
        outputs, features = zip(*run_in_parallel(one, images, parts), strict=True)
        return torch.cat(outputs), torch.cat(features) if with_features else None
    return _forward_views(model, images, spec, device, precision, views, task, with_features)


def _forward_views(
    model: nn.Module,
    images: UInt8[Tensor, "B C H W"],
    spec: ImageSpec,
    device: torch.device,
    precision: str,
    views: TtaViews,
    task: Task,
    with_features: bool,
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B D"] | None]:
    """The same, by as many threads as this one has."""
    dtype = DTYPES[precision]
    x = normalize(images.to(device), spec)  # [B, C, H, W] float32
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        itself, *others = views.iter_views(x)
        features = None
        if with_features:
            assert isinstance(model, ViT)
            kept = model.features(itself, keep=("pooled", "outputs"))
            logits, features = kept["outputs"].float(), kept["pooled"][..., -model.config.width :].float()
        else:
            logits = model(itself).float()
        if not others:
            return logits, features
        outputs = torch.stack([logits, *(model(view).float() for view in others)])  # [views, B, K]
    return average_outputs(outputs, task), features


def average_outputs(views: Float[Tensor, "views B K"], task: Task) -> Float[Tensor, "B K"]:
    """The outputs whose answers are the mean of several: probabilities for classes and labels, values for numbers.

    For classes they are the logarithms of the mean probabilities, for labels log(p / (1 - p)) of each.
    """
    if task == "classes":
        return views.log_softmax(-1).logsumexp(0) - np.log(len(views))
    if task == "labels":
        return F.logsigmoid(views).logsumexp(0) - F.logsigmoid(-views).logsumexp(0)
    return views.mean(0)


def softmax(logits: np.ndarray) -> np.ndarray:
    """The softmax of each row, computed in float64 and given as float32 [n, K]."""
    if not logits.size:
        return logits.astype(np.float32)
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).astype(np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The sigmoid of each logit, computed in float64 and given as float32 [n, K]: every label has its own."""
    from scipy.special import expit

    return np.asarray(expit(logits.astype(np.float64))).astype(np.float32)


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[None]:
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


# A batch on several cores: each core answers pictures of its own, instead of all sharing every operation.
#
# Threads that share an operation wait for each other at its end, about a hundred times for one pass through a ViT,
# and for every core that another program takes for a moment. Whole pictures wait once. What a core works on at once
# is small enough for its own cache. The figures are in EXPERIMENTS.md.

ResultT = TypeVar("ResultT")
MAX_THREAD_TEAMS = 4
"""Parts that are computed at once: with more, Python, which runs one at a time, would be what they wait for."""
MIN_PART_NUMBERS = 2**16
"""Numbers (pictures x tokens x width) that are worth a team of its own; with fewer, Python takes longer than they."""
MAX_PART_NUMBERS = 2**18
"""As many as a core is given at once, where there are so few cores that each is a team: 1 MiB in float32."""


def num_parallel_parts(model: nn.Module, images: UInt8[Tensor, "B C H W"], device: torch.device, precision: str) -> int:
    """How many parts a batch is best answered in: 1 for shared operations, else a number of parts for each team.

    Only a plain ViT is split, whole or as far as its head: what else wraps one (compiled, spread over processes) need
    not be called by several threads.
    """
    plain = model.model if isinstance(model, FeatureExtractor) else model
    if device.type != "cpu" or type(plain) is not ViT:
        return 1
    return num_parallel_parts_on(torch.get_num_threads(), plain.config, len(images), precision)


def num_parallel_parts_on(threads: int, config: ViTConfig, num_images: int, precision: str) -> int:
    """The same for so many pictures, by so many threads of a processor."""
    teams = min(threads, MAX_THREAD_TEAMS)
    if not 1 < teams <= num_images:
        return 1
    numbers = num_images * config.tokens * config.width
    if numbers < teams * MIN_PART_NUMBERS:
        return 1
    if precision != "float32":
        return teams  # autocast makes its copies of the weights anew for each part
    return min(num_images, teams * math.ceil(numbers / (threads * MAX_PART_NUMBERS)))


def run_in_parallel(
    forward: Callable[[UInt8[Tensor, "b C H W"]], ResultT], images: UInt8[Tensor, "B C H W"], parts: int
) -> list[ResultT]:
    """What `forward` says of each part of a batch, in their order; teams of torch's threads take one after another."""

    def alone(part: Tensor) -> ResultT:
        with torch.inference_mode():
            return forward(part)

    return list(_get_thread_pool(torch.get_num_threads()).map(alone, images.tensor_split(parts)))


class _ThreadPoolCache(threading.local):
    """The teams of a thread, for so many threads of this process: one that was forked off has none of them."""

    owner: tuple[int, int] = (0, 0)
    executor: ThreadPoolExecutor | None = None


_THREAD_POOLS = _ThreadPoolCache()


def _get_thread_pool(threads: int) -> ThreadPoolExecutor:
    """The calling thread's teams, kept until it asks for another number of threads."""
    whose = (os.getpid(), threads)
    if _THREAD_POOLS.executor is None or _THREAD_POOLS.owner != whose:
        if _THREAD_POOLS.executor is not None:
            _THREAD_POOLS.executor.shutdown(wait=False)
        _THREAD_POOLS.owner, _THREAD_POOLS.executor = whose, _start_thread_pool(min(threads, MAX_THREAD_TEAMS), threads)
    return _THREAD_POOLS.executor


def _start_thread_pool(teams: int, threads: int) -> ThreadPoolExecutor:
    """So many teams, all of them begun."""
    begun = threading.Barrier(teams + 1)

    def begin() -> None:
        set_thread_count(threads // teams)
        begun.wait()

    made = ThreadPoolExecutor(teams, thread_name_prefix="vitrail-team")
    for _ in range(teams):
        made.submit(begin)
    begun.wait()
    set_thread_count(threads)  # threads that begin later take what was set last, wherever that was
    return made


# A ViT as far as its head: the features that a probe reads, as a model of their own.


class FeatureExtractor(nn.Module):
    """What the head of a model reads: pictures [B, C, H, W], or their mirror images, to pooled features [B, P]."""

    def __init__(self, model: ViT, mirrored: bool = False):
        super().__init__()
        self.model, self.mirrored = model, mirrored

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B P"]:
        x, places = self.model.embed(images.flip(-1) if self.mirrored else images)
        pooled: Tensor = self.model.pool(self.model.encoder(x, places, self.model.config.pool_span))
        return pooled
