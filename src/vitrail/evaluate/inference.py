"""Batched inference: images to outputs, the one forward pass that evaluation and prediction share."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor, nn

from ..caller_state import exact_float32
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

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """How predictions are computed; made once, where a model is opened or a training evaluates one.

    Raises:
        UsageError: an unknown precision, or a batch size below 1.
    """

    device: str | torch.device = "cpu"
    precision: str = "float32"
    """Of matrix products and convolutions, by autocast: float32, bfloat16 or float16."""
    views: TtaViews = field(default_factory=TtaViews)
    """Views of test-time augmentation, whose outputs are averaged."""
    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise UsageError(f"precision must be one of {', '.join(DTYPES)}. Got {self.precision!r}.")
        if self.batch_size < 1:
            raise UsageError(f"batch must be at least 1. Got {self.batch_size}.")


DEFAULT_SETTINGS = InferenceSettings()
MAX_BATCH_PIXELS = 2**26
"""Pixels of a batch, 800 MB in float32 and three channels; 250 images of 518 x 518."""


def run_inference(
    model: nn.Module,
    image_store: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    settings: InferenceSettings = DEFAULT_SETTINGS,
    task: Task = "classification",
) -> np.ndarray:
    """Run the model on the images at `indices`; returns outputs float32 [n, K] in that order.

    Outputs are logits, or standardized numbers for regression. Outputs of test-time augmentation views are averaged by
    `average_outputs`. The model must be on the device already; its training mode is restored.
    """
    parts, _ = _run_batches(model, image_store, indices, spec, settings, task, with_features=False)
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def run_inference_with_features(
    model: ViT,
    image_store: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    settings: InferenceSettings = DEFAULT_SETTINGS,
    task: Task = "classification",
) -> tuple[np.ndarray, np.ndarray]:
    """As `run_inference`, and also the pooled features of the last block, float32 [n, D]."""
    parts, features = _run_batches(model, image_store, indices, spec, settings, task, with_features=True)
    empty = [np.zeros((0, width), np.float32) for width in (model.config.outputs, model.config.width)]
    return np.concatenate([empty[0], *parts]), np.concatenate([empty[1], *features])


def _run_batches(
    model: nn.Module,
    image_store: ImageStore,
    indices: np.ndarray,
    spec: ImageSpec,
    settings: InferenceSettings,
    task: Task,
    with_features: bool,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Outputs of every batch, and features if `with_features`."""
    outputs_parts: list[np.ndarray] = []
    feature_parts: list[np.ndarray] = []
    with inference_mode(model):
        for images in _prefetch_batches(image_store, indices, limit_batch_size(settings.batch_size, spec)):
            outputs, features = forward_batch(model, images, spec, settings, task, with_features)
            outputs_parts.append(outputs.cpu().numpy())
            if features is not None:
                feature_parts.append(features.cpu().numpy())
    return outputs_parts, feature_parts


def limit_batch_size(batch_size: int, spec: ImageSpec) -> int:
    """The batch size, or fewer images that are so large that a batch of them would fill the memory."""
    return max(1, min(batch_size, MAX_BATCH_PIXELS // (spec.height * spec.width)))


def _prefetch_batches(
    image_store: ImageStore, indices: np.ndarray, batch_size: int
) -> Iterator[Integer[Tensor, "B C H W"]]:
    """Batches in order; the next one is decoded while the model runs on the current one."""
    waiting: Callable[[], Tensor] | None = None
    for start in range(0, len(indices), batch_size):
        ready, waiting = waiting, image_store.begin(indices[start : start + batch_size])
        if ready is not None:
            yield ready()
    if waiting is not None:
        yield waiting()


def cast_weights(model: nn.Module, precision: str) -> nn.Module:
    """Cast the weight matrices to the precision once, instead of in every batch."""
    dtype = DTYPES.get(precision, torch.float32)
    return model if dtype == torch.float32 else cast_linear_weights(model, dtype)


def forward_batch(
    model: nn.Module,
    images: Integer[Tensor, "B C H W"],
    spec: ImageSpec,
    settings: InferenceSettings,
    task: Task = "classification",
    with_features: bool = False,
) -> tuple[Float[Tensor, " B *K"], Float[Tensor, "B D"] | None]:
    """Outputs of one batch of preprocessed images, float32 on the device; for a model in `inference_mode`.

    Args:
        with_features: also return the pooled features of the last block, without augmentation; needs a ViT.
    """
    device = torch.device(settings.device)
    forward = partial(
        _forward_views, model, spec=spec, device=device, settings=settings, task=task, with_features=with_features
    )
    parts = num_parallel_parts(model, images, device, settings.precision)
    with exact_float32():
        if parts == 1:
            return forward(images)
        outputs, features = zip(*run_in_parallel(forward, images, parts), strict=True)
    return torch.cat(outputs), torch.cat(features) if with_features else None


def _forward_views(
    model: nn.Module,
    images: Integer[Tensor, "B C H W"],
    spec: ImageSpec,
    device: torch.device,
    settings: InferenceSettings,
    task: Task,
    with_features: bool,
) -> tuple[Float[Tensor, " B *K"], Float[Tensor, "B D"] | None]:
    """`forward_batch` without splitting the batch over threads."""
    dtype, features = DTYPES[settings.precision], None
    x = normalize(images.to(device), spec)  # [B, C, H, W] float32
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        if with_features:
            assert isinstance(model, ViT)
            kept = model.features(x, keep=("pooled", "outputs"))
            logits, features = kept["outputs"].float(), kept["pooled"][..., -model.config.width :].float()
        else:
            logits = model(x).float()
        if not (settings.views.flip or settings.views.shift):
            return logits, features
        _, *others = settings.views.iter_views(x)
        outputs = torch.stack([logits, *(model(view).float() for view in others)])  # [views, B, K]
    return average_outputs(outputs, task), features


def average_outputs(views: Float[Tensor, "views B K"], task: Task) -> Float[Tensor, "B K"]:
    """Average outputs over views: in probability space for classes and labels, directly for regression.

    Returns log of the mean probabilities for classes, and the logit of the mean probability for labels.
    """
    if task == "classification":
        return views.log_softmax(-1).logsumexp(0) - np.log(len(views))
    if task == "multilabel":
        return F.logsigmoid(views).logsumexp(0) - F.logsigmoid(-views).logsumexp(0)
    return views.mean(0)


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; restores the training mode of every module afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


# -- Data parallelism on the CPU: each thread runs its own images
#
# Threads that share an operation synchronise at its end, about a hundred times in one forward pass of a ViT, and they
# wait for every core that another program takes for a moment. Threads with their own images synchronise once, and a
# part is small enough for the cache of a core. Measurements are in EXPERIMENTS.md.

ResultT = TypeVar("ResultT")
MAX_THREAD_TEAMS = 4
"""Parts that run at once; with more of them the global interpreter lock is the bottleneck."""
MIN_PART_NUMBERS = 2**16
"""Smallest part (images x tokens x width) worth its own threads; below it the overhead of Python dominates."""
MAX_PART_NUMBERS = 2**18
"""Largest part for one core: 1 MiB in float32."""


def num_parallel_parts(
    model: nn.Module, images: Integer[Tensor, "B C H W"], device: torch.device, precision: str
) -> int:
    """Number of parts to split a batch into; 1 leaves the parallelism to torch's operations.

    Only a plain ViT or its FeatureExtractor is split: other wrappers (compiled, distributed) need not be thread-safe.
    """
    plain = model.model if isinstance(model, FeatureExtractor) else model
    if device.type != "cpu" or type(plain) is not ViT:
        return 1
    return num_parallel_parts_on(torch.get_num_threads(), plain.config, len(images), precision)


def num_parallel_parts_on(threads: int, config: ViTConfig, num_images: int, precision: str) -> int:
    """`num_parallel_parts` for a plain ViT on a CPU with this many threads."""
    teams = min(threads, MAX_THREAD_TEAMS)
    if not 1 < teams <= num_images:
        return 1
    numbers = num_images * config.tokens * config.width
    if numbers < teams * MIN_PART_NUMBERS:
        return 1
    if precision != "float32":
        return teams  # autocast casts the weights again for each part
    return min(num_images, teams * math.ceil(numbers / (threads * MAX_PART_NUMBERS)))


def run_in_parallel(
    forward: Callable[[Shaped[Tensor, "b C H W"]], ResultT], images: Shaped[Tensor, "B C H W"], parts: int
) -> list[ResultT]:
    """Results of `forward` on each part of a batch, in order, computed by the thread pool."""

    def forward_part(part: Tensor) -> ResultT:
        with torch.inference_mode():
            return forward(part)

    return list(_get_thread_pool(torch.get_num_threads()).map(forward_part, images.tensor_split(parts)))


class _ThreadPoolCache(threading.local):
    """The thread pool of the calling thread, valid for one process and one thread count: a fork loses its threads."""

    owner: tuple[int, int] = (0, 0)
    """(process id, thread count)."""
    executor: ThreadPoolExecutor | None = None


_THREAD_POOLS = _ThreadPoolCache()


def _get_thread_pool(threads: int) -> ThreadPoolExecutor:
    """The calling thread's pool, kept until the process or the thread count changes."""
    owner = (os.getpid(), threads)
    if _THREAD_POOLS.executor is None or _THREAD_POOLS.owner != owner:
        if _THREAD_POOLS.executor is not None:
            _THREAD_POOLS.executor.shutdown(wait=False)
        _THREAD_POOLS.owner, _THREAD_POOLS.executor = owner, _start_thread_pool(min(threads, MAX_THREAD_TEAMS), threads)
    return _THREAD_POOLS.executor


def _start_thread_pool(teams: int, threads: int) -> ThreadPoolExecutor:
    """A pool of `teams` workers, each with its part of torch's threads; returns when all have started."""
    begun = threading.Barrier(teams + 1)

    def begin() -> None:
        set_thread_count(threads // teams)
        begun.wait()

    pool = ThreadPoolExecutor(teams, thread_name_prefix="vitrail-team")
    for _ in range(teams):
        pool.submit(begin)
    begun.wait()
    set_thread_count(threads)  # threads that start later take the last setting of any thread
    return pool


# -- Features


class FeatureExtractor(nn.Module):
    """A ViT without its head: images [B, C, H, W], or their mirror images, to pooled features [B, P], or of patches
    [B, N, P].
    """

    def __init__(self, model: ViT, mirrored: bool = False):
        super().__init__()
        self.model, self.mirrored = model, mirrored

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B *N P"]:
        images = images.flip(-1) if self.mirrored else images
        if self.model.tiling is not None:
            return self.model.pooled(images)
        x, places = self.model.embed(images)
        pooled: Tensor = self.model.pool(self.model.encoder(x, places, self.model.pool_span))
        return pooled


class SingleImages(nn.Module):
    """Another module that sees each image of a batch by itself: no output depends on the others, to the bit."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B *N P"]:
        if images.device.type == "cpu":
            return torch.cat(run_in_parallel(self.module, images, len(images)))
        return torch.cat([self.module(image[None]) for image in images])


class MaskedModel(nn.Module):
    """A model that sees only the pixels of a mask; the others are set to 0, the training mean."""

    def __init__(self, model: nn.Module, inputs: Bool[np.ndarray, "H W"]):
        super().__init__()
        self.model = model
        self.register_buffer("shown", torch.from_numpy(inputs.copy()), persistent=False)
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        assert isinstance(self.shown, Tensor)
        return self.model(torch.where(self.shown, images, 0.0))
