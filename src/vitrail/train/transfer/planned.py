"""The plan of a run that begins from a checkpoint: its shape is given, the rest follows from pictures and minutes.

The counterpart of `planner.draft`. The rules are few and stand here; EXPERIMENTS.md has the figures behind them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ... import config
from ...checkpoints.image_spec import resize_spec
from ...errors import UsageError
from ...model.config import ViTConfig
from ...plural import counted
from ...runtime import Runtime
from ...spec import ImageSpec
from ..plan import Plan
from ..planning import diet, idle, imbalance
from ..planning.diet import MIRROR_CHANGES_MEANING
from ..planning.planner import attention_words, check_plan, compute_of, minutes_of
from ..planning.reasons import asked
from ..planning.wishes import FEW_PICTURES, Fingerprint, Reasons, Wishes
from ..pretrain import planning as pretraining
from ..recipe import Recipe
from ..teacher import planning as teaching
from .settings import ONLY_FOR, Method, StartSettings
from .weights import Checkpoint, check

GRIDS = (8, 12, 16)
"""Sides in patches that a checkpoint of a larger grid is tried at; one of a smaller grid keeps its own."""
MOST_BLOCKS = 4
"""That the head reads: as many as the linear evaluation of DINOv2 (Oquab et al. 2023)."""
SHARES = (0.0, 0.25, 0.5, 2 / 3)
"""Of the blocks that may be kept as they are; the first that the minutes allow."""
PASSES = 4
"""Passes over the training pictures without which tuning is not worth its beginning."""
SPEED = {"cpu": 1e11, "mps": 1e12, "cuda": 5e13}
"""Products and sums a second that a first guess counts with; the number of steps is measured."""
FORMAT_SPEED = {"float32": 1.0, "bfloat16": 2.0, "float16": 2.0}
RATE_AT_384, STEEPNESS, HIGHEST_RATE = 2e-6, 2.66, 1e-4
"""AdamW's, of a probed head, falls with the width: 2e-6 made DINOv2-S/14 better and 1e-5 worse; 8e-5 suited a model of
width 96 (EXPERIMENTS.md). Wider ones are not measured and begin as those of 384."""


def draft(
    found: Fingerprint, wishes: Wishes, runtime: Runtime, checkpoint: Checkpoint, world: int = 1
) -> tuple[Plan, Reasons]:
    """The plan but for the number of steps.

    Args:
        world: processes that train together; several tune all blocks, unless something else was asked for.

    Raises:
        UsageError: wishes that contradict each other or the checkpoint.
    """
    reasons: Reasons = {f"compute.{name}": reason for name, reason in runtime.reasons.items()}
    said = {name: text for name, text in wishes.overrides.items() if name.startswith("start.")}
    first = Plan(start=StartSettings(weights=checkpoint.name, digest=checkpoint.digest))
    start = config.override(first, said).start
    seconds = minutes_of(wishes) * 60
    model = _model(found, wishes, runtime, checkpoint, start, seconds, reasons, world)
    start = _start(start, said, found, model, runtime, seconds, reasons, world)
    plan = Plan(
        model_name=_name(checkpoint),
        seed=wishes.seed,
        minutes=minutes_of(wishes),
        data=wishes.data,
        image=_image(found, model, checkpoint, reasons),
        model=model,
        start=start,
        pretrain=pretraining.wished(wishes.pretrain, wishes.overrides, reasons),
        teacher=teaching.wished(wishes.overrides, reasons),
        recipe=_recipe(found, model, wishes, start, reasons),
        compute=compute_of(runtime),
    )
    plan = config.override(plan, wishes.overrides)
    plan = diet.with_budget(plan, found.count, wishes, reasons)
    reasons |= asked(wishes.overrides)
    check_plan(plan, found.classes, found.task)
    idle.check(plan, wishes.overrides)
    check(checkpoint, plan.model, plan.start)
    reasons["model.attention"] = attention_words(plan)
    return plan, reasons


def forward_operations(model: ViTConfig) -> float:
    """Products and sums of one picture's way through the blocks."""
    tokens, width = model.tokens, model.width
    matrices = 4 * width * model.attention_width + (2 if model.mlp == "plain" else 3) * width * model.mlp_width
    return 2.0 * model.depth * tokens * (matrices + 2 * tokens * model.attention_width)


def least_seconds(found: Fingerprint, own: ViTConfig, runtime: Runtime) -> float:
    """A guess for the features of all pictures, at the smallest size that would be chosen."""
    side = min(GRIDS[0], *own.grid)
    small = replace(own, image_size=(side * own.patch[0], side * own.patch[1]))
    return found.count * forward_operations(small) / _speed(runtime)


def _name(checkpoint: Checkpoint) -> str:
    path = checkpoint.path
    return path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name


def _model(
    found: Fingerprint,
    wishes: Wishes,
    runtime: Runtime,
    checkpoint: Checkpoint,
    start: StartSettings,
    seconds: float,
    reasons: Reasons,
    world: int,
) -> ViTConfig:
    """The checkpoint's shape for these pictures and answers."""
    if wishes.model is not None:
        raise UsageError(f"--weights brings its own shape, so --model {wishes.model} cannot be given with it.")
    own = checkpoint.config
    both = own.class_token and own.pool in ("class", "mean") and not own.pooled_norm
    reasons["model.pool"] = "what both kinds of features know" if both else "as the checkpoint was trained"
    reasons["model.pool_blocks"] = "the probe chooses: lower blocks often know what the last one has given up"
    every = max(1, own.depth // 6)
    apart = "over the upper half: 0.005 more AUROC than the last four of 12"
    reasons["model.pool_every"] = apart if every > 1 else f"{counted(own.depth, 'block')}, one after another"
    base = replace(
        own,
        channels=_channels(found, wishes, own, start, reasons),
        outputs=found.classes,
        pool="class+mean" if both else own.pool,
        pool_blocks=1 if own.pool == "attention" or own.pooled_norm else max(1, min(MOST_BLOCKS, own.depth // 3)),
        pool_every=every,
        head="linear",
        head_bias=True,
        distillation_head=False,
        dropout=0.0,
        attention_dropout=0.0,
        mlp_dropout=0.0,
        drop_path=0.0,
    )
    reasons["model.drop_path"] = "a probe that has just been fitted cannot do without branches"
    return replace(base, image_size=_size(found, wishes, base, runtime, seconds, reasons, world))


def _channels(found: Fingerprint, wishes: Wishes, own: ViTConfig, start: StartSettings, reasons: Reasons) -> int:
    wanted = wishes.channels or (found.channels if start.channels_policy != "none" else own.channels)
    if wanted != own.channels and start.channels_policy == "none":
        raise UsageError(
            f"The checkpoint was trained on pictures of {own.channels} channels, and {wanted} were asked for. Adapt it "
            "by --start.channels_policy sum, mean or tile, or leave --channels out."
        )
    if wanted != found.channels and {wanted, found.channels} != {1, 3}:
        raise UsageError(
            f"The checkpoint was trained on pictures of {own.channels} channels, and those of {found.name} have "
            f"{found.channels}. Adapt it by --start.channels_policy sum, mean or tile, or begin without it: "
            "--weights none."
        )
    same = "as the checkpoint was trained; grey and colour turn into each other"
    reasons["model.channels"] = same if wanted == own.channels else f"adapted: {start.channels_policy}"
    return wanted


def _size(
    found: Fingerprint, wishes: Wishes, base: ViTConfig, runtime: Runtime, seconds: float, reasons: Reasons, world: int
) -> tuple[int, int]:
    """As many patches as the minutes allow, at most as many as the checkpoint had where that were few."""
    if wishes.image_size is not None:
        reasons["model.image_size"] = "asked for"
        return wishes.image_size
    if min(base.grid) <= GRIDS[0]:
        reasons["model.image_size"] = "the checkpoint's own"
        return base.image_size
    sizes = [(side * base.patch[0], side * base.patch[1]) for side in GRIDS if side <= min(base.grid)]
    if not seconds:
        reasons["model.image_size"] = f"no minutes to keep to; {sizes[-1][0]} shows details"
        return sizes[-1]
    frozen = _shares(world)[-1]
    fitting = [size for size in sizes if _seconds(found, replace(base, image_size=size), runtime, frozen) <= seconds]
    chosen = fitting[-1] if fitting else sizes[0]
    listed = ", ".join(str(size[0]) for size in sizes)
    reasons["model.image_size"] = (
        f"of {listed}, what leaves {seconds / 60:g} minutes for about {PASSES} passes over {found.count:,} pictures"
    )
    return chosen


def _seconds(found: Fingerprint, model: ViTConfig, runtime: Runtime, frozen: float) -> float:
    """A guess for features and passes; a block that learns costs three times its forward pass."""
    return found.count * forward_operations(model) * (2.2 + PASSES * (3 - 2 * frozen)) / _speed(runtime)


def _speed(runtime: Runtime) -> float:
    kind = runtime.device.split(":")[0]
    return SPEED[kind] * FORMAT_SPEED[runtime.number_format] * (runtime.threads / 2 if kind == "cpu" else 1)


def _start(
    start: StartSettings,
    said: dict[str, str],
    found: Fingerprint,
    model: ViTConfig,
    runtime: Runtime,
    seconds: float,
    reasons: Reasons,
    world: int,
) -> StartSettings:
    """How to go on from the probe: all blocks where the minutes allow it, else the upper ones."""
    reasons["start.weights"] = "see --weights"
    reasons["start.digest"] = "the hash of the tensors that were read, so that no other file is followed"
    reasons["start.channels_policy"] = "the checkpoint's number of channels is kept"
    reasons |= unread(start.method)
    chosen = start
    if "start.layer_decay" not in said and chosen.method == "full":
        chosen = replace(chosen, layer_decay=0.75 if model.depth >= 12 else 0.9)
        reasons["start.layer_decay"] = "the lower a block, the more general what it knows"
    if "start.layer_decay" not in said and chosen.method == "lora":
        reasons["start.layer_decay"] = "adapters of all blocks learn at one rate"
    if "start.frozen_blocks" not in said and chosen.method == "full":
        shares = _shares(world)
        fits = [share for share in shares if not seconds or _seconds(found, model, runtime, share) <= seconds]
        share = fits[0] if fits else shares[-1]
        chosen = replace(chosen, frozen_blocks=int(share * model.depth))
        why = "the minutes allow to tune all" if not share else "the more passes over the upper ones"
        why = why if seconds else "no minutes to keep to: all are tuned"
        why = why if fits or world == 1 else f"{world} processes cannot leave blocks as they are yet: all are tuned"
        reasons["start.frozen_blocks"] = why
    if "start.method" not in said:
        kept = "the frozen probe stays if tuning does not beat it, and adapters won by 0.1 points at most"
        reasons["start.method"] = f"{found.count:,} pictures; {kept}"
    return chosen


def unread(method: Method) -> Reasons:
    """Why the fields of the start that a method makes no use of are as they are."""
    why = {"probe": "the probe tunes nothing", "full": "no adapters", "lora": "adapters leave all blocks as they are"}
    return {f"start.{name}": why[method] for name, methods in ONLY_FOR.items() if method not in methods}


def _shares(world: int) -> tuple[float, ...]:
    """Those of `SHARES` that so many processes can do."""
    return SHARES if world == 1 else SHARES[:1]


def _image(found: Fingerprint, model: ViTConfig, checkpoint: Checkpoint, reasons: Reasons) -> ImageSpec:
    """The checkpoint's colours and resize, the data's value range, and the whole picture."""
    fresh = ImageSpec()
    reasons |= {f"image.{name}": "as the checkpoint was trained" for name in ("mean", "std", "interpolation")}
    reasons["image.fit"] = "whole pictures: what the published crop cuts off may decide"
    why = {"image.low": found.range_reason, "image.high": found.range_reason, "image.window": found.window_reason}
    reasons |= {name: reason for name, reason in why.items() if reason}
    return replace(
        resize_spec(checkpoint.spec, model),
        low=found.low,
        high=found.high,
        window=found.window,
        page=fresh.page,
        max_pixels=fresh.max_pixels,
        fit="squash",
        crop_fraction=1.0,
    )


def _recipe(found: Fingerprint, model: ViTConfig, wishes: Wishes, start: StartSettings, reasons: Reasons) -> Recipe:
    """AdamW with a cosine; the rate falls with the width, as that of the checkpoint's own training did."""
    mirror = found.name not in MIRROR_CHANGES_MEANING
    batch = min(32 if found.count < FEW_PICTURES else 64, max(8, 2 ** round(math.log2(max(found.count, 1) / 4))))
    reasons["recipe.batch"] = f"{found.count:,} training pictures"
    reasons["recipe.flip"] = "mirrored pictures mean the same" if mirror else "a mirrored digit is another sign"
    class_weights, why = imbalance.weights_for(found.task, found.ratio)
    reasons |= why
    rate = min(RATE_AT_384 * max(384 / model.width, 1.0) ** STEEPNESS, HIGHEST_RATE)
    rate *= 10 if start.method == "lora" else 1
    reasons["recipe.rate"] = "adapters begin at zero" if start.method == "lora" else f"blocks of width {model.width}"
    reasons["recipe.optimizer"] = "what trained weights are usually tuned with"
    reasons["recipe.warmup"] = "a tenth, until the moments are known: a fitted head is soon spoilt"
    reasons["recipe.clip"] = "one odd batch must not spoil a fitted head"
    reasons["recipe.decay"] = "usual in tuning; nothing at the last step"
    reasons["recipe.keep_until"] = "few steps: all of them see whole pictures"
    reasons["recipe.crop_padding"] = "a head that was probed on unmoved patches loses by moved ones"
    recipe = Recipe(
        batch=batch,
        optimizer="adamw",
        rate=rate,
        warmup=0.1,
        decay="cosine",
        clip=1.0,
        class_weights=class_weights,
        flip=mirror,
        mirror=mirror,
    )
    return without_steps(recipe, reasons) if start.method == "probe" else recipe


def without_steps(recipe: Recipe, reasons: Reasons) -> Recipe:
    """The recipe of a training that ends with the probe."""
    reasons["recipe.steps"] = "the probe is the end"
    if recipe.class_weights != "none":
        reasons["recipe.class_weights"] = "the probe weighs all pictures alike"
    return replace(recipe, steps=0, class_weights="none")
