"""Estimate the cost of a run: seconds from measured steps, CPU memory as measured, GPU memory by a formula."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...data.loader import ImageStore
from ...evaluate.inference import InferenceSettings, run_inference
from ...model.attention import choose_path, device_capability, should_recompute_weights
from ...model.vit import ViT, create_model, parameter_count
from ...report.saliency import MAX_EXPLANATIONS
from .. import events as events_module
from ..dataset import Dataset
from ..distributed import prefetch
from ..distributed.collectives import SINGLE_PROCESS, RankGroup
from ..distributed.data_parallel import choose_strategy
from ..events import Event, FinishEvent, RunCost
from ..held_out import FEATURE_STATS_IMAGES, MAP_TIME_FRACTION, MIN_MAP_SECONDS
from ..plan import MAX_COMPARED_IMAGES, MAX_VALIDATION_IMAGES, Plan
from .throughput import Throughput

# -- Predicted seconds and memory, shown with the plan and compared with the actual cost at the end

TIMED_IMAGES = 250
"""Pictures whose answers are timed."""
REPORT_SECONDS = 4.0
"""Figures with intervals, the bundle, the sheet and the report page, with the libraries that they import."""
MAP_PASSES = 6
"""Answers that one map for the report costs: two or three, of one picture at a time."""
REPORT_BYTES = 30 * 2**20
"""What those libraries take in memory, on top of the training's highest point."""


class RunTimer:
    """How long the parts of a run take, from the moment that it is made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.decode_seconds = 0.0

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.start

    @contextmanager
    def time_decoding(self) -> Iterator[None]:
        """What happens in this block decodes the training pictures."""
        began = time.perf_counter()
        yield
        self.decode_seconds = time.perf_counter() - began

    def record_cost(
        self, events: Iterator[Event], folder: Path, plan: Plan, predicted: RunCost | None
    ) -> Iterator[Event]:
        """The events of a run, whose cost is written into its folder: predicted at once, actual when it has ended.

        A run that was interrupted and went on later has no actual cost: it was not timed as a whole.
        """
        prepared = self.elapsed()
        events_module.write_cost(folder, predicted)
        for event in events:
            if isinstance(event, FinishEvent):
                after = self.elapsed() - prepared - event.seconds
                events_module.write_cost(
                    folder, predicted, RunCost(prepared, event.seconds, after, measure_peak_memory(plan.compute.device))
                )
            yield event


def estimate_cost(
    plan: Plan,
    throughput: Throughput,
    spent: float,
    timer: RunTimer,
    images: ImageStore,
    dataset: Dataset,
    group: RankGroup = SINGLE_PROCESS,
) -> RunCost:
    """The cost of the run that this plan describes on this machine, from what its beginning took.

    Args:
        throughput: of a plan without steps `finalize.NO_THROUGHPUT`.
        spent: seconds of the training that come before its first step: pre-training, teacher, features and probes.
        images: the training pictures; a fresh model answers some of them to see how long that takes.
        group: on GPUs each process needs memory for its part.
    """
    answer = _measure_inference_seconds(plan, images)
    decoded = timer.decode_seconds / max(len(images.indices), 1)
    val, test = (len(dataset.splits[split]) for split in ("val", "test"))
    looks = min(val, MAX_VALIDATION_IMAGES) * plan.recipe.num_evaluations * answer
    familiar = min(FEATURE_STATS_IMAGES, len(dataset.splits["train"])) if val else 0
    views = plan.recipe.views.num_views
    training = plan.recipe.steps * throughput.mean_seconds + spent
    held_out = (val + test) * (views * answer + decoded) + val * decoded + familiar * (answer + decoded)
    tuned = plan.finetune.from_checkpoint and plan.recipe.steps > 0
    finalists = 2 * val if val > MAX_COMPARED_IMAGES else 0
    compared = min(val, MAX_COMPARED_IMAGES) * (1 + len(plan.finetune.wise_ft_alphas)) + finalists if tuned else 0
    maps = min(2 * MAX_EXPLANATIONS * MAP_PASSES * answer, max(MIN_MAP_SECONDS, MAP_TIME_FRACTION * training))
    on_gpu = torch.device(plan.compute.device).type != "cpu"
    return RunCost(
        preparation=timer.elapsed(),
        training=training,
        evaluation=looks + compared * (views * answer + decoded) + held_out + maps + REPORT_SECONDS,
        memory=_estimate_gpu_memory(plan, images, group)
        if on_gpu
        else measure_peak_memory(plan.compute.device) + REPORT_BYTES,
        step_seconds=tuple(seconds for _, seconds in throughput.stages),
    )


def _estimate_gpu_memory(plan: Plan, images: ImageStore, group: RankGroup) -> int:
    """Bytes that a process needs on its GPU."""
    device = plan.compute.device
    sharded = choose_strategy(plan.compute.strategy, group, parameter_count(plan.model), device)[0] == "fsdp"
    steps = estimate_training_memory(plan, group.world_size if sharded else 1, group.world_size)
    return steps + prefetch.gpu_cache_bytes(images, device)


def _measure_inference_seconds(plan: Plan, images: ImageStore) -> float:
    """Seconds to answer one view of a picture; the first batch warms up."""
    rows, device = images.indices[:TIMED_IMAGES], plan.compute.device
    settings = InferenceSettings(device=device, precision=plan.compute.precision, batch_size=TIMED_IMAGES)
    model = create_model(plan.model, plan.seed).to(device)
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        run_inference(model, images, rows, plan.image, settings)
        seconds = time.perf_counter() - began
    return seconds / len(rows)


GPU_OVERHEAD = 1.15
"""On a GPU, of everything together: buffers of the libraries, and holes between pieces of memory."""
CPU_FRAGMENTATION = 1.3
"""On a processor, of what comes and goes in a step; weights and moments lie still (benchmarks/cost_model.py)."""


def measure_peak_memory(device: str) -> int:
    """The most bytes held so far: by torch on a GPU, by this process on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # not the figure that getrusage has: a new process begins there with the peak of the one that started it
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def estimate_training_memory(plan: Plan, num_shards: int = 1, world_size: int = 1) -> int:
    """Bytes that a training needs on each of its devices at the highest point of a step.

    They are the weights, their gradients, the optimisers' moments and the running mean, all in float32; the weights
    once more in the format of the products; what the forward pass of a part of the batch keeps for the backward pass,
    and again one block's share of it for that block's gradients. Weights in shares are gathered a block at a time, and
    the next one while that one computes.

    Args:
        num_shards: devices among which weights, gradients and moments are parted, as FSDP2 does; 1 has them whole.
        world_size: processes that share the plan's batch.
    """
    blocks = max(plan.model.depth, 1)
    forward = estimate_activation_memory(plan) / world_size * (1 + 1 / blocks)
    whole = estimate_weight_memory(plan)
    gathered = 2 * whole / blocks if num_shards > 1 else 0.0
    if plan.compute.device == "cpu":
        return round(whole / num_shards + gathered + CPU_FRAGMENTATION * forward)
    return round(GPU_OVERHEAD * (whole / num_shards + gathered + forward))


def estimate_activation_memory(plan: Plan) -> int:
    """Bytes that the forward pass of a step with all patches keeps for the backward pass.

    Counted per block, with b bytes a number in the products' format and 4 in norms. Of every token: the input of the
    first norm (4 D), what it gives (b D), queries, keys and values (3 b D), the turned queries and keys (2 b D). Of
    every token that comes out, which in the last block may be those alone that the head reads: the input of the second
    norm (4 D), what it gives (b D), what attention gives (b D), and the MLP's hidden numbers before and after its
    activation (2 b M; gates have twice as many); in the open path the scaled queries (b D) and a row of weights per
    head, unless these are made again on the way back.
    """
    model, b = plan.model, 4 if plan.compute.precision == "float32" else 2
    D, M, T = model.width, model.mlp_width, model.tokens
    inner = model.attention_width
    looked_at = 4 * D + b * (D + (5 if model.rotary != "none" else 3) * inner)
    given = 4 * D + b * (D + inner + (2 if model.mlp == "plain" else 4) * M)
    path = choose_path(
        model.attention, device_capability(plan.compute.device), plan.compute.precision, T, gradients=True
    )
    remade = not model.relative and not model.attention_dropout and should_recompute_weights(inner, T)
    if model.relative or (path == "open" and not remade):
        weight = b if plan.compute.device == "cpu" or b == 4 else 6  # a GPU's softmax keeps float32 beside bfloat16
        given += b * inner + model.heads * T * weight
    tokens = T * model.depth
    fewer = 0 if model.pool_blocks > 1 or model.pool_tokens is None or not model.depth else T - model.pool_tokens
    numbers = tokens * looked_at + (tokens - fewer) * given
    if model.grad_checkpointing and model.depth:
        numbers = tokens * b * D + T * (looked_at + given)
    return -(-plan.recipe.batch_size // plan.recipe.grad_accum_steps) * numbers


def estimate_weight_memory(plan: Plan) -> int:
    """Bytes of all weights, gradients, moments and the mean."""
    with torch.device("meta"):
        parameters = dict(ViT(plan.model).named_parameters())
    every = sum(parameter.numel() for parameter in parameters.values())
    matrices = sum(p.numel() for name, p in parameters.items() if ".blocks." in name and p.ndim >= 2)
    once = matrices if plan.recipe.optimizer == "muon" else 0
    copies = 2 + bool(plan.recipe.ema_decay)
    cast = 0 if plan.compute.precision == "float32" else 2 * every  # once a step, for all its products
    return 4 * (copies * every + once + 2 * (every - once)) + cast
