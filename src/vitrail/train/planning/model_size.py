"""Choose the model, its image size and its patch size: the first lines of a plan."""

from __future__ import annotations

import dataclasses
import math

from ...errors import UsageError
from ...formatting import format_count
from ...model.config import ViTConfig
from ...model.registry import config_from_name
from ...spec import ImageSpec
from ..plan import Plan
from ..request import FEW_IMAGES, DatasetFingerprint, Reasons, TrainRequest

MAX_OWN_SIDE = 64
"""Images whose shorter side is at most this are read at their own size."""
REDUCED_SIDE, REDUCED_SIDE_FEW = 64, 96
"""Side of larger images after resizing: of many images, and of few, which are seen often enough for the finer size."""
PATCH_ROWS, REDUCED_PATCH_ROWS = 7, 8
"""Patches along the short side of small images, and of resized ones: about 49 and 64 patches."""
STRIP_ASPECT = 2.0
"""Pictures of which all are at least so much longer than wide, or wider than long, keep their shape."""
MASK_SIDE, MASK_PATCH_ROWS, MAX_UPSAMPLE = 128, 16, 8
"""The same for masks, and the most parts of a patch, a side, that have outputs of their own."""
MAX_PATCHES = 256
"""Most patches of a model whose size follows the pictures; of longer strips the long side is squashed."""
FEMTO_BELOW_STEPS = 4_000
"""Steps of `pico` below which `femto` is better: it makes 1.5 times as many in the same time (EXPERIMENTS.md)."""


def choose_model(fingerprint: DatasetFingerprint, request: TrainRequest, device: str) -> tuple[str, ViTConfig, Reasons]:
    """Name, architecture and reasons of the requested model or of a small one that fits the images.

    Raises:
        UsageError: channels that the images cannot be converted to, no such name, or no patch that fits the size.
    """
    if request.model is not None:
        name, reasons = request.model, {"model_name": "asked for"}
    else:
        name, reasons = _suggest_model_name(fingerprint, request, device)
    base = config_from_name(name)
    size = request.image_size if request.model is not None and request.image_size else base.image_size
    channels = request.channels or fingerprint.channels
    if channels != fingerprint.channels and {channels, fingerprint.channels} != {1, 3}:
        raise UsageError(
            f"--channels {channels} cannot be made of pictures with {fingerprint.channels}; only grey and colour (1 "
            f"and 3) turn into each other. Leave it out, or use {fingerprint.channels}."
        )
    reasons["model.channels"] = "as the pictures are" if request.channels is None else "asked for"
    model = dataclasses.replace(base, image_size=size, channels=channels, outputs=fingerprint.num_classes)
    if fingerprint.task == "segmentation":
        model, why = _make_dense(model)
        reasons |= why
    return name, model, reasons


def draft_image_spec(fingerprint: DatasetFingerprint, model: ViTConfig) -> tuple[ImageSpec, Reasons]:
    """The section [image] before explicit fields, for a model that is trained from scratch; and reasons."""
    image = ImageSpec(
        height=model.image_size[0],
        width=model.image_size[1],
        channels=model.channels,
        low=fingerprint.low,
        high=fingerprint.high,
        bit_depth=fingerprint.bit_depth,
        window=fingerprint.window,
    )
    reasons = dict.fromkeys(("image.low", "image.high"), fingerprint.range_reason)
    reasons |= {"image.bit_depth": fingerprint.depth_reason, "image.window": fingerprint.window_reason}
    return image, {name: reason for name, reason in reasons.items() if reason}


def check_input_size(plan: Plan) -> None:
    """Check that [image] gives what the model reads.

    Raises:
        UsageError: another size, or another number of channels.
    """
    if plan.model.input_size != plan.image.size or plan.model.channels != plan.image.channels:
        raise UsageError(
            f"The model reads {plan.model.input_size[0]}x{plan.model.input_size[1]} pixels of "
            f"{format_count(plan.model.channels, 'channel')}, but [image] gives {plan.image.height}x{plan.image.width} "
            f"of {plan.image.channels}. Give both by --image-size and --channels."
        )


def _make_dense(model: ViTConfig) -> tuple[ViTConfig, Reasons]:
    """The model with outputs of patches and of their parts, down to two pixels where a patch has as many."""
    upsample = max(1, min(min(model.patch) // 2, MAX_UPSAMPLE))
    dense = dataclasses.replace(
        model, pool="patches", pool_heads=None, pool_mlp_width=None, head="linear", head_bias=True,
        distillation_head=False, upsample=upsample,
    )  # fmt: skip
    return dense, {
        "model.pool": "every patch has a class of its own",
        "model.upsample": f"parts of {min(model.patch) // upsample} pixels have outputs of their own",
    }


def shrink_for_few_steps(plan: Plan, request: TrainRequest) -> tuple[Plan, Reasons]:
    """The plan with `femto` instead of `pico` for few steps, unless a model was requested; and the reason.

    A phase before the training has trained the drafted model, so the plan then keeps it.
    """
    requested = request.model is not None or any(name.startswith("model.") for name in request.overrides)
    has_phase = plan.pretrain.is_enabled or plan.distill.is_enabled
    if requested or has_phase or "_pico_" not in plan.model_name or plan.recipe.steps >= FEMTO_BELOW_STEPS:
        return plan, {}
    name = plan.model_name.replace("_pico_", "_femto_")
    why = (
        f"femto learns more where the minutes are fewer than {FEMTO_BELOW_STEPS:,} steps of pico; "
        f"at the pace measured just now they are {plan.recipe.steps:,}"
    )
    smaller, kept = config_from_name(name), plan.model
    model = dataclasses.replace(smaller, image_size=kept.image_size, channels=kept.channels, outputs=kept.outputs)
    model = _make_dense(model)[0] if kept.is_dense else model
    return dataclasses.replace(plan, model_name=name, model=model), {"model_name": why}


def _suggest_model_name(fingerprint: DatasetFingerprint, request: TrainRequest, device: str) -> tuple[str, Reasons]:
    """The name of a small model with about 7 x 7 patches, or 8 x 8 for resized images; and reasons."""
    size, rows, why_size = _choose_image_size(fingerprint, request)
    if fingerprint.task == "segmentation" and max(size) < STRIP_ASPECT * min(size):
        rows = max(rows, MASK_PATCH_ROWS)
    patch, whole = choose_patch(size, rows)
    if whole != size and request.image_size is not None:
        raise UsageError(f"No patch near {patch} divides {size[0]}x{size[1]}. Use {whole[0]}x{whole[1]}, or --model.")
    limited = whole if request.image_size is not None else limit_patches(whole, patch)
    if limited != whole:
        whole_patches = whole[0] * whole[1] // patch**2
        why_size += (
            f", of which the long side is squashed to {max(limited)}: whole it would be "
            f"{format_count(whole_patches, 'patch', 'patches')}, which --image-size {whole[0]}x{whole[1]} takes"
        )
    elif whole != size:
        why_size += f", to the nearest whole patches {whole[0]} x {whole[1]}"
    whole = limited
    shape = "pico" if device == "cpu" else "micro"
    more = "more pictures seen beat more parameters" if shape == "pico" else "a GPU has time for more parameters"
    why_patch = "49 to 64 patches teach most per second"
    why_patch = "small patches, for fine borders" if fingerprint.task == "segmentation" else why_patch
    pixels = f"{whole[0]}" if whole[0] == whole[1] else f"{whole[0]}x{whole[1]}"
    return f"vit_{shape}_patch{patch}_{pixels}", {
        "model_name": f"{shape}: {more}",
        "model.image_size": why_size,
        "model.patch": f"{whole[0] // patch} rows of {whole[1] // patch}: {why_patch}",
    }


def _choose_image_size(fingerprint: DatasetFingerprint, request: TrainRequest) -> tuple[tuple[int, int], int, str]:
    """(height, width) to read, the number of patch rows along the shorter side, and the reason for the size."""
    if request.image_size is not None:
        rows = PATCH_ROWS if min(request.image_size) <= MAX_OWN_SIDE else REDUCED_PATCH_ROWS
        return request.image_size, rows, "asked for"
    short = min(fingerprint.height, fingerprint.width)
    if short <= MAX_OWN_SIDE:
        own = f"the pictures' own size, {fingerprint.height} x {fingerprint.width}"
        return (fingerprint.height, fingerprint.width), PATCH_ROWS, own
    side, rows = REDUCED_SIDE, REDUCED_PATCH_ROWS
    if few := fingerprint.num_images < FEW_IMAGES and short >= REDUCED_SIDE_FEW:
        side = REDUCED_SIDE_FEW
    why = "so few pictures are seen often at this size too" if few else "minutes from scratch can use this"
    if fingerprint.task == "segmentation" and short >= MASK_SIDE:
        side, rows = MASK_SIDE, MASK_PATCH_ROWS
        why = "every pixel has an answer, and minutes from scratch can use this"
    if (grid := choose_strip_grid(fingerprint, request, rows)) is not None:
        patch = side // rows
        kept = f"their shape is kept in as many patches as a square of {side} has"
        return (grid[0] * patch, grid[1] * patch), min(grid), f"{describe_strips(fingerprint)}; {kept}"
    keeps_shape = fingerprint.height == fingerprint.width or "image.fit" in request.overrides
    square = "" if keeps_shape else ", made square: --image.fit crop cuts instead"
    shape = f"the pictures are {fingerprint.height} high, {fingerprint.width} wide{square}"
    return (side, side), REDUCED_PATCH_ROWS, f"{shape}; {why}"


def choose_strip_grid(fingerprint: DatasetFingerprint, request: TrainRequest, side: int) -> tuple[int, int] | None:
    """Rows and columns of patches in the shape of pictures that are all strips, as many as a square of `side` patches
    has; None for other pictures, and where --image.fit says how a square is made.

    At least two along the short side: strips of 64 patches longer than 16 times their width are squashed to that.
    """
    low, high = fingerprint.aspects
    is_strip = low >= STRIP_ASPECT or high <= 1 / STRIP_ASPECT
    if not is_strip or "image.fit" in request.overrides:
        return None
    patches, stretch = side**2, fingerprint.width / fingerprint.height
    short = max(2, round(math.sqrt(patches / max(stretch, 1 / stretch))))
    long = patches // short
    return (short, long) if stretch > 1 else (long, short)


def describe_strips(fingerprint: DatasetFingerprint) -> str:
    """What the pictures are, for the reason of a size that keeps their shape."""
    return f"all pictures are strips, mostly {fingerprint.height} high, {fingerprint.width} wide"


def limit_patches(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """An image size of whole patches with its long side shortened to at most `MAX_PATCHES` patches in all."""
    rows, columns = size[0] // patch, size[1] // patch
    if rows * columns <= MAX_PATCHES:
        return size
    short = min(rows, columns)
    long = max(short, MAX_PATCHES // short)
    return (short * patch, long * patch) if rows <= columns else (long * patch, short * patch)


def choose_patch(size: tuple[int, int], rows: int = PATCH_ROWS) -> tuple[int, tuple[int, int]]:
    """The patch side for about `rows` patches along the short side, and the nearest image size that it divides.

    A patch that divides the image size itself is preferred if it is at most 1.5 times as large or as small.
    """
    short = min(size)
    ideal = max(min(short, 2), round(short / rows))  # at least 2 x 2 pixels
    divisors = [side for side in range(1, short + 1) if size[0] % side == 0 and size[1] % side == 0]
    patch = min(divisors, key=lambda side: abs(math.log(side / ideal)))
    if abs(math.log(patch / ideal)) > math.log(1.5):
        patch = ideal
    return patch, (max(1, round(size[0] / patch)) * patch, max(1, round(size[1] / patch)) * patch)
