"""Gradient methods: integrated gradients, attention relevance (Chefer et al. 2021), LeGrad, and Grad-CAM on tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import UsageError
from ..formatting import format_count
from ..model.vit import Block, ViT
from .attribution import (
    AttributionMap,
    EmptyMapError,
    Targets,
    patch_grid_of,
    require_outputs,
    resolve_targets,
    sum_by_patch,
    target_scores,
    token_weights,
    tokens_to_grid,
)
from .recorder import MAX_ATTENTION_BYTES, BlockRecorder, describe_block_range, gradient_mode, resolve_block

STEP_COUNTS = (32, 64, 128, 256)
"""Steps of integrated gradients, increased until the completeness gap is small enough."""
MAX_COMPLETENESS_GAP = 0.01
"""Largest completeness gap, as a fraction of the change of the score."""
BATCH_PATCHES, MIN_BATCH_SIZE = 4096, 16
"""Points of a path that go through the model at once: as many patches as this, or as many points, whatever is more."""


def integrated_gradients(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    targets: Targets = None,
    start: Float[Tensor, "b C H W"] | None = None,
    steps: int | None = None,
) -> AttributionMap:
    """Integrated gradients (Sundararajan et al. 2017): mean gradient on the path from a baseline, times the change.

    Summed over channels for pixels, and over each patch for the values. Their total is the score minus that of the
    baseline image, up to the completeness gap of the quadrature, which the notes state. The quadrature is
    Gauss-Legendre.

    Args:
        targets: the output to explain, see `attribution.Targets`.
        start: the baseline image, normalised as the images are; None is zeros, the training mean.
        steps: points on the path; None takes 32, and doubles them up to 256 for images whose gap exceeds 1 % of the
            change.

    Raises:
        UsageError: an output that the model does not have, no outputs at all, or steps below 1.
        EmptyMapError: an image equals the baseline.

    Source: Sundararajan, Taly and Yan 2017, section 3.
    """
    require_outputs(model, "integrated")
    if steps is not None and steps < 1:
        raise UsageError(f"steps must be at least 1. Got {steps}.")
    empty = torch.zeros_like(images) if start is None else start.expand_as(images)
    if same := [place + 1 for place, one in enumerate((images == empty).flatten(1).all(1).tolist()) if one]:
        raise EmptyMapError(
            f"Picture {same[0]} of {len(images)} equals the empty picture, so nothing is added on the way."
        )
    with gradient_mode(model):
        with torch.no_grad():
            outputs = model(images)
            target = resolve_targets(outputs, targets)
            change = (target_scores(outputs, target) - target_scores(model(empty), target)).double()  # [B]
        pixels = torch.zeros_like(images[:, 0])  # [B, H, W]
        gap, used, left = torch.zeros_like(change), [0] * len(images), torch.arange(len(images), device=images.device)
        for count in STEP_COUNTS if steps is None else (steps,):
            way = images[left] - empty[left]
            pixels[left] = (way * _mean_gradient(model, images[left], empty[left], target[left], count)).sum(1)
            gap[left] = (pixels[left].double().sum((1, 2)) - change[left]).abs()
            for row in left.tolist():
                used[row] = count
            left = left[gap[left] > MAX_COMPLETENESS_GAP * change[left].abs()]
            if not len(left):
                break
    return AttributionMap(
        values=sum_by_patch(pixels, model.config.patch, patch_grid_of(model, images)).numpy(force=True),
        pixels=pixels.numpy(force=True),
        method="integrated",
        targets=tuple(target.tolist()),
        layer="pixels",
        unit="added to the score",
        description="What each patch adds to this score, or takes from it, on the way from an empty picture.",
        scale="signed",
        notes=tuple(_completeness_note(*each) for each in zip(gap.tolist(), change.tolist(), used, strict=True)),
    )


def _mean_gradient(model: ViT, images: Tensor, empty: Tensor, target: Tensor, steps: int) -> Float[Tensor, "B C H W"]:
    """The gradient of the score, averaged over the path."""
    total = torch.zeros_like(images)
    for part, weights, rows in _path_points(images, empty, steps, patch_grid_of(model, images).patches):
        part.requires_grad_()
        (gradient,) = torch.autograd.grad(target_scores(model(part), target[rows]).sum(), part)
        total.index_add_(0, rows, gradient * weights[:, None, None, None])
    return total


def _path_points(images: Tensor, empty: Tensor, steps: int, patches: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of images on the path, their quadrature weights (summing to 1 per image), and their image indices."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on -1 .. 1
    points = [(b, i) for i in range(steps) for b in range(len(images))]
    size = max(MIN_BATCH_SIZE, BATCH_PATCHES // patches)
    for first in range(0, len(points), size):
        rows = torch.tensor([b for b, _ in points[first : first + size]], device=images.device)
        steps_here = [i for _, i in points[first : first + size]]
        share = torch.tensor((nodes[steps_here] + 1) / 2, dtype=images.dtype, device=images.device)
        weight = torch.tensor(weights[steps_here] / 2, dtype=images.dtype, device=images.device)
        yield empty[rows] + share[:, None, None, None] * (images[rows] - empty[rows]), weight, rows


def _completeness_note(gap: float, change: float, steps: int) -> str:
    share = f"{gap / abs(change):.2%}" if change else f"{gap:.2g}"
    return f"{format_count(steps, 'step leaves', 'steps leave')} a gap of {share} of the score's change, {change:+.3g}."


# -- Attention relevance


def relevance_map(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    targets: Targets = None,
    first: int | None = None,
    memory_limit: int = MAX_ATTENTION_BYTES,
) -> AttributionMap:
    """Gradient-weighted attention relevance (Chefer et al. 2021, the generic method without LRP rules).

    With A the mean over heads of max(0, attention * gradient of the score), each block updates R = R + A R, starting at
    the identity. The map is the rows of R of the pooled tokens (`attribution.token_weights`), minus the identity. Only
    these rows are carried from the last block to the first, so the matrix product is never formed.

    Args:
        targets: the output to explain, see `attribution.Targets`.
        first: the first block, counted from 0; None takes all.
        memory_limit: see `BlockRecorder`.

    Raises:
        UsageError: an output or block that the model does not have, or no outputs at all.

    Source: Chefer, Gur and Wolf 2021, "Generic attention-model explainability", section 3, self-attention.
    """
    require_outputs(model, "relevance")
    start, depth = resolve_block(model, first, 0), model.config.depth
    with gradient_mode(model):
        recorder = BlockRecorder(model, images, start, memory_limit)
        weights, gradients, target = _output_gradients(model, recorder, targets)
        carried, flow = weights, torch.zeros_like(recorder.tokens[-1])
        for i in range(depth - 1, start - 1, -1):
            flow = flow + gradients.pop() if gradients else flow
            block = recorder.record_block(i)
            wanted = (block.attention, block.before) if i > start else (block.attention,)
            to_weights, *to_before = torch.autograd.grad(block.after, wanted, flow)
            passed = (to_weights * block.attention.detach()).clamp(min=0).mean(1)  # [B, T, T]
            carried = carried + (carried[:, None] @ passed)[:, 0]
            flow = to_before[0] if to_before else flow
    return AttributionMap(
        values=tokens_to_grid(carried - weights, model, patch_grid_of(model, images)).numpy(force=True),
        method="relevance",
        targets=tuple(target.tolist()),
        layer=describe_block_range(model, start),
        unit="relevance, no unit",
        description="Attention that raises this score. It shows what the model reacts to, not where a thing ends.",
    )


def _output_gradients(
    model: ViT, recorder: BlockRecorder, targets: Targets
) -> tuple[Float[Tensor, "B T"], list[Tensor], Tensor]:
    """Token weights of the pooling, gradients of the score by the outputs of the last blocks, and the targets."""
    last = [x.detach().requires_grad_() for x in recorder.tokens[-model.config.pool_span :]]
    read = model.encoder.apply_final_norm(last)
    outputs = model.head(model.pool(read))
    target = resolve_targets(outputs, targets)
    gradients = torch.autograd.grad(target_scores(outputs, target).sum(), last, materialize_grads=True)
    return token_weights(model, read), list(gradients), target


# -- LeGrad


def legrad(
    model: ViT,
    images: Float[Tensor, "B C H W"],
    targets: Targets = None,
    first: int | None = None,
    memory_limit: int = MAX_ATTENTION_BYTES,
) -> AttributionMap:
    """LeGrad (Bousselham et al. 2024): positive gradients of every block's score by its attention weights.

    Averaged over heads, query tokens and blocks. The score of a block is that of norm, pooling and head on its tokens.
    With attention pooling the weights are those of the learned probe on the block's tokens.

    Args:
        targets, first, memory_limit: as in `relevance_map`.

    Raises:
        UsageError: as `relevance_map`.

    Source: Bousselham et al. 2024, "LeGrad", section 3; 3.3 for the probe.
    """
    require_outputs(model, "legrad")
    start, depth = resolve_block(model, first, 0), model.config.depth
    probe = model.config.pool == "attention"
    with gradient_mode(model):
        recorder = BlockRecorder(model, images, depth if probe else start, memory_limit)
        with torch.no_grad():
            target = resolve_targets(model.head(model.pool(recorder.readout_after(depth - 1))), targets)
        relevance = torch.zeros(recorder.tokens[0].shape[:2], device=images.device)  # [B, T]
        for i in range(start, depth):
            if probe:
                tokens = recorder.readout_after(i).detach().requires_grad_()
                pooled, attention = model.pool.forward_with_attention(tokens)  # [B, A, 1, T]
            else:
                block = recorder.record_block(i)
                pooled, attention = model.pool(recorder.readout_after(i, block.after)), block.attention  # [B, A, T, T]
            (gradient,) = torch.autograd.grad(target_scores(model.head(pooled), target).sum(), attention)
            relevance += gradient.clamp(min=0).mean((1, 2)) / (depth - start)
    return AttributionMap(
        values=tokens_to_grid(relevance, model, patch_grid_of(model, images)).numpy(force=True),
        method="legrad",
        targets=tuple(target.tolist()),
        layer=describe_block_range(model, start) + (", through the pooling's probe" if probe else ""),
        unit="score per unit of attention",
        description="Where more attention would raise this score. It shows what the model reacts to, not where a "
        "thing ends.",
    )


# -- Grad-CAM


def gradcam(
    model: ViT, images: Float[Tensor, "B C H W"], targets: Targets = None, layer: int | None = None
) -> AttributionMap:
    """Grad-CAM (Selvaraju et al. 2017) on the patch tokens after a block's first norm.

    Features are weighted by their gradient averaged over patches and summed; negative sums are set to 0. The output of
    the last block is not used, because in most models only the class token has a gradient there.

    Args:
        targets: the output to explain, see `attribution.Targets`.
        layer: the block, counted from 0; None takes the last.

    Raises:
        UsageError: an output or block that the model does not have, or no outputs at all.

    Source: Selvaraju et al. 2017, section 3, on tokens instead of the last convolution.
    """
    require_outputs(model, "grad-cam")
    number = resolve_block(model, layer, -1)
    with gradient_mode(model):
        recorder = BlockRecorder(model, images, model.config.depth)
        normal, outputs = _forward_from_norm(model, recorder, number)
        target = resolve_targets(outputs, targets)
        (gradient,) = torch.autograd.grad(target_scores(outputs, target).sum(), normal)
    factors = gradient[:, model.config.prefix :].mean(1, keepdim=True)  # [B, 1, D]
    relevance = (factors * normal.detach()).sum(-1).clamp(min=0)  # [B, T]
    return AttributionMap(
        values=tokens_to_grid(relevance, model, patch_grid_of(model, images)).numpy(force=True),
        method="grad-cam",
        targets=tuple(target.tolist()),
        layer=f"block {number}, after its first norm",
        unit="weighted features, no unit",
        description="Features that raise this score, where they lie; what speaks against it is cut off.",
    )


def _forward_from_norm(
    model: ViT, recorder: BlockRecorder, block_index: int
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B K"]]:
    """The tokens of a block after its first norm, and the outputs computed from them, in one graph."""
    reach = model.config.pool_span
    block = model.encoder.blocks[block_index]
    assert isinstance(block, Block)
    normal = block.prepare_attention(recorder.tokens[block_index]).detach().requires_grad_()
    x = block.forward_from_norm(recorder.tokens[block_index], normal, recorder.positions)
    last = [*recorder.tokens[1 : block_index + 1], x][-reach:]
    for block in model.encoder.blocks[block_index + 1 :]:
        x = model.encoder.run_block(block, x, recorder.positions)
        last = [*last, x][-reach:]
    return normal, model.head(model.pool(model.encoder.apply_final_norm(last)))
