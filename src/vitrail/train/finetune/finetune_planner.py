"""Plan a run from a checkpoint, the counterpart of `planner`; EXPERIMENTS.md has the measurements behind the rules."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, replace

from ... import config
from ...checkpoints.image_spec import resize_spec
from ...data.source import Task
from ...errors import UsageError
from ...evaluate.inference import FeatureExtractor, InferenceSettings, cast_weights, run_inference
from ...formatting import format_count
from ...model.config import ViTConfig
from ...model.vit import create_model
from ...runtime import Runtime
from ...spec import ImageSpec
from ..class_weights import choose_class_weights
from ..context import PlanContext
from ..plan import MAX_VALIDATION_IMAGES, METHOD_FIELDS, FinetuneMethod, FinetuneSettings, Plan, Recipe
from ..plan_reasons import make_override_reasons
from ..planning import augmentation_rules, finalize, flip_invariance, planner, throughput, unused_settings
from ..planning.augmentation_rules import NO_FLIP_SOURCES
from ..planning.finalize import NO_THROUGHPUT, is_measured
from ..planning.model_size import choose_strip_grid, describe_strips
from ..planning.planner import check_plan, describe_attention, resolve_minutes, to_compute_settings
from ..planning.throughput import Throughput
from ..request import FEW_IMAGES, DatasetFingerprint, Reasons, TrainRequest
from .features import FEATURE_BATCH, uses_mirror_images
from .linear_probe import MAX_FEATURE_VALUES
from .patch_head import FIT_SHARE, measure_fit_pace, most_patches
from .weights import (
    RECOMMENDED_CHECKPOINTS,
    StartCheckpoint,
    check_checkpoint,
    find_downloaded,
    list_feature_columns,
    open_checkpoint,
)

GRID_SIDES = (8, 12, 16)
"""Candidate grid sides in patches for a checkpoint of a larger grid; one of a smaller grid keeps its own."""
BANK_GRID_SIDES = (8, 12, 16, 24, 32)
"""The same for a bank, which sees a defect only if it fills a good part of a patch."""
ENLARGED_SIDE = 16
"""Of these, larger ones only for pictures that have as many pixels: poly solar cells of 300 x 300 pixels had an AUROC
of 0.89 and 0.92 (10 and 100 good ones) at 224 pixels, and of 0.86 and 0.89 enlarged to 448 (EXPERIMENTS.md)."""
BANK_SIZE = 5_000
"""Most patches of a bank: products with 4,096 leave 0.93 of the speed of a ViT-S at 448 pixels, 10,000 leave 0.85."""
TILED_FACTOR = 2
"""Pictures whose shorter side is as many times that of the model are read in tiles."""
TILE_OVERLAP = 8
"""A tile shares so many parts of its side with the next one."""
MAX_TILES = 64
BANK_DEPTH = 2 / 3
"""Fraction of the checkpoint's blocks after which patches are compared: with DINOv2-S/14 at 224 pixels and ten good
solar cells the eighth block of 12 had an AUROC of 0.875, the last one of 0.783 (EXPERIMENTS.md)."""
MASK_BATCH = 4
"""Pictures with masks of a step."""
MIN_HEAD_IMAGES = 10
"""Pictures with masks of whose features a head has the use, however long they take."""
ENOUGH_MASKS = 20
"""Training pictures with masks that the minutes are to hold passes over, when a size is chosen: fine parts count for
more than further pictures. Two minutes of a core, drawn pictures, mean IoU: 20 of 448 pixels 0.806, 200 of them shrunk
until they fitted 0.710 (EXPERIMENTS.md)."""
TUNED_FIT_SHARE = 0.2
"""As `FIT_SHARE`, where the head's fit only begins what tuning goes on with."""
MASK_UPSAMPLE = 4
"""Rows and columns of parts of a patch that have outputs of their own in tuning."""
PART_FIELDS = ("upsample", "queries", "query_blocks")
"""Fields of the model that a fitted head has no use for."""
MASK_FREEZE_FRACTIONS = (0.5, 2 / 3, 5 / 6)
"""As `FREEZE_FRACTIONS`, of a training on masks."""
MASK_ALPHAS = (0.5, 1.0)
MASK_LR_FACTOR = 250.0
"""How many times the rate of a probed head: that of the parts of patches begins at zero. After 50 steps of 4 drawn
pictures 5e-4 had a mean IoU of 0.740, 1e-4 one of 0.725, the frozen head 0.626 (EXPERIMENTS.md)."""
MASKS_AS_THEY_ARE = "pictures and masks as they are"
MAX_HEAD_BLOCKS = 4
"""Blocks that the head reads: as many as the linear evaluation of DINOv2 (Oquab et al. 2023)."""
FREEZE_FRACTIONS = (0.0, 0.25, 0.5, 2 / 3)
"""Candidate fractions of frozen blocks; the first that fits into the minutes."""
MIN_PASSES = 4
"""Epochs below which tuning is not worth it."""
DEVICE_SPEED = {"cpu": 1e11, "mps": 1e12, "cuda": 5e13}
"""Operations per second for a first estimate; the number of steps is measured."""
PRECISION_SPEED = {"float32": 1.0, "bfloat16": 2.0, "float16": 2.0}
LR_AT_384, LR_WIDTH_EXPONENT, MAX_LR = 2e-6, 2.66, 1e-4
"""AdamW's learning rate after a probe falls with the width: 2e-6 improved DINOv2-S/14 and 1e-5 did not; 8e-5 suited a
model of width 96 (EXPERIMENTS.md). Wider models were not measured and get that of 384."""


def draft_finetune_plan(
    fingerprint: DatasetFingerprint,
    request: TrainRequest,
    runtime: Runtime,
    checkpoint: StartCheckpoint,
    world_size: int = 1,
) -> tuple[Plan, Reasons]:
    """The plan without the number of steps.

    Args:
        world_size: number of ranks; several fine-tune all blocks, unless set otherwise.

    Raises:
        UsageError: settings that contradict each other or the checkpoint.
    """
    reasons: Reasons = {f"compute.{name}": reason for name, reason in runtime.reasons.items()}
    explicit = {name: text for name, text in request.overrides.items() if name.startswith("finetune.")}
    first = Plan(finetune=FinetuneSettings(weights=checkpoint.name, weights_sha256=checkpoint.digest))
    start = config.override(first, explicit).finetune
    seconds = resolve_minutes(request) * 60
    model, why_model = _choose_shape(fingerprint, request, runtime, checkpoint, start, seconds, world_size)
    start, why_start = _choose_settings(start, explicit, fingerprint, model, runtime, seconds, world_size)
    image, why_image = _choose_image_spec(fingerprint, model, checkpoint)
    pretrain, why_pretrain = planner.draft_pretrain_settings(request.pretrain, request.overrides)
    distill, why_distill = planner.draft_distill_settings(request.overrides)
    recipe, why_recipe = _draft_recipe(fingerprint, model, request, start)
    decisions, why_decisions = planner.draft_decision_settings(fingerprint.task)
    reasons |= why_model | why_start | why_image | why_pretrain | why_distill | why_recipe | why_decisions
    plan = Plan(
        model_name=_checkpoint_name(checkpoint),
        seed=request.seed,
        minutes=resolve_minutes(request),
        data=request.data,
        image=image,
        model=model,
        finetune=start,
        pretrain=pretrain,
        distill=distill,
        recipe=recipe,
        compute=to_compute_settings(runtime),
        decisions=decisions,
    )
    plan = config.override(plan, request.overrides)
    plan, why_steps = augmentation_rules.apply_step_budget(plan, fingerprint.num_images, request)
    reasons |= why_steps
    reasons |= make_override_reasons(request.overrides)
    check_plan(plan, fingerprint.num_classes, fingerprint.task)
    unused_settings.check_unused_settings(plan, request.overrides)
    check_checkpoint(checkpoint, plan.model, plan.finetune)
    reasons["model.attention"] = describe_attention(plan)
    return plan, reasons


def forward_operations(model: ViTConfig) -> float:
    """Floating-point operations of the blocks for one image."""
    tokens, width = model.tokens, model.width
    matrices = 4 * width * model.attention_width + (2 if model.mlp == "plain" else 3) * width * model.mlp_width
    return 2.0 * model.depth * tokens * (matrices + 2 * tokens * model.attention_width)


def estimate_min_seconds(fingerprint: DatasetFingerprint, own: ViTConfig, runtime: Runtime) -> float:
    """Rough seconds to extract the features of all images, at the smallest size that would be chosen."""
    side = min(GRID_SIDES[0], *own.grid)
    small = replace(own, image_size=(side * own.patch[0], side * own.patch[1]))
    return fingerprint.num_images * forward_operations(small) / _device_speed(runtime)


def _checkpoint_name(checkpoint: StartCheckpoint) -> str:
    path = checkpoint.path
    return path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name


def _choose_shape(
    fingerprint: DatasetFingerprint,
    request: TrainRequest,
    runtime: Runtime,
    checkpoint: StartCheckpoint,
    settings: FinetuneSettings,
    seconds: float,
    world_size: int,
) -> tuple[ViTConfig, Reasons]:
    """The checkpoint's shape for these images and outputs."""
    if request.model is not None:
        raise UsageError(f"--weights brings its own shape, so --model {request.model} cannot be given with it.")
    own = checkpoint.config
    if own.pool == "patches":  # of an anomaly or a segmentation model
        own = replace(
            own, pool="class" if own.class_token else "mean", head="linear", bank_size=0, upsample=1, queries=0,
            tiles=(1, 1), tile_overlap=0,
        )  # fmt: skip
    both = own.class_token and own.pool in ("class", "mean") and not own.pooled_norm
    if fingerprint.task == "anomaly":
        return _choose_bank_shape(fingerprint, request, runtime, own, settings, seconds)
    if fingerprint.task == "segmentation":
        return _choose_dense_shape(fingerprint, request, runtime, own, settings, seconds)
    every = max(1, own.depth // 6)
    why_every = "over the upper half: 0.005 more AUROC than the last four of 12"
    channels, why_channels = _choose_channels(fingerprint, request, own, settings)
    base = replace(
        own,
        channels=channels,
        outputs=fingerprint.num_classes,
        pool="class+mean" if both else own.pool,
        pool_blocks=1 if own.pool == "attention" or own.pooled_norm else max(1, min(MAX_HEAD_BLOCKS, own.depth // 3)),
        pool_every=every,
        head="linear",
        head_bias=True,
        distillation_head=False,
        dropout=0.0,
        attention_dropout=0.0,
        mlp_dropout=0.0,
        drop_path=0.0,
    )
    size, why_size = _choose_image_size(fingerprint, request, base, runtime, seconds, world_size)
    return replace(base, image_size=size), {
        "model.pool": "what both kinds of features know" if both else "as the checkpoint was trained",
        "model.pool_blocks": "the probe chooses: lower blocks often know what the last one has given up",
        "model.pool_every": why_every if every > 1 else f"{format_count(own.depth, 'block')}, one after another",
        "model.channels": why_channels,
        "model.drop_path": "a probe that has just been fitted cannot do without branches",
        "model.image_size": why_size,
    }


def _choose_bank_shape(
    fingerprint: DatasetFingerprint,
    request: TrainRequest,
    runtime: Runtime,
    own: ViTConfig,
    settings: FinetuneSettings,
    seconds: float,
) -> tuple[ViTConfig, Reasons]:
    """The checkpoint's shape with a bank of patches as its head."""
    channels, why_channels = _choose_channels(fingerprint, request, own, settings)
    base = replace(
        own,
        channels=channels,
        outputs=1,
        pool="patches",
        pool_blocks=1,
        pool_every=1,
        depth=max(1, round(BANK_DEPTH * own.depth)),
        head="bank",
        head_bias=True,
        bank_size=BANK_SIZE,
        distillation_head=False,
        dropout=0.0,
        attention_dropout=0.0,
        mlp_dropout=0.0,
        drop_path=0.0,
    )
    sides, why_sides = _list_bank_sides(fingerprint, base)
    largest = (sides[-1] * base.patch[0], sides[-1] * base.patch[1])
    size, why_size = _choose_image_size(fingerprint, request, base, runtime, seconds, 1, sides)
    shape, why_tiles = _choose_tiles(fingerprint, request, replace(base, image_size=size), runtime, seconds)
    return shape, why_tiles | {
        "model.pool": "every patch is compared by itself, so that a small defect is seen",
        "model.depth": f"of {own.depth}: upper blocks know what is shown rather than how it looks",
        "model.pool_blocks": "one block, the last of those that are kept",
        "model.bank_size": "comparing with more takes longer than the features; the farthest apart are kept",
        "model.channels": why_channels,
        "model.image_size": f"{why_size}{why_sides}" if size == largest and request.image_size is None else why_size,
    }


def _list_bank_sides(fingerprint: DatasetFingerprint, base: ViTConfig) -> tuple[tuple[int, ...], str]:
    """Sides of the grid for pictures of this size, and why the others are left out."""
    pixels, of_patch = fingerprint.height * fingerprint.width, base.patch[0] * base.patch[1]
    sides = tuple(side for side in BANK_GRID_SIDES if side <= ENLARGED_SIDE or side * side * of_patch <= pixels)
    if sides == BANK_GRID_SIDES:
        return sides, ""
    return sides, f"; more would only enlarge pictures of {fingerprint.height} x {fingerprint.width}"


def _choose_tiles(
    fingerprint: DatasetFingerprint, request: TrainRequest, shape: ViTConfig, runtime: Runtime, seconds: float
) -> tuple[ViTConfig, Reasons]:
    """The shape with tiles, as many as pictures much larger than it have and the minutes allow."""
    if explicit := {name: text for name, text in request.overrides.items() if name.startswith("model.tile")}:
        return config.override(Plan(model=shape), explicit).model, {}
    height, width = fingerprint.height, fingerprint.width
    pictures = f"pictures of {height:,} x {width:,} pixels"
    if min(height, width) < TILED_FACTOR * min(shape.image_size):
        return shape, {}
    if request.image_size is not None:
        return shape, {"model.tiles": f"{pictures} are read whole, because a size was asked for"}
    overlap, what = max(1, min(shape.grid) // TILE_OVERLAP), "a small defect" if shape.head == "bank" else "fine parts"
    for scale in (1.0, 0.75, 0.5):
        sides = zip((height, width), shape.patch, shape.grid, strict=True)
        rows, columns = (
            max(1, round((scale * pixels / patch - overlap) / (side - overlap))) for pixels, patch, side in sides
        )
        tiled = replace(shape, tiles=(rows, columns), tile_overlap=overlap)
        fits = not seconds or rows * columns * _estimate_seconds(fingerprint, shape, runtime, 1.0) <= seconds
        if tiled.is_tiled and rows * columns <= MAX_TILES and fits:
            size = "as they are" if scale == 1 else f"at {scale:.0%} of it, what {seconds / 60:g} minutes allow"
            small = f"shrunk to {shape.image_size[0]} {what} would vanish"
            return tiled, {
                "model.tiles": f"{pictures}, read {size}: {small}",
                "model.tile_overlap": f"{what} at the edge of a tile lies further inside of the next one",
            }
    return shape, {"model.tiles": f"{pictures} are shrunk: tiles take more than {seconds / 60:g} minutes"}


def _choose_dense_shape(
    fingerprint: DatasetFingerprint,
    request: TrainRequest,
    runtime: Runtime,
    own: ViTConfig,
    settings: FinetuneSettings,
    seconds: float,
) -> tuple[ViTConfig, Reasons]:
    """The checkpoint's shape with a linear head on every patch."""
    channels, why_channels = _choose_channels(fingerprint, request, own, settings)
    base = replace(
        own,
        channels=channels,
        outputs=fingerprint.num_classes,
        pool="patches",
        pool_blocks=1 if own.pooled_norm else max(1, min(MAX_HEAD_BLOCKS, own.depth // 3)),
        pool_every=max(1, own.depth // 6),
        head="linear",
        head_bias=True,
        bank_size=0,
        distillation_head=False,
        dropout=0.0,
        attention_dropout=0.0,
        mlp_dropout=0.0,
        drop_path=0.0,
    )
    size, why_size = _choose_image_size(fingerprint, request, base, runtime, seconds, 1, BANK_GRID_SIDES)
    shape, why_tiles = _choose_tiles(fingerprint, request, replace(base, image_size=size), runtime, seconds)
    tuned = settings.method != "probe"
    return replace(shape, upsample=min(MASK_UPSAMPLE, *shape.patch) if tuned else 1), why_tiles | {
        "model.upsample": "parts of patches learn finer borders" if tuned else "a fitted head has outputs of patches",
        "model.pool": "every patch has a class of its own",
        "model.pool_blocks": "lower blocks know edges, upper ones what is shown; the fit chooses",
        "model.pool_every": "over the upper half",
        "model.channels": why_channels,
        "model.image_size": why_size,
    }


def _choose_channels(
    fingerprint: DatasetFingerprint, request: TrainRequest, own: ViTConfig, settings: FinetuneSettings
) -> tuple[int, str]:
    wanted = request.channels or (fingerprint.channels if settings.channels_policy != "none" else own.channels)
    if wanted != own.channels and settings.channels_policy == "none":
        raise UsageError(
            f"The checkpoint was trained on pictures of {format_count(own.channels, 'channel')}, and {wanted} were "
            "asked for. Adapt it by --finetune.channels_policy sum, mean or tile, or leave --channels out."
        )
    if wanted != fingerprint.channels and {wanted, fingerprint.channels} != {1, 3}:
        raise UsageError(
            f"The checkpoint was trained on pictures of {format_count(own.channels, 'channel')}, and those of "
            f"{fingerprint.name} have {fingerprint.channels}. Adapt it by --finetune.channels_policy sum, mean or "
            "tile, or begin without it: --weights none."
        )
    same = "as the checkpoint was trained; grey and colour turn into each other"
    return wanted, same if wanted == own.channels else f"adapted: {settings.channels_policy}"


def _choose_image_size(
    fingerprint: DatasetFingerprint,
    request: TrainRequest,
    base: ViTConfig,
    runtime: Runtime,
    seconds: float,
    world_size: int,
    sides: tuple[int, ...] = GRID_SIDES,
) -> tuple[tuple[int, int], str]:
    """The largest candidate size that the minutes allow, or the checkpoint's own if it is small."""
    if request.image_size is not None:
        return request.image_size, "asked for"
    if min(base.grid) <= GRID_SIDES[0]:
        return base.image_size, "the checkpoint's own"
    grids = [choose_strip_grid(fingerprint, request, side) or (side, side) for side in sides if side <= min(base.grid)]
    sizes = [(rows * base.patch[0], columns * base.patch[1]) for rows, columns in grids]
    names = [str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}" for size in sizes]
    strips = f"{describe_strips(fingerprint)}, whose shape is kept; " if grids[0][0] != grids[0][1] else ""
    if not seconds:
        return sizes[-1], f"{strips}no minutes to keep to; {names[-1]} shows details"
    frozen = _freeze_fractions(world_size)[-1]
    fitting = [
        size
        for size in sizes
        if _estimate_seconds(fingerprint, replace(base, image_size=size), runtime, frozen) <= seconds
    ]
    chosen = fitting[-1] if fitting else sizes[0]
    passes = "all patches of" if base.head == "bank" else f"about {MIN_PASSES} passes over"
    counted = _count_passed_images(fingerprint, base)
    some = f"{counted} of " if counted < fingerprint.num_images else ""
    return chosen, (
        f"{strips}of {', '.join(names)}, what leaves {seconds / 60:g} minutes for {passes} {some}"
        f"{format_count(fingerprint.num_images, 'picture')}"
    )


def _count_passed_images(fingerprint: DatasetFingerprint, model: ViTConfig) -> int:
    """The training pictures that the minutes are to hold passes over."""
    return min(fingerprint.num_images, ENOUGH_MASKS) if model.is_dense else fingerprint.num_images


def _estimate_seconds(fingerprint: DatasetFingerprint, model: ViTConfig, runtime: Runtime, frozen: float) -> float:
    """Rough seconds of features and `MIN_PASSES` epochs, a trained block costing three times its forward pass; of a
    bank those of one pass, in float32, and as much again for choosing its patches and the scores.
    """
    forward_passes = 2.0 if model.head == "bank" else 2.2 + MIN_PASSES * (3 - 2 * frozen)
    speed = _device_speed(replace(runtime, precision="float32") if model.head == "bank" else runtime)
    return _count_passed_images(fingerprint, model) * forward_operations(model) * forward_passes / speed


def _device_speed(runtime: Runtime) -> float:
    kind = runtime.device.split(":")[0]
    return DEVICE_SPEED[kind] * PRECISION_SPEED[runtime.precision] * (runtime.threads / 2 if kind == "cpu" else 1)


def _choose_settings(
    settings: FinetuneSettings,
    start_overrides: dict[str, str],
    fingerprint: DatasetFingerprint,
    model: ViTConfig,
    runtime: Runtime,
    seconds: float,
    world_size: int,
) -> tuple[FinetuneSettings, Reasons]:
    """The fine-tuning settings: all blocks if the minutes allow it, else the upper ones."""
    reasons: Reasons = {
        "finetune.weights": "see --weights",
        "finetune.weights_sha256": "the hash of the tensors that were read, so that no other file is followed",
        "finetune.channels_policy": "the checkpoint's number of channels is kept",
    } | explain_unused_fields(settings.method)
    if fingerprint.task == "anomaly":
        if settings.method != "probe" and "finetune.method" in start_overrides:
            raise UsageError("--task anomaly tunes nothing. Leave --finetune.method out.")
        frozen = replace(settings, method="probe")
        return frozen, reasons | explain_unused_fields("probe") | {"finetune.method": "good pictures fill a bank"}
    is_dense = fingerprint.task == "segmentation"
    chosen = settings
    if is_dense and "finetune.wise_ft_alphas" not in start_overrides and chosen.method != "probe":
        chosen = replace(chosen, wise_ft_alphas=MASK_ALPHAS)
        reasons["finetune.wise_ft_alphas"] = "few, because masks take long to compare"
    if "finetune.layer_decay" not in start_overrides and chosen.method == "full":
        chosen = replace(chosen, layer_decay=0.75 if model.depth >= 12 else 0.9)
        reasons["finetune.layer_decay"] = "the lower a block, the more general what it knows"
    if "finetune.layer_decay" not in start_overrides and chosen.method == "lora":
        reasons["finetune.layer_decay"] = "adapters of all blocks learn at one rate"
    if "finetune.freeze_blocks" not in start_overrides and chosen.method == "full":
        fractions = MASK_FREEZE_FRACTIONS if is_dense and world_size == 1 else _freeze_fractions(world_size)
        fitting = [
            each for each in fractions if not seconds or _estimate_seconds(fingerprint, model, runtime, each) <= seconds
        ]
        fraction = fitting[0] if fitting else fractions[-1]
        chosen = replace(chosen, freeze_blocks=int(fraction * model.depth))
        if not fitting and world_size > 1:
            why = f"{world_size} processes cannot leave blocks as they are yet: all are tuned"
        elif not seconds:
            why = "no minutes to keep to: half are tuned" if is_dense else "no minutes to keep to: all are tuned"
        elif is_dense:
            why = "the upper ones know what is shown, and few masks teach them"
        else:
            why = "the more passes over the upper ones" if fraction else "the minutes allow to tune all"
        reasons["finetune.freeze_blocks"] = why
    if "finetune.method" not in start_overrides:
        kept = "the frozen probe stays if tuning does not beat it"
        kept += "" if is_dense else ", and adapters won by 0.1 points at most"
        reasons["finetune.method"] = f"{format_count(fingerprint.num_images, 'picture')}; {kept}"
    return chosen, reasons


def explain_unused_fields(method: FinetuneMethod) -> Reasons:
    """Reasons of the [finetune] fields that a method does not use."""
    why = {"probe": "the probe tunes nothing", "full": "no adapters", "lora": "adapters leave all blocks as they are"}
    return {f"finetune.{name}": why[method] for name, methods in METHOD_FIELDS.items() if method not in methods}


def _freeze_fractions(world_size: int) -> tuple[float, ...]:
    """The candidate fractions; several ranks cannot freeze blocks yet."""
    return FREEZE_FRACTIONS if world_size == 1 else FREEZE_FRACTIONS[:1]


def _choose_image_spec(
    fingerprint: DatasetFingerprint, model: ViTConfig, checkpoint: StartCheckpoint
) -> tuple[ImageSpec, Reasons]:
    """The checkpoint's normalization and interpolation, the data's value range, and the whole image."""
    fresh = ImageSpec()
    reasons: Reasons = {f"image.{name}": "as the checkpoint was trained" for name in ("mean", "std", "interpolation")}
    reasons["image.fit"] = "whole pictures: what the published crop cuts off may decide"
    why = {
        "image.low": fingerprint.range_reason,
        "image.high": fingerprint.range_reason,
        "image.bit_depth": fingerprint.depth_reason,
        "image.window": fingerprint.window_reason,
    }
    reasons |= {name: reason for name, reason in why.items() if reason}
    spec = replace(
        resize_spec(checkpoint.spec, model),
        low=fingerprint.low,
        high=fingerprint.high,
        bit_depth=fingerprint.bit_depth,
        window=fingerprint.window,
        page=fresh.page,
        max_pixels=fresh.max_pixels,
        fit="squash",
        crop_fraction=1.0,
    )
    return spec, reasons


def _draft_recipe(
    fingerprint: DatasetFingerprint,
    model: ViTConfig,
    request: TrainRequest,
    settings: FinetuneSettings,
) -> tuple[Recipe, Reasons]:
    """AdamW with a cosine schedule; the learning rate falls with the width."""
    is_dense = fingerprint.task == "segmentation"
    mirror = fingerprint.name not in NO_FLIP_SOURCES and fingerprint.task != "anomaly"
    mirror = mirror and not (is_dense and settings.method == "probe")
    batch = (
        MASK_BATCH
        if is_dense
        else min(
            32 if fingerprint.num_images < FEW_IMAGES else 64,
            max(8, 2 ** round(math.log2(max(fingerprint.num_images, 1) / 4))),
        )
    )
    class_weights, why = choose_class_weights(fingerprint.task, fingerprint.imbalance_ratio, fingerprint.has_weights)
    rate = min(LR_AT_384 * max(384 / model.width, 1.0) ** LR_WIDTH_EXPONENT, MAX_LR)
    rate *= 10 if settings.method == "lora" else MASK_LR_FACTOR if is_dense else 1
    reasons = why | {
        "recipe.batch_size": format_count(fingerprint.num_images, "training picture"),
        "recipe.flip": "mirrored pictures mean the same"
        if mirror
        else "good pictures as they are"
        if fingerprint.task == "anomaly"
        else MASKS_AS_THEY_ARE
        if is_dense
        else "a mirrored digit is another sign",
        "recipe.lr": "adapters begin at zero" if settings.method == "lora" else f"blocks of width {model.width}",
        "recipe.optimizer": "what trained weights are usually tuned with",
        "recipe.warmup": "a tenth, until the moments are known: a fitted head is soon spoilt",
        "recipe.grad_clip_norm": "one odd batch must not spoil a fitted head",
        "recipe.lr_schedule": "usual in tuning; nothing at the last step",
        "recipe.patch_keep_until": "few steps: all of them see whole pictures",
        "recipe.crop_padding": "a head that was probed on unmoved patches loses by moved ones",
    }
    recipe = Recipe(
        batch_size=batch,
        optimizer="adamw",
        lr=rate,
        warmup=0.1,
        lr_schedule="cosine",
        grad_clip_norm=1.0,
        class_weights=class_weights,
        flip=mirror,
        tta_flip=mirror and not is_dense,
        dice_weight=float(is_dense),
    )
    if is_dense:
        reasons |= {
            "recipe.dice_weight": "a class of few pixels counts as much as one of many",
            "recipe.tta_flip": "every pixel has one answer",
        }
    if settings.method != "probe":
        return recipe, reasons
    recipe, why_probe = drop_steps(recipe)
    if fingerprint.task == "anomaly":
        why_probe = {"recipe.steps": "patches of good pictures are kept, and nothing is tuned"}
    return recipe, reasons | why_probe


def drop_steps(recipe: Recipe) -> tuple[Recipe, Reasons]:
    """The recipe of a training that ends with the linear probe."""
    reasons = {"recipe.steps": "the probe is the end"}
    if recipe.class_weights != "none":
        reasons["recipe.class_weights"] = "the probe weighs all pictures alike"
    if recipe.dice_weight:
        reasons["recipe.dice_weight"] = "a head on patches is fitted by its cross-entropy"
    return replace(recipe, steps=0, class_weights="none", dice_weight=0.0), reasons


# -- Time budget to step count: feature extraction is measured, the rest of the time is for steps

FINETUNE_EVALUATIONS = 3
MAX_STEP_GROWTH = 10
"""How many times the steps may grow by the clock without a second evaluation where there is time for one."""
EVALUATION_SHARE = 0.15
"""Fraction of the minutes that evaluations on masks may take, if that is one evaluation or more."""
MIN_FINETUNE_STEPS = 10
"""With fewer the probe is the result."""
MEASURED_IMAGES = 1, 1, 4, 32
"""Images whose features are timed in turn; the first warms up."""
PROBE_SECONDS = 2.0, 1.5e-6
"""For all probes: a constant, and per value of the features."""


def finalize_finetune_plan(
    draft: PlanContext, request: TrainRequest, spent: float = 0.0, dry_run: bool = False
) -> tuple[Plan, Reasons, Throughput | None, float]:
    """The final plan, new reasons, the throughput (None if not measured), and the seconds before the steps.

    The counterpart of `finalize.finalize_plan` for runs from a checkpoint. A probe has no steps to fix, so its
    features are measured in a dry run only.

    Args:
        spent: seconds that something else takes before the steps.
    """
    plan, world_size, reasons = draft.plan, draft.group.world_size, Reasons()
    if plan.model.is_dense and plan.finetune.method != "probe" and not len(draft.dataset.splits["val"]):
        unknown = "no validation pictures tell whether tuning is better than the frozen patches"
        plan, reasons = _end_with_probe(plan, unknown, "Give some", request)
    if plan.finetune.method == "probe":
        plan, why, each = _limit_head_images(draft.with_plan(plan), request)
        reasons |= why
        if not dry_run:
            return plan, reasons, None, spent
        return plan, reasons, NO_THROUGHPUT, spent + estimate_probe_seconds(draft.with_plan(plan), each)[0]
    plan, reasons = flip_invariance.choose_flips(plan, draft.images, draft.dataset, request)
    if not is_measured(plan, dry_run):
        plan, why = _evaluate_rarely(plan)
        return plan, reasons | why, None, spent
    plan, why, each = _limit_head_images(draft.with_plan(plan), request)
    reasons |= why
    context = draft.with_plan(plan)
    each = measure_feature_seconds(context) if each is None else each
    before, evaluation = estimate_probe_seconds(context, each)
    spent += before
    measured = throughput.measure_throughput(context, estimate_step_seconds(plan, each))
    if plan.minutes:
        evaluations, aside = FINETUNE_EVALUATIONS, 0.0
        if plan.model.is_dense and not plan.recipe.evaluate_every:
            evaluations = count_evaluations(plan.minutes, evaluation)
            aside = evaluations * evaluation
        plan, why = fix_finetune_steps(plan, spent, measured, request, world_size, aside, evaluations)
    else:
        plan, why = _evaluate_rarely(plan)
    return plan, reasons | why, measured if plan.recipe.steps else NO_THROUGHPUT, spent


def estimate_probe_seconds(context: PlanContext, each: float | None = None) -> tuple[float, float]:
    """Seconds before the steps, for all features and all probes; and those of an evaluation.

    Args:
        each: seconds of an image's features; None measures some now.
    """
    plan, dataset = context.plan, context.dataset
    model, (train, valid) = plan.model, (len(dataset.splits[split]) for split in ("train", "val"))
    each = measure_feature_seconds(context) if each is None else each
    if model.is_dense:
        fraction = plan.finetune.head_fraction
        pace = measure_fit_pace(list_feature_columns(model), model.outputs, valid > 0)
        patches = min(fraction * train * model.input_grid.patches, most_patches(model.pooled_width))
        looked, probes = fraction * (train + valid), pace.estimate(plan.finetune.head_patches or int(patches))
        if plan.minutes:
            probes = min(probes, FIT_SHARE * max(0.0, 60 * plan.minutes - each * looked))
    else:
        looked = train * (1 + uses_mirror_images(plan, dataset)) + valid
        probes = PROBE_SECONDS[0] + PROBE_SECONDS[1] * min(looked * model.pooled_width, MAX_FEATURE_VALUES)
        times = 1 + plan.pretrain.is_enabled  # of the start, and of what pre-training makes of it
        looked, probes = times * looked, times * probes
    return each * looked + probes, each * min(valid, MAX_VALIDATION_IMAGES)


def _limit_head_images(context: PlanContext, request: TrainRequest) -> tuple[Plan, Reasons, float | None]:
    """The plan with as many pictures with masks as a part of the minutes has features of, by the pace of this moment;
    as it is with few of them, or with a fraction that was asked for. Then the reason, and the measured seconds of an
    image's features.
    """
    plan, count = context.plan, sum(len(context.dataset.splits[split]) for split in ("train", "val"))
    is_asked = "finetune.head_fraction" in request.overrides
    if not (plan.model.is_dense and plan.minutes) or is_asked or count <= MIN_HEAD_IMAGES:
        return plan, {}, None
    each = measure_feature_seconds(context)
    seconds = count * each
    share = FIT_SHARE if plan.finetune.method == "probe" else TUNED_FIT_SHARE
    fraction = math.floor(100 * share * 60 * plan.minutes / seconds) / 100
    if fraction >= 1:
        return plan, {}, each
    limited = replace(plan, finetune=replace(plan.finetune, head_fraction=max(fraction, MIN_HEAD_IMAGES / count)))
    why = f"features of {format_count(count, 'picture')} would take {seconds:.0f} s of {60 * plan.minutes:g}"
    return limited, {"finetune.head_fraction": why}, each


def measure_feature_seconds(context: PlanContext, limit: float | None = None) -> float:
    """Seconds per image for its features, after a few that warm up, or of these if more would take too long.

    Args:
        limit: seconds that the measurement may take, by default a quarter of those that are left for measuring; the
            first image is measured whatever it takes.
    """
    plan, images, compute = context.plan, context.images, context.plan.compute
    limit = context.measuring_seconds() / 4 if limit is None else limit
    pooled = cast_weights(FeatureExtractor(create_model(plan.model, plan.seed).to(compute.device)), compute.precision)
    settings = InferenceSettings(device=compute.device, precision=compute.precision, batch_size=FEATURE_BATCH)
    seconds = 0.0
    for count in MEASURED_IMAGES:
        if seconds * count > limit:
            break
        rows, began = images.indices[:count], time.perf_counter()
        run_inference(pooled, images, rows, plan.image, settings)
        seconds = (time.perf_counter() - began) / len(rows)
    return seconds


def estimate_step_seconds(plan: Plan, each: float) -> float:
    """Seconds of a step by those of the features of an image: a trained block costs three times its forward pass."""
    frozen = plan.finetune.freeze_blocks / plan.model.depth
    return plan.recipe.batch_size * each * (3 - 2 * frozen)


def fix_finetune_steps(
    plan: Plan,
    spent: float,
    throughput: Throughput,
    request: TrainRequest,
    world_size: int = 1,
    aside: float = 0.0,
    evaluations: int = FINETUNE_EVALUATIONS,
) -> tuple[Plan, Reasons]:
    """The plan with as many steps as its minutes leave; with too few, the probe is the result.

    Args:
        spent: seconds of all features and probes, and of a teacher that is trained before them.
        world_size: number of ranks; several cannot end with the probe and make at least `MIN_FINETUNE_STEPS`.
        aside: seconds between the steps.
        evaluations: during the steps, unless their number was asked for.

    Raises:
        UsageError: the probe is the result, and a requested setting needs steps.
    """
    recipe, seconds = plan.recipe, plan.minutes * 60
    steps = round((seconds - spent - aside) / throughput.mean_seconds)
    first = "features and the teacher" if plan.distill.has_first_stage else "features"
    between = f" and {aside:.0f} s for evaluations" if aside else ""
    why = f"{plan.minutes:g} minutes less {spent:.0f} s for {first}{between}, {throughput.mean_seconds:.3f} s a step"
    why += "" if throughput.is_tried else " by the pace of features: too slow here to try one"
    if steps < MIN_FINETUNE_STEPS and world_size > 1:
        why = f"at least, for {world_size} processes cannot end with the probe yet: {why}, are {max(steps, 0)}"
        steps = MIN_FINETUNE_STEPS
    if steps < MIN_FINETUNE_STEPS:
        reason = f"{first} take {spent:.0f} s of {seconds:g}, too little is left to tune"
        if plan.distill.is_enabled:
            raise UsageError(f"F{reason[1:]}, so no step asks the teacher. Give more --minutes, or leave it out.")
        return _end_with_probe(plan, reason, "Give more --minutes", request)
    plan, why_rarely = _evaluate_rarely(replace(plan, recipe=replace(recipe, steps=steps)), evaluations)
    return plan, {"recipe.steps": why} | why_rarely


def _end_with_probe(plan: Plan, reason: str, advice: str, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan without steps, whose result is the probe.

    Raises:
        UsageError: a requested setting needs steps.
    """
    tunes = [f"finetune.{name}" for name in ("method", *METHOD_FIELDS)]
    useless = [name for name in request.overrides if name in tunes]
    useless += unused_settings.find_step_settings(request.overrides)
    useless += [f"model.{name}" for name in PART_FIELDS if f"model.{name}" in request.overrides]
    if useless:
        raise UsageError(
            f"{reason[0].upper()}{reason[1:]}, which --{useless[0]} is for. {advice}, leave it out, or begin without "
            "the checkpoint: --weights none."
        )
    start, kept = plan.finetune, ("weights", "weights_sha256", "channels_policy", "head_fraction", "head_patches")
    start = FinetuneSettings(method="probe", **{name: vars(start)[name] for name in kept})
    recipe, why_probe = drop_steps(plan.recipe)
    reasons = {"finetune.method": reason} | explain_unused_fields("probe") | why_probe
    if plan.model.is_dense:
        recipe = replace(recipe, flip=False, flip_vertical=False, transpose=False)
        reasons |= dict.fromkeys(("recipe.flip", "recipe.flip_vertical", "recipe.transpose"), MASKS_AS_THEY_ARE)
        reasons["model.upsample"] = "a fitted head has outputs of patches"
    model = replace(plan.model, upsample=1, queries=0)
    return dataclasses.replace(plan, finetune=start, recipe=recipe, model=model), reasons


def count_evaluations(minutes: float, seconds: float) -> int:
    """Evaluations on masks during the steps, of so many seconds each: three, or fewer where they are slow."""
    return max(1, min(FINETUNE_EVALUATIONS, int(EVALUATION_SHARE * 60 * minutes / max(seconds, 1e-9))))


def _evaluate_rarely(plan: Plan, evaluations: int = FINETUNE_EVALUATIONS) -> tuple[Plan, Reasons]:
    """The plan with few evaluations: they cost as much as many steps, and the probe's metrics are known."""
    if plan.recipe.evaluate_every:
        return plan, {}
    steps = plan.recipe.steps
    every = max(1, -(-steps // evaluations)) if evaluations > 1 else MAX_STEP_GROWTH * steps
    rarely = replace(plan, recipe=replace(plan.recipe, evaluate_every=every))
    return rarely, {"recipe.evaluate_every": "rarely: the probe has told already what to expect"}


# -- Choice of the starting checkpoint: the requested one, or a local one that would help

SMALL_SIDE = 64
"""Images with a shorter side than this have too few details for a large checkpoint."""


@dataclass(frozen=True)
class CheckpointChoice:
    """The checkpoint, if there is one, why, and notes about it."""

    checkpoint: StartCheckpoint | None
    reason: str
    notes: tuple[str, ...] = ()


def choose_checkpoint(fingerprint: DatasetFingerprint, request: TrainRequest, runtime: Runtime) -> CheckpointChoice:
    """The checkpoint that --weights names; with auto a recommended one, if it is on this machine and would help.

    Nothing is downloaded unless a name on the Hub was given.

    Raises:
        as `weights.open_checkpoint`.
    """
    if fingerprint.task == "anomaly" and request.weights in ("none", "auto"):
        return _choose_frozen_checkpoint(request, fingerprint.task)
    if request.weights == "none":
        return CheckpointChoice(None, "asked for")
    if request.weights != "auto":
        checkpoint = open_checkpoint(request.weights)
        return CheckpointChoice(checkpoint, "asked for", _start_note(checkpoint))
    if request.model is not None:
        return CheckpointChoice(None, "--model names a shape of its own")
    if request.pretrain:
        return CheckpointChoice(None, "--pretrain begins from random values")
    if request.overrides.get("distill.kind") == "features":
        return CheckpointChoice(None, "a teacher of features begins from random values")
    if min(fingerprint.height, fingerprint.width) < SMALL_SIDE:
        return CheckpointChoice(
            None, f"pictures of {fingerprint.height} x {fingerprint.width} have few details that a checkpoint knows"
        )
    if fingerprint.channels not in (1, 3):
        return CheckpointChoice(
            None, f"no recommended checkpoint reads pictures of {format_count(fingerprint.channels, 'channel')}"
        )
    suitable = RECOMMENDED_CHECKPOINTS[:1] if runtime.device == "cpu" else RECOMMENDED_CHECKPOINTS[::-1]
    for one in suitable:
        if (path := find_downloaded(one)) is not None:
            checkpoint = open_checkpoint(str(path))
            features = estimate_min_seconds(fingerprint, checkpoint.config, runtime)
            if (seconds := resolve_minutes(request) * 60) and features > seconds / 2:
                about = (
                    f"the features of {format_count(fingerprint.num_images, 'picture')} alone would take about "
                    f"{features:.0f} s"
                )
                return CheckpointChoice(None, f"{about} of {seconds:g}")
            return CheckpointChoice(
                checkpoint, f"{one.name} is on this machine and knows pictures of this size", _start_note(checkpoint)
            )
    best = suitable[0]
    advice = (
        f"From scratch: no recommended checkpoint is on this machine. {best.repository} ({best.megabytes} MB, "
        f"{best.licence}) would probably do better: add --weights {best.name} to download it."
    )
    return CheckpointChoice(None, "no recommended checkpoint is on this machine", (advice,))


def _choose_frozen_checkpoint(request: TrainRequest, task: Task) -> CheckpointChoice:
    """A recommended checkpoint on this machine: patches are compared by trained features, or not at all."""
    for one in RECOMMENDED_CHECKPOINTS if request.weights == "auto" else ():
        if (path := find_downloaded(one)) is not None:
            checkpoint = open_checkpoint(str(path))
            return CheckpointChoice(checkpoint, f"{one.name} is on this machine", _start_note(checkpoint))
    best = RECOMMENDED_CHECKPOINTS[0]
    raise UsageError(
        f"--task {task} compares patches by the features of a trained model, and none is named. Give --weights "
        f"{best.name} ({best.megabytes} MB, {best.licence}, downloaded once), a weights file, or the folder "
        "pretrained/ of a run with --pretrain."
    )


def _start_note(checkpoint: StartCheckpoint) -> tuple[str, ...]:
    about = "; ".join(checkpoint.notes)
    return (f"Begins from {checkpoint.name}{': ' if about else ''}{about}.",)


# -- Draft of a plan and its final fields, with or without a checkpoint


def draft_from_request(
    fingerprint: DatasetFingerprint, request: TrainRequest, runtime: Runtime, world_size: int = 1
) -> tuple[Plan, Reasons, tuple[str, ...]]:
    """The plan without what is measured, its reasons, and notes.

    A checkpoint that was chosen by default is dropped where it contradicts an explicit setting.

    Raises:
        as `planner.draft_plan` and `weights.open_checkpoint`.
    """
    selected = choose_checkpoint(fingerprint, request, runtime)
    reason, notes = selected.reason, selected.notes
    if selected.checkpoint is not None:
        try:
            plan, reasons = draft_finetune_plan(fingerprint, request, runtime, selected.checkpoint, world_size)
            notes += unused_settings.describe_reduced_settings(plan, request.overrides, fingerprint.num_images)
            return plan, reasons | {"finetune.weights": reason}, notes
        except UsageError as error:
            if request.weights != "auto":
                raise
            reason = f"{selected.checkpoint.name} is on this machine, but does not suit what was asked for: {error}"
            notes = (f"From scratch: {reason}",)
    plan, reasons = planner.draft_plan(fingerprint, request, runtime)
    notes += unused_settings.describe_reduced_settings(plan, request.overrides, fingerprint.num_images)
    return plan, reasons | {"finetune.weights": reason}, notes


def finalize_draft(
    draft: PlanContext, request: TrainRequest, reasons: Reasons, spent: float, dry_run: bool
) -> tuple[Plan, Reasons, Throughput | None, float]:
    """The final plan, new reasons, the throughput (None if not measured), and the seconds before the steps.

    Args:
        reasons: of the draft.
        spent: seconds of pre-training and teacher.

    Raises:
        as `finalize.finalize_plan`.
    """
    if draft.plan.finetune.from_checkpoint:
        return finalize_finetune_plan(draft, request, spent, dry_run)
    return (*finalize.finalize_plan(draft, request, reasons, spent, dry_run), spent)
