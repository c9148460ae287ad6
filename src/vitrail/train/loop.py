"""The training loop: a page of plain code that yields an event for each step to its caller."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64, Integer, Shaped
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from ..data.loader import Batch, ImageStore, iter_batches
from ..data.mask_store import MaskStore
from ..data.preprocess import normalize
from ..data.source import Task
from ..evaluate.inference import DTYPES
from ..model.vit import ViT, create_model
from ..randomness import derive, uniform
from ..runtime import is_out_of_memory
from . import cuda_graphs, optim
from .batch_augment import augment_batch, mix_batch, move_masks, resize_for_step
from .cuda_graphs import ForwardLoss
from .custom_functions import NO_CUSTOM_FUNCTIONS, CustomFunctions
from .distributed import prefetch
from .distributed.collectives import SINGLE_PROCESS, RankGroup
from .distributed.data_parallel import ParallelModel, choose_strategy
from .guards import Guards
from .losses import LossFunction, build_loss, compute_loss_weights, mean_loss
from .optim import ModelEma, layer_lr_scales, set_trainable
from .plan import Plan, Recipe
from .teacher_targets import DistillationTeacher


@dataclass(frozen=True)
class StepResult:
    """One optimiser step. `step` counts finished steps, `seconds` is its wall-clock time."""

    step: int
    epoch: float
    loss: float
    lr_factor: float
    num_images: int
    seconds: float


@dataclass
class TrainState:
    """Everything that a training changes; a checkpoint holds all of it but the teacher."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    ema: ModelEma | None
    sharded: bool = False
    """Whether FSDP2 shards the parameters over the ranks."""
    loss_scale: LossScale | None = None
    """For float16."""
    teacher: DistillationTeacher | None = None
    """The distillation teacher, whose weights do not change."""

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint beside the tensors, in JSON types."""
        return {} if self.loss_scale is None else {"loss_scale": self.loss_scale.state_dict()}

    def load_state_dict(self, facts: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; a checkpoint without it changes nothing."""
        if self.loss_scale is not None and "loss_scale" in facts:
            self.loss_scale.load_state_dict(facts["loss_scale"])


def build_train_state(model: ViT, plan: Plan, group: RankGroup = SINGLE_PROCESS) -> TrainState:
    """The model on its device, with the optimisers and the EMA of the recipe."""
    compute = plan.compute
    if compute.compile:
        torch.compiler.reset()  # earlier graphs, as of the throughput measurement, must not affect the kernels
    model.to(compute.device).train()
    set_trainable(model, plan.finetune, plan.seed)
    lr_scales = layer_lr_scales(model, plan.finetune.layer_decay)
    num_parameters = sum(p.numel() for p in model.parameters())
    sharded = choose_strategy(compute.strategy, group, num_parameters, compute.device)[0] == "fsdp"
    if sharded:
        from .distributed.fsdp import shard_model  # a second to import, for sharded runs only

        shard_model(model, group, compute.device)
    ema = ModelEma(model, plan.recipe.ema_decay) if plan.recipe.ema_decay else None
    compiled = compute.compile and compute.device.startswith("cuda")
    optimizers: list[torch.optim.Optimizer] = []
    if plan.recipe.steps:  # the first one imports torch's compiler, which takes two seconds
        optimizers = optim.build_optimizers(model, plan.recipe, compute.device, sharded, compiled, lr_scales)
    return TrainState(model, optimizers, ema, sharded, LossScale() if compute.precision == "float16" else None)


def train_steps(
    train_state: TrainState,
    images: ImageStore,
    targets: Shaped[np.ndarray, " n *K"] | MaskStore,
    plan: Plan,
    start: int = 0,
    shard_ids: Int64[np.ndarray, " n"] | None = None,
    task: Task = "classification",
    guards: Guards | None = None,
    group: RankGroup = SINGLE_PROCESS,
    custom_functions: CustomFunctions = NO_CUSTOM_FUNCTIONS,
    image_weights: Float32[np.ndarray, " n"] | None = None,
) -> Iterator[StepResult]:
    """Train from step `start` to the plan's last; yields a result after each step.

    The learning rate, the dropped patches, the augmentation and dropout depend on the seed and the step alone, so a
    run that stops after any step and starts again there ends with the same bits.

    The recipe is that of the guards, whose steps may be replanned between two steps.

    Args:
        targets: in the order of `images.indices`: class numbers [n] or the probability of each class [n, K]; for
            labels and numbers float32 [n, K], in which NaN is unknown and masked; masks at the size of the images.
        shard_ids: the shard of each image, where images lie in shards.
        guards: decide which steps are applied; new ones unless given.
        group: the ranks that train together, each on its part of the same batches.
        image_weights: the loss weight of each image, in the order of the targets and with mean 1; None is 1 for all.

    Raises:
        PeerError: another process of the group died.
        DivergedError: three steps in a row gave a loss or gradient that is not finite; none of them was applied.
    """
    recipe, device, teacher = plan.recipe, plan.compute.device, train_state.teacher
    guards = guards or Guards(recipe)
    if custom_functions.loss is not None:
        loss: LossFunction = custom_functions.compute_loss
    else:
        balance = None
        if not isinstance(targets, MaskStore):
            balance = compute_loss_weights(task, recipe, targets, plan.model.outputs)
        loss = build_loss(task, recipe, None if balance is None else balance.to(device), plan.model)
    parallel = ParallelModel(train_state.model, group, train_state.sharded)
    recorded = cuda_graphs.can_record(plan, group) and custom_functions.loss is None and task != "segmentation"
    forward_loss = make_forward_loss(parallel, loss, plan, recorded)
    cached = prefetch.cache_on_gpu(images, device)
    batches = iter_batches(
        cached,
        targets,
        recipe.batch_size,
        plan.seed,
        start,
        recipe.repeated_augmentation,
        shard_ids,
        group.rank,
        group.world_size,
        image_weights,
    )
    start_time = time.perf_counter()
    for step, epoch, batch in prefetch.prefetch_to_device(batches, device):
        if guards.recipe is not recipe:
            recipe = guards.recipe
            plan = dataclasses.replace(plan, recipe=recipe)
        if step == recipe.steps:
            return
        group.step = step + 1
        optim.set_learning_rates(train_state.optimizers, recipe, step)
        torch.manual_seed(derive(plan.seed, "dropout", step, *([group.rank] if group.rank else [])))
        augmented = custom_functions.apply_augment(augment_batch(batch, recipe, plan.seed, epoch, device))
        batch = move_masks(batch, recipe, plan.seed, epoch, device)
        augmented, mixed_targets, weights = mix_batch(augmented, batch, recipe, plan.seed, epoch, plan.model.outputs)
        teacher_outputs = None if teacher is None else teacher.predict(augmented)
        patch_rows = sample_patch_rows(batch, plan, step, epoch)
        shrunk = resize_for_step(augmented, plan, step)
        step_input = StepInput(shrunk, patch_rows, mixed_targets, teacher_outputs, weights)
        scale = 1.0 if train_state.loss_scale is None else train_state.loss_scale.factor
        average, logits = accumulate_gradients(
            parallel, forward_loss, loss, step_input, plan.model.output_shape, recipe.grad_accum_steps, scale, teacher
        )
        loss_value = apply_step(train_state, recipe, guards, step, average, batch, logits)
        epochs_done = (step + 1) * min(recipe.batch_size // recipe.repeated_augmentation, len(targets)) / len(targets)
        seconds = time.perf_counter() - start_time
        yield StepResult(
            step + 1, epochs_done, loss_value, recipe.lr_factor(step), len(batch.indices) * group.world_size, seconds
        )
        start_time = time.perf_counter()  # the caller's work in between is not training


def sample_patch_rows(batch: Batch, plan: Plan, step: int, epoch: int) -> Int[Tensor, "B n"] | None:
    """The patches of each image that this step uses; None means all of them."""
    patches = plan.recipe.grid_at(step, plan.model.grid).patches
    kept = plan.recipe.patches_at(step, patches)
    if kept == patches:
        return None
    order = uniform(plan.seed, "patches", epoch, batch.random_keys, patches).argsort(axis=1)[:, :kept]
    return torch.from_numpy(np.sort(order, axis=1)).to(plan.compute.device)


def apply_step(
    train_state: TrainState,
    recipe: Recipe,
    guards: Guards,
    step: int,
    loss: Tensor,
    batch: Batch,
    logits: Tensor | None = None,
) -> float:
    """Apply the optimisers if the guards allow it, and drop the gradients; returns the loss.

    Args:
        logits: to name the images whose output is not finite.
    """
    model, loss_scale = train_state.model, train_state.loss_scale
    scale = 1.0 if loss_scale is None else loss_scale.factor
    if loss_scale is not None:
        loss_scale.unscale(model.parameters())
    if recipe.grad_clip_norm:
        norm = clip_grad_norm_(model.parameters(), recipe.grad_clip_norm)
    else:
        norm = get_total_norm([each.grad for each in model.parameters() if each.grad is not None])
    if train_state.sharded:
        from .distributed.fsdp import to_full_tensor  # a second to import, for sharded runs only

        norm = to_full_tensor(norm)
    loss_value, norm_value = torch.stack([loss.detach(), norm.to(loss)]).tolist()  # the one wait for the device
    allowed = guards.is_applying = guards.allow(step, loss_value, norm_value, batch, logits, scale)
    if loss_scale is not None:
        loss_scale.update(math.isfinite(loss_value) and not math.isfinite(norm_value))
    for optimizer in train_state.optimizers:
        if allowed:
            optimizer.step()
        optimizer.zero_grad()
    if allowed and train_state.ema is not None:
        train_state.ema.update(model, step)
    guards.is_applying = False
    return float(loss_value)


# -- Gradients of one step: forward and backward in micro-batches, summed over ranks


class StepInput(NamedTuple):
    """One rank's part of a batch, after augmentation and mixing."""

    images: Integer[Tensor, "B C H W"]
    patch_rows: Int[Tensor, "B n"] | None
    """The used patches of each image; None is all."""
    targets: Tensor
    teacher_outputs: Float[Tensor, "B K"] | None = None
    weights: Float[Tensor, " B"] | None = None


def make_forward_loss(parallel: ParallelModel, loss: LossFunction, plan: Plan, recorded: bool = False) -> ForwardLoss:
    """The function that is differentiated, from images to the loss; compiled as one graph if the plan says so.

    Args:
        recorded: replay the kernels as CUDA graphs; what one call returns, the next overwrites.
    """
    dtype = DTYPES[plan.compute.precision]

    def loss_of_input(x: Tensor, rows: Tensor | None, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            outputs = parallel.forward(x, rows)
        return loss(outputs, targets, weights)[0], outputs

    differentiated = cuda_graphs.GraphedForwardLoss(parallel, loss_of_input) if recorded else loss_of_input

    def forward_loss(
        images: Tensor, rows: Tensor | None, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return differentiated(normalize(images, plan.image), rows, targets, weights)

    # One graph per size: dynamic kernels depend on the sizes seen before, and a resumed run would differ.
    return torch.compile(forward_loss, dynamic=False) if plan.compute.compile else forward_loss


def accumulate_gradients(
    parallel: ParallelModel,
    forward_loss: ForwardLoss,
    loss: LossFunction,
    step_input: StepInput,
    output_shape: Sequence[int],
    num_parts: int = 1,
    scale: float = 1.0,
    teacher: DistillationTeacher | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B *N K"]]:
    """Leave d(total / weight) over all ranks and micro-batches in the parameters' gradients.

    Returns that loss, and this rank's outputs. The weight depends on the targets alone, so it is known before the first
    micro-batch: each is divided by it, and the sum of their gradients is that of the whole.

    Args:
        output_shape: of one image.
        num_parts: number of micro-batches.
        scale: factor of the gradients, for float16.
        teacher: its loss term is divided by the images of all ranks.
    """
    targets = step_input.targets
    zeros = torch.zeros(len(targets), *output_shape, device=targets.device)
    weight = parallel.group.all_reduce_sum(loss(zeros, targets)[1])
    factor = parallel.group.world_size * scale
    num_images = parallel.group.all_reduce_sum(torch.full_like(weight, len(targets))) if teacher else weight
    outputs: list[Tensor] = []
    total, teacher_total = torch.zeros(2, device=targets.device)
    micro_batches = [[None] * num_parts if each is None else each.tensor_split(num_parts) for each in step_input]
    parts = enumerate(zip(*micro_batches, strict=True), 1)
    for index, (images, rows, part_targets, part_teacher, part_weights) in parts:
        with parallel.gradient_sync(is_last=index == num_parts):
            part_total, part_outputs = forward_loss(images, rows, part_targets, part_weights)
            value = mean_loss(part_total, weight)
            if teacher is not None:
                part_teacher_total = teacher.compute_loss(part_outputs, part_teacher)[0]
                value = teacher.blend_losses(value, mean_loss(part_teacher_total, num_images))
                teacher_total += part_teacher_total.detach()
            (value * factor).backward()
        total += part_total.detach()
        outputs.append(part_outputs.detach())
    average = mean_loss(parallel.group.all_reduce_sum(total), weight)
    if teacher is not None:
        average = teacher.blend_losses(average, mean_loss(parallel.group.all_reduce_sum(teacher_total), num_images))
    return average, outputs[0] if num_parts == 1 else torch.cat(outputs)


# -- Out of memory: find by trial the batch size that fits


def find_largest_batch(fits: Callable[[int], None], batch: int) -> int:
    """The largest of batch/2, batch/4, ... for which `fits` does not run out of memory; 0 if none does."""
    size = batch // 2
    while size:
        try:
            fits(size)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            size //= 2
        else:
            return size
    return 0


def try_step(train_state: TrainState, plan: Plan, batch: int) -> None:
    """Forward and backward pass of a batch of black images, which take most memory of a step; drops the gradients."""
    device, dtype = plan.compute.device, DTYPES[plan.compute.precision]
    images = torch.zeros(batch, plan.image.channels, *plan.image.size, device=device)
    try:
        with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
            outputs = train_state.model(images)
        outputs.float().sum().backward()
    finally:
        train_state.model.zero_grad()


def images_per_forward(plan: Plan, world_size: int = 1) -> int:
    """Images of one micro-batch on one rank."""
    return -(-plan.recipe.batch_size // (world_size * plan.recipe.grad_accum_steps))


def advise_smaller_batch(train_state: TrainState, plan: Plan, command: str, world_size: int = 1) -> str:
    """A sentence with the command that fits into the memory.

    Args:
        command: the start of the command; a flag is appended.
        world_size: with several ranks nothing is tried, because one cannot try alone.
    """
    if world_size > 1:
        parts = 2 * plan.recipe.grad_accum_steps
        return f"Take the same batches in {parts} parts each: {command} --recipe.grad_accum_steps {parts}"
    size = find_largest_batch(lambda batch: try_step(train_state, plan, batch), images_per_forward(plan))
    if not size:
        return "Not even a single picture fits: use a smaller --image-size or model."
    parts = -(-plan.recipe.batch_size // size)
    return (
        f"{size} at once do (tried just now). Take the same batches in {parts} parts each: {command} "
        f"--recipe.grad_accum_steps {parts}"
    )


# -- Loss scaling: float16 ends at 6e-8, so losses are scaled up to keep small gradients

INITIAL_SCALE, MAX_SCALE = 2.0**16, 2.0**24
GROWTH_INTERVAL = 2000


class LossScale:
    """The factor of the loss: halved after gradients that overflowed, doubled after 2,000 steps without overflow.

    All optimisers step or none does; torch's GradScaler decides for each optimiser.
    Source: Micikevicius et al. 2018, section 3.2.
    """

    def __init__(self) -> None:
        self.factor = INITIAL_SCALE
        """A power of two, so scaling and unscaling are exact."""
        self._good = 0

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the factor."""
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / self.factor)

    def update(self, overflowed: bool) -> None:
        """Adjust the factor after a step."""
        self._good = 0 if overflowed else self._good + 1
        if overflowed:
            self.factor = max(1.0, self.factor / 2)
        elif self._good == GROWTH_INTERVAL:
            self.factor, self._good = min(MAX_SCALE, self.factor * 2), 0

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, in JSON types."""
        return {"factor": self.factor, "good": self._good}

    def load_state_dict(self, facts: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.factor, self._good = float(facts["factor"]), int(facts["good"])


# -- Gathering a sharded train state for evaluation or export


@torch.no_grad()
def gather_train_state(train_state: TrainState, plan: Plan, group: RankGroup) -> TrainState:
    """Gather the weights and EMA into a plain model, on all ranks at once; a plain train state is returned as it is."""
    if not train_state.sharded:
        return train_state
    from .distributed.fsdp import to_full_tensor  # a second to import, for sharded runs only

    with group.translate_errors():
        model = create_model(plan.model, plan.seed).to(plan.compute.device).train()
        for plain, shard in zip(_all_tensors(model), _all_tensors(train_state.model), strict=True):
            plain.copy_(to_full_tensor(shard))
        ema = None
        if train_state.ema is not None:
            ema = ModelEma(model, train_state.ema.decay)
            for name, shard in train_state.ema.weights.items():
                ema.weights[name].copy_(to_full_tensor(shard))
    return TrainState(model, [], ema)


def _all_tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
