"""A CNN teacher: trained first on the same images with the same augmentation."""

from __future__ import annotations

from collections.abc import Generator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...data.loader import Batch
from ...data.preprocess import normalize
from ...evaluate.inference import InferenceSettings, run_inference
from ...evaluate.quick_metrics import compute_quick_metrics
from ...files import safetensors_file
from ...formatting import format_count
from ...randomness import derive
from .. import phase
from ..batch_augment import augment_batch, mix_batch
from ..context import PlanContext, TrainContext
from ..dataset import Dataset
from ..events import Event, Note
from ..losses import Loss, build_loss, compute_loss_weights
from ..phase import CNN_TEACHER_FILE, TrainingPhase, load_module, plan_metadata
from ..plan import MAX_VALIDATION_IMAGES, Plan, Recipe
from ..run_folder import RunFolder

PHASE_NAME, PHASE_TITLE = "teacher", "training of the teacher"
CNN_LR = 3e-3
"""AdamW's peak learning rate."""


def train_cnn_teacher(context: TrainContext) -> Generator[Event, None, Plan]:
    """Train the CNN of a plan into the run folder, unless it is there already; return the plan with the steps that were
    made.

    Raises:
        InterruptedRun, DataError, DivergedError, ResourceError: see `phase.run_phase`.
    """
    run, plan = context.run, context.plan
    path = run.path / CNN_TEACHER_FILE
    if path.is_file():
        return plan
    network = init_cnn_teacher(plan)
    plan = yield from phase.run_phase(run, make_cnn_phase(context, network))
    safetensors_file.save_tensors(
        path, network.state_dict(), {"steps": str(plan.distill.steps), **plan_metadata(plan)}, checksum=True
    )
    phase.remove_phase_checkpoints(run, PHASE_NAME)
    yield Note(_describe_accuracy(plan, network, context.dataset))
    return plan


def load_cnn_teacher(run: RunFolder, plan: Plan) -> SmallCNN:
    """The trained CNN of a run.

    Raises:
        DamagedFileError: its file is damaged, or not of the plan's shape.
    """
    network = init_cnn_teacher(plan)
    load_module(run.path / CNN_TEACHER_FILE, network)
    return network


def init_cnn_teacher(plan: Plan) -> SmallCNN:
    """The CNN of a plan with its initial weights, on the device."""
    image, seed = plan.image, derive(plan.seed, "cnn")
    network = create_cnn(image.channels, image.size, plan.model.outputs, plan.distill.cnn_width, seed)
    return network.to(plan.compute.device)


def make_cnn_phase(context: PlanContext, network: SmallCNN, steps: int = 0) -> TrainingPhase:
    """The training of the CNN, for the plan's steps or for `steps`."""
    plan, dataset = context.plan, context.dataset
    seed, task, recipe = derive(plan.seed, PHASE_NAME), dataset.source.task, plan.recipe
    targets = dataset.loss_targets("train")
    weights = compute_loss_weights(task, recipe, targets, plan.model.outputs)
    loss = build_loss(task, recipe, None if weights is None else weights.to(plan.compute.device))

    def batch_loss(batch: Batch, step: int, epoch: int) -> Loss:
        augmented = augment_batch(batch, recipe, seed, epoch, plan.compute.device)
        augmented, mixed_targets, _ = mix_batch(augmented, batch, recipe, seed, epoch, plan.model.outputs)
        outputs: Tensor = network(normalize(augmented, plan.image))
        return loss(outputs, mixed_targets)

    return TrainingPhase(
        name=PHASE_NAME,
        title=PHASE_TITLE,
        plan=plan,
        module=network,
        recipe=Recipe(
            steps=steps or max(plan.distill.steps, 1),
            steps_history=() if steps else plan.distill.steps_history,
            batch_size=recipe.batch_size,
            repeated_augmentation=recipe.repeated_augmentation,
            optimizer="adamw",
            lr=CNN_LR,
            weight_decay=recipe.weight_decay,
            warmup=0.1,
            skip_spikes=recipe.skip_spikes,
            save_every=recipe.save_every,
        ),
        seed=seed,
        compute_loss=batch_loss,
        images=context.images,
        targets=targets,
        shard_ids=dataset.shard_ids("train"),
        advice="Look at the pictures (vitrail check), or take another teacher: the rates of this one are fixed.",
        image_names=dataset.source.ids,
    )


def _describe_accuracy(plan: Plan, network: SmallCNN, dataset: Dataset) -> str:
    """A sentence with its metric on the validation images."""
    rows = dataset.sample("val", MAX_VALIDATION_IMAGES, plan.seed)
    if not len(rows):
        return "The teacher is trained."
    images = dataset.load_images("val", plan.image, plan.compute.num_workers)
    settings = InferenceSettings(device=plan.compute.device, batch_size=250)
    outputs = run_inference(network, images, rows, plan.image, settings)
    metrics = compute_quick_metrics(dataset.source.task, outputs, dataset.metric_targets(rows))
    if metrics is None or metrics.value is None:
        return "The teacher is trained."
    return (
        f"The teacher is trained: {metrics.name} {metrics.value:.3f} on "
        f"{format_count(len(rows), 'validation picture')}."
    )


# -- SmallCNN: a convolutional teacher that learns small images quickly

FIRST_STAGE_SIDE = 28
"""Largest short side in pixels of the first stage, within a factor of two."""
MIN_POOLED_SIDE = 6
"""Smallest short side in pixels that is still pooled."""


class SmallCNN(nn.Module):
    """A small residual network (He et al. 2016): three stages of two convolutions, of w, 2w and 4w channels.

    Each stage pools by 2; the stride of the first convolution reduces larger images.
    """

    def __init__(self, channels: int, size: tuple[int, int], outputs: int, width: int):
        super().__init__()
        stride = max(1, min(size) // FIRST_STAGE_SIDE)
        self.enter = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            ConvStage(width, width), ConvStage(width, 2 * width), ConvStage(2 * width, 4 * width)
        )
        self.head = nn.Linear(4 * width, outputs)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        x = images.contiguous(memory_format=torch.channels_last)  # 1.5 times as fast on CPUs
        x = F.relu(self.norm(self.enter(x)))
        return self.head(self.stages(x).mean((2, 3)))


class ConvStage(nn.Module):
    """A convolution, 2x2 max pooling, and x + conv(x)."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: Float[Tensor, "B c H W"]) -> Float[Tensor, "B d h w"]:
        x = self.first(x)
        x = F.max_pool2d(x, 2) if min(x.shape[-2:]) >= MIN_POOLED_SIDE else x
        x = F.relu(self.norm1(x))
        return F.relu(x + self.norm2(self.second(x)))


@torch.no_grad()
def create_cnn(channels: int, size: tuple[int, int], outputs: int, width: int, seed: int) -> SmallCNN:
    """A network with initial weights: normal with standard deviation fan_in^-0.5, the head zero.

    They depend on the seed alone, not on torch's global generator.
    """
    with torch.device("meta"):
        network = SmallCNN(channels, size, outputs, width)
    network.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.normal_(std=module.weight[0].numel() ** -0.5, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()  # ones and zeros, not random
    network.head.weight.zero_()
    network.head.bias.zero_()
    set_memory_format(network, torch.channels_last)
    return network


def set_memory_format(network: nn.Module, memory_format: torch.memory_format) -> None:
    """Set the memory format of the convolution kernels."""
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=memory_format)
