"""Estimate the cost of a run: seconds from measured steps, CPU memory as measured, GPU memory by a formula."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from ...data.loader import ImageStore
from ...evaluate.inference import InferenceSettings, run_inference
from ...model.attention import choose_path, device_capability, should_recompute_weights
from ...model.vit import ViT, create_model, parameter_count
from ...report.saliency import MAX_EXPLANATIONS
from .. import events as events_module
from ..context import PlanContext
from ..distributed import prefetch
from ..distributed.data_parallel import choose_strategy
from ..events import Event, FinishEvent, RunCost
from ..held_out import FEATURE_STATS_IMAGES, MAP_TIME_FRACTION, MIN_MAP_SECONDS
from ..plan import MAX_COMPARED_IMAGES, MAX_VALIDATION_IMAGES, Plan
from .throughput import MAX_MEASURED_TOKENS, SHORT_SECONDS, Throughput

# -- Predicted seconds and memory, shown with the plan and compared with the actual cost at the end

TIMED_IMAGES = 1, 25, 250
"""Images whose inference is timed, and those before them, which are all where there is no time for more."""
REPORT_SECONDS = 4.0
"""Metrics with intervals, the bundle, the sheet and the report page, with the libraries that they import."""
MAP_PASSES = 6
"""Cost of an explanation map in forward passes of a batched image: two or three passes of a single image."""
REPORT_BYTES = 30 * 2**20
"""Memory of those libraries, on top of the training's peak."""


class RunTimer:
    """Times the parts of a run, from its construction on."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.decode_seconds = 0.0

    def elapsed_seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.start

    @contextmanager
    def time_decoding(self) -> Iterator[None]:
        """Time this block, which decodes the training images."""
        start_time = time.perf_counter()
        yield
        self.decode_seconds = time.perf_counter() - start_time

    def record_cost(
        self, events: Generator[Event], folder: Path, plan: Plan, predicted: RunCost | None
    ) -> Generator[Event]:
        """Pass the events of a run on, and write its predicted cost at once and its actual cost at its end.

        An interrupted run has no actual cost, because it is not timed as a whole.
        """
        prepared = self.elapsed_seconds()
        events_module.write_cost(folder, predicted)
        with closing(events):
            for event in events:
                if isinstance(event, FinishEvent):
                    after = self.elapsed_seconds() - prepared - event.seconds
                    memory = measure_peak_memory(plan.compute.device)
                    events_module.write_cost(folder, predicted, RunCost(prepared, event.seconds, after, memory))
                yield event


def estimate_cost(context: PlanContext, throughput: Throughput, spent: float, timer: RunTimer) -> RunCost:
    """The cost of the planned run on this machine; inference is measured with a fresh model.

    Args:
        throughput: of a plan without steps `finalize.NO_THROUGHPUT`.
        spent: seconds of the training before its first step: pre-training, teacher, features and probes.
    """
    plan, images, dataset = context.plan, context.images, context.dataset
    inference = 0.0
    for count in TIMED_IMAGES:
        if not inference or max(context.measuring_seconds(), SHORT_SECONDS) > inference * count:
            inference = _measure_inference_seconds(plan, images, count)
    decoding = timer.decode_seconds / max(len(images.indices), 1)
    val, test = (len(dataset.splits[split]) for split in ("val", "test"))
    validation = min(val, MAX_VALIDATION_IMAGES) * inference
    feature_images = min(FEATURE_STATS_IMAGES, len(dataset.splits["train"])) if val else 0
    views = plan.recipe.views.num_views
    during = 0.0 if plan.minutes else validation * plan.recipe.num_evaluations  # minutes count it
    training = plan.recipe.steps * throughput.mean_seconds + during + spent
    held_out = (val + test) * (views * inference + decoding) + val * decoding + feature_images * (inference + decoding)
    is_tuned = plan.finetune.from_checkpoint and plan.recipe.steps > 0
    finalists = 2 * val if val > MAX_COMPARED_IMAGES else 0
    compared = min(val, MAX_COMPARED_IMAGES) * (1 + len(plan.finetune.wise_ft_alphas)) + finalists if is_tuned else 0
    explanation = min(2 * MAX_EXPLANATIONS * MAP_PASSES * inference, max(MIN_MAP_SECONDS, MAP_TIME_FRACTION * training))
    on_gpu = torch.device(plan.compute.device).type != "cpu"
    return RunCost(
        preparation=timer.elapsed_seconds(),
        training=training,
        evaluation=compared * (views * inference + decoding) + held_out + explanation + REPORT_SECONDS,
        memory=_estimate_gpu_memory(context) if on_gpu else measure_peak_memory(plan.compute.device) + REPORT_BYTES,
        step_seconds=tuple(seconds for _, seconds in throughput.stages),
        validation=validation if plan.recipe.steps else 0.0,
    )


def _estimate_gpu_memory(context: PlanContext) -> int:
    """Bytes that a process needs on its GPU."""
    plan, group, device = context.plan, context.group, context.plan.compute.device
    sharded = choose_strategy(plan.compute.strategy, group, parameter_count(plan.model), device)[0] == "fsdp"
    steps = estimate_training_memory(plan, group.world_size if sharded else 1, group.world_size)
    return steps + prefetch.gpu_cache_bytes(context.images, device)


def _measure_inference_seconds(plan: Plan, images: ImageStore, count: int) -> float:
    """Seconds of inference per view of an image, for so many images, or as many as are fast enough to measure."""
    most, device = max(1, min(count, MAX_MEASURED_TOKENS // plan.model.tokens)), plan.compute.device
    rows = images.indices[:most]
    settings = InferenceSettings(device=device, precision=plan.compute.precision, batch_size=most)
    model = create_model(plan.model, plan.seed).to(device)
    began = time.perf_counter()
    run_inference(model, images, rows, plan.image, settings)
    return (time.perf_counter() - began) / len(rows)


GPU_OVERHEAD = 1.15
"""Factor on all memory of a GPU: buffers of the libraries, and fragmentation."""
CPU_FRAGMENTATION = 1.3
"""Factor on activations on a CPU; weights and moments do not move (benchmarks/cost_model.py)."""


def measure_peak_memory(device: str) -> int:
    """Peak memory in bytes: of torch on a GPU, of this process on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # not getrusage: there a new process inherits the peak of its parent
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def estimate_training_memory(plan: Plan, num_shards: int = 1, world_size: int = 1) -> int:
    """Peak bytes of a training step on each device.

    They are the weights, gradients, optimiser moments and the EMA, all in float32; the weights once more in the compute
    dtype; the activations of a micro-batch, and once more those of one block for its gradients. Sharded weights are
    gathered a block at a time, and the next one meanwhile.

    Args:
        num_shards: devices over which FSDP2 shards weights, gradients and moments.
        world_size: ranks that share the plan's batch.
    """
    blocks = max(plan.model.depth, 1)
    forward = estimate_activation_memory(plan) / world_size * (1 + 1 / blocks)
    whole = estimate_weight_memory(plan)
    gathered = 2 * whole / blocks if num_shards > 1 else 0.0
    if plan.compute.device == "cpu":
        return round(whole / num_shards + gathered + CPU_FRAGMENTATION * forward)
    return round(GPU_OVERHEAD * (whole / num_shards + gathered + forward))


def estimate_activation_memory(plan: Plan) -> int:
    """Bytes of the activations that a step with all patches keeps for the backward pass.

    Counted per block, with b bytes per value in the compute dtype and 4 in norms. For every input token: the input of
    the first norm (4 D), its output (b D), queries, keys and values (3 b D), the rotated queries and keys (2 b D). For
    every output token, in the last block only those that the head reads: the input of the second norm (4 D), its output
    (b D), the output of attention (b D), and the MLP's hidden values before and after the activation (2 b M; twice as
    many with gates); in the open path the scaled queries (b D) and a row of attention weights per head, unless these
    are recomputed.
    """
    model, b = plan.model, 4 if plan.compute.precision == "float32" else 2
    D, M, T = model.width, model.mlp_width, model.tokens
    inner = model.attention_width
    input_numbers = 4 * D + b * (D + (5 if model.rotary != "none" else 3) * inner)
    output_numbers = 4 * D + b * (D + inner + (2 if model.mlp == "plain" else 4) * M)
    path = choose_path(
        model.attention, device_capability(plan.compute.device), plan.compute.precision, T, gradients=True
    )
    recomputes = (
        not (model.relative or model.relative_bias)
        and not model.attention_dropout
        and should_recompute_weights(inner, T)
    )
    if model.relative or (path == "open" and not recomputes):
        weight_bytes = (
            b if plan.compute.device == "cpu" or b == 4 else 6
        )  # a GPU's softmax keeps float32 beside bfloat16
        output_numbers += b * inner + model.heads * T * weight_bytes
    tokens = T * model.depth
    unread = 0 if model.pool_blocks > 1 or model.pool_tokens is None or not model.depth else T - model.pool_tokens
    numbers = tokens * input_numbers + (tokens - unread) * output_numbers
    if model.grad_checkpointing and model.depth:
        numbers = tokens * b * D + T * (input_numbers + output_numbers)
    return -(-plan.recipe.batch_size // plan.recipe.grad_accum_steps) * numbers


def estimate_weight_memory(plan: Plan) -> int:
    """Bytes of all weights, gradients, moments and the EMA."""
    with torch.device("meta"):
        parameters = dict(ViT(plan.model).named_parameters())
    num_parameters = sum(parameter.numel() for parameter in parameters.values())
    matrices = sum(p.numel() for name, p in parameters.items() if ".blocks." in name and p.ndim >= 2)
    muon_numbers = matrices if plan.recipe.optimizer == "muon" else 0
    full_copies = 2 + bool(plan.recipe.ema_decay)
    cast = 0 if plan.compute.precision == "float32" else 2 * num_parameters  # once a step, for all its products
    return 4 * (full_copies * num_parameters + muon_numbers + 2 * (num_parameters - muon_numbers)) + cast
