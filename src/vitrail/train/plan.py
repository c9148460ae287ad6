"""The plan: every setting of a run, resolved, as one value that `plan.toml` holds and `--plan` reads back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

from .. import config
from ..data.settings import DataSettings
from ..errors import UsageError
from ..evaluate.thresholds import DecisionSettings
from ..evaluate.tta import TtaViews
from ..model.config import ViTConfig, describe_oversize
from ..spec import Grid, ImageSpec

# -- Section [recipe]: budget, optimiser, schedule, patch dropout, augmentation


class ProgressiveStage(NamedTuple):
    """A stage of a training with constant image size and patch dropout, as fractions of its steps."""

    begin: float
    fraction: float


class StepSegment(NamedTuple):
    """Steps for which the number of all steps was the same."""

    start: int
    """The first of them."""
    progress: float
    """Progress of the training at its start."""
    steps: int
    """All steps of the training, as planned then."""


StepsHistory = tuple[tuple[int, int], ...]
Replanned = TypeVar("Replanned", "Recipe", "PretrainSettings", "DistillSettings")
ClassWeights = Literal["none", "root", "balanced"]

MAX_CROP_PADDING = 65_536
"""Pixels of the largest random shift."""
DEFAULT_EVALUATIONS = 10
"""Evaluations on validation images in a run, unless the recipe sets their interval."""
MAX_VALIDATION_IMAGES = 1000
"""Most validation images of one of them; the evaluation at the end uses all."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training. Rates are per step, fractions are of all steps.

    Where the number of steps was replanned on the way, a step's progress goes on from where it was, in a straight line
    to 1 at the new last step. Learning rate, patch dropout, image sizes and evaluations depend on progress alone.
    """

    steps: int = 1000
    """Optimiser steps. 0 only for a linear probe of a frozen checkpoint."""
    steps_history: StepsHistory = ()
    """Step counts replanned on the way, where minutes were asked for: [step, steps] says that after this step the run
    was planned to have so many in all. Written by the training; with it the run can be repeated exactly."""
    batch_size: int = 128
    """Pictures per step, over all processes."""
    grad_accum_steps: int = 1
    """Micro-batches per step: the batch is split into so many parts, which saves memory and gives the same result."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: Muon for the matrices of the blocks, AdamW for everything else; adamw: AdamW for everything."""
    muon_lr: float = 0.02
    """Peak learning rate of Muon."""
    muon_momentum: float = 0.95
    """Momentum of Muon."""
    lr: float = 2e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.05
    """Decoupled weight decay of matrices, per unit of learning rate; norms, biases, position tables and the class token
    have none."""
    warmup: float = 0.05
    """Fraction of the steps in which the learning rate rises linearly from 0."""
    lr_schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Shape of the learning rate's decay to 0 after the warm-up."""
    grad_clip_norm: float = 0.0
    """Largest norm of the gradient; a longer one is clipped. 0 turns clipping off."""
    skip_spikes: bool = False
    """Skip a step whose loss lies six standard deviations above the last 128; at most one step in a hundred."""
    label_smoothing: float = 0.0
    """Label smoothing (Szegedy et al. 2016)."""
    class_weights: ClassWeights = "none"
    """Weight of a picture in the classification loss: balanced: 1 / pictures of its class; root: its square root."""
    max_pos_weight: float = 0.0
    """Largest weight of a positive in the multilabel loss, where it is negatives / positives of its label; 0 turns the
    weights off."""
    asl_gamma_neg: float = 0.0
    """Asymmetric loss for multilabel (Ridnik et al. 2021): focusing exponent of negatives; 0 turns it off."""
    asl_gamma_pos: float = 0.0
    """Asymmetric loss for multilabel: focusing exponent of positives; 0 turns it off."""
    asl_margin: float = 0.0
    """Asymmetric loss for multilabel: negatives with a probability below this have no loss."""
    huber_delta: float = 0.0
    """Huber loss threshold for regression, in standard deviations of the target; 0 is the squared error."""
    dice_weight: float = 0.0
    """Weight of the Dice loss of masks, beside the cross-entropy of their pixels."""
    custom_loss: str = ""
    """Name of the function passed as loss= in Python, which replaces the loss of the task."""
    ema_decay: float = 0.0
    """Decay per step of an exponential moving average of the weights, which is then evaluated; 0 keeps none."""
    patch_keep_rate: float = 1.0
    """Patch dropout: fraction of the patches that the model sees in the early steps."""
    patch_keep_until: float = 0.0
    """Fraction of the steps with patch dropout; afterwards the model sees all patches."""
    progressive_size: float = 1.0
    """Progressive resizing: height and width of the pictures in the early steps, as a fraction of the model's, rounded
    to whole patches."""
    progressive_until: float = 0.0
    """Fraction of the steps with smaller pictures; afterwards they have the model's size."""
    crop_padding: int = 0
    """Largest random shift in pixels, up, down, left and right."""
    flip: bool = False
    """Random horizontal flips (left to right), with probability 0.5."""
    flip_vertical: bool = False
    """Random vertical flips (top to bottom), with probability 0.5."""
    transpose: bool = False
    """Random transposition, with probability 0.5; with both flips it gives all quarter turns. Square pictures only."""
    rotate: float = 0.0
    """Largest random rotation in degrees, in both directions."""
    scale: float = 0.0
    """Largest random change of height and of width, as a fraction, independent of each other."""
    translate: float = 0.0
    """Largest random shift as a fraction of height and width, by fractions of a pixel too."""
    crop_scale: float = 0.0
    """Random resized crops: smallest area of the crop as a fraction of the picture; 0 turns them off."""
    auto_augment: Literal["none", "rand", "trivial", "three"] = "none"
    """rand: RandAugment; trivial: TrivialAugment (wide); three: 3-Augment (grey, solarised or blurred, then jitter)."""
    randaugment_num_ops: int = 2
    """Operations of RandAugment per picture."""
    randaugment_magnitude: float = 9.0
    """Magnitude of RandAugment's operations, 0..10 as in the paper."""
    random_erasing: float = 0.0
    """Probability of random erasing: a rectangle is filled with noise."""
    mixup: float = 0.0
    """Mixup (Zhang et al. 2018): weights drawn from Beta(mixup, mixup); 0 turns it off."""
    cutmix: float = 0.0
    """CutMix (Yun et al. 2019): area drawn from Beta(cutmix, cutmix); 0 turns it off."""
    custom_augment: str = ""
    """Name of the function passed as augment= in Python; applied after all other augmentation, before mixing."""
    repeated_augmentation: int = 1
    """Repeated augmentation: copies of each picture in a batch, each augmented differently."""
    tta_flip: bool = False
    """Test-time augmentation: average the predictions for a picture and its mirror image."""
    tta_shift: int = 0
    """Test-time augmentation: average the predictions for a picture and itself shifted left and right by so many
    pixels; 0 shifts nothing."""
    tta_shift_vertical: bool = False
    """Test-time augmentation: average over the picture shifted up and down by tta_shift pixels too."""
    extended_at: int = 0
    """Step at which --extend added steps to the run; 0 if it never did."""
    extended_lr_factor: float = 0.0
    """Learning rate before that step as a fraction of its peak; it rises again from there."""
    evaluate_every: int = 0
    """Steps between evaluations on validation pictures; 0 gives ten evaluations."""
    save_every: int = 0
    """Steps between checkpoints; 0 saves about once a minute."""

    def __post_init__(self) -> None:
        values = vars(self)
        at_least = {"steps": 0, "batch_size": 1, "grad_accum_steps": 1, "evaluate_every": 0, "save_every": 0}
        at_least |= {"crop_padding": 0, "tta_shift": 0, "randaugment_num_ops": 1, "repeated_augmentation": 1}
        for name, least in at_least.items():
            if values[name] < least:
                raise UsageError(f"recipe.{name} must be at least {least}. Got {values[name]}.")
        for name in ("muon_lr", "lr"):
            if not 0 < values[name] < math.inf:
                raise UsageError(f"recipe.{name} must be above 0: with {values[name]} nothing would be learnt.")
        if not 0 <= self.grad_clip_norm < math.inf:
            raise UsageError(f"recipe.grad_clip_norm must be a largest norm, or 0 for none. Got {self.grad_clip_norm}.")
        for name in (
            "warmup",
            "patch_keep_until",
            "ema_decay",
            "muon_momentum",
            "label_smoothing",
            "progressive_until",
        ):
            if not 0 <= values[name] < 1:
                raise UsageError(f"recipe.{name} must lie in 0 <= fraction < 1. Got {values[name]}.")
        for name in ("patch_keep_rate", "progressive_size"):
            if not 0 < values[name] <= 1:
                raise UsageError(f"recipe.{name} must lie in 0 < fraction <= 1. Got {values[name]}.")
        for name in (
            "max_pos_weight",
            "huber_delta",
            "asl_gamma_neg",
            "asl_gamma_pos",
            "dice_weight",
            "mixup",
            "cutmix",
        ):
            if not 0 <= values[name] < math.inf:
                raise UsageError(f"recipe.{name} must be 0 or more. Got {values[name]}.")
        if not 0 <= self.asl_margin < 1:
            raise UsageError(f"recipe.asl_margin must lie in 0 <= probability < 1. Got {self.asl_margin}.")
        limits = {"weight_decay": 1, "crop_scale": 1, "random_erasing": 1, "rotate": 180, "scale": 1, "translate": 1}
        limits["crop_padding"] = MAX_CROP_PADDING
        for name, limit in limits.items():
            if not 0 <= values[name] <= limit:
                raise UsageError(f"recipe.{name} must lie in 0..{limit}. Got {values[name]}.")
        if not 0 <= self.randaugment_magnitude <= 10:
            raise UsageError(
                f"recipe.randaugment_magnitude must lie in 0..10. Got {self.randaugment_magnitude}. "
                "torchvision counts to 30: a third of its number means the same."
            )
        if self.batch_size % self.repeated_augmentation:
            raise UsageError(
                "recipe.batch_size must be a multiple of recipe.repeated_augmentation, so that every picture is in its "
                f"batch as often. Got batch_size={self.batch_size}, repeated_augmentation={self.repeated_augmentation}."
            )
        if self.tta_shift_vertical and not self.tta_shift:
            raise UsageError("recipe.tta_shift_vertical needs a recipe.tta_shift above 0. Set it to false, or shift.")
        check_steps_history("recipe", self.steps, self.steps_history)

    @property
    def views(self) -> TtaViews:
        """Test-time augmentation."""
        return TtaViews(self.tta_flip, self.tta_shift, self.tta_shift_vertical)

    @property
    def is_asymmetric(self) -> bool:
        """Whether the multilabel loss is the asymmetric loss."""
        return bool(self.asl_gamma_neg or self.asl_gamma_pos or self.asl_margin)

    def progress(self, step: int) -> float:
        """The part of the training that is done after so many steps, 0..1; it never falls."""
        segment = self.segment_at(step)
        return segment.progress + (1 - segment.progress) * (step - segment.start) / (segment.steps - segment.start)

    def step_at(self, progress: float) -> int:
        """The first step at or after a progress below 1."""
        step = 0.0
        for segment in list_segments(self.steps, self.steps_history):
            if segment.start and step <= segment.start:
                break
            share = (progress - segment.progress) / (1 - segment.progress)
            step = segment.start + share * (segment.steps - segment.start)
        return math.ceil(step)

    def segment_at(self, step: int) -> StepSegment:
        """The last segment that begins at or before a step."""
        segments = list_segments(self.steps, self.steps_history)
        return next(segment for segment in reversed(segments) if segment.start <= step or not segment.start)

    def lr_factor(self, step: int) -> float:
        """The learning rate at a step (from 0) as a fraction of its peak: a linear rise, then the decay to 0.

        After `--extend` it rises again, from its last value to that of a run planned with the new number of steps.
        """
        left = 1 - self.progress(step)
        fall = {"linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "constant": 1.0}[self.lr_schedule]
        if step < self.extended_at:
            return fall  # only where a damaged checkpoint forces a run to repeat what was done under the old plan
        return self.extended_lr_factor + self._warmup_factor(step) * (fall - self.extended_lr_factor)

    def _warmup_factor(self, step: int) -> float:
        """The linear rise 0..1 at a step; a replanned number of steps changes its slope from there on."""
        (_, steps), *replanned = self.steps_history or ((0, self.steps),)
        start, progress, risen = self.extended_at, 0.0, 1.0  # `risen` steps at the present slope lie before `start`
        length = self.warmup * (steps - start)
        for next_start, next_steps in replanned:
            if next_start > step or next_start - start >= length:
                break
            factor = (next_start - start + risen) / (length + risen)
            progress += (1 - progress) * (next_start - start) / (steps - start)
            start, steps = next_start, next_steps
            length = (self.warmup - progress) / (1 - progress) * (steps - start)
            risen = length * factor / (1 - factor)
        return min(1.0, (step - start + risen) / (length + risen))

    def without_extension(self) -> Recipe:
        """This recipe with the same steps, as if they had been planned from the beginning."""
        if not self.extended_at:
            return dataclasses.replace(self, extended_lr_factor=0.0)
        return dataclasses.replace(self, extended_at=0, extended_lr_factor=0.0, steps_history=())

    def evaluates_at(self, step: int) -> bool:
        """Whether to evaluate on validation images after a step (from 1); always after the last."""
        if self.evaluate_every:
            return step == self.steps or step % self.evaluate_every == 0
        tenth, last_tenth = (int(DEFAULT_EVALUATIONS * self.progress(each) + 1e-9) for each in (step, step - 1))
        return step == self.steps or tenth > last_tenth

    @property
    def num_evaluations(self) -> int:
        """Number of evaluations on validation images."""
        return -(-self.steps // self.evaluate_every) if self.evaluate_every else min(DEFAULT_EVALUATIONS, self.steps)

    def patches_at(self, step: int, patches: int) -> int:
        """Patches of an image that the model sees at a step, of `patches` in all."""
        early = step < self.step_at(self.patch_keep_until)
        return max(1, round(self.patch_keep_rate * patches)) if early else patches

    def grid_at(self, step: int, grid: Grid) -> Grid:
        """The patch grid of a step's images, given that of the model."""
        if step >= self.step_at(self.progressive_until) or self.progressive_size == 1:
            return grid
        return Grid(*(max(1, round(self.progressive_size * side)) for side in grid))

    def tokens_at(self, step: int, grid: Grid) -> int:
        """Patch tokens of an image at a step, after progressive resizing and patch dropout."""
        return self.patches_at(step, self.grid_at(step, grid).patches)

    def progressive_stages(self) -> list[ProgressiveStage]:
        """The stages of the training, each with one image size and one patch keep rate."""
        turns = {
            self.patch_keep_until if self.patch_keep_rate < 1 else 0.0,
            self.progressive_until if self.progressive_size < 1 else 0.0,
        }
        ends = [*sorted(turns - {0.0}), 1.0]
        return [ProgressiveStage(begin, end - begin) for begin, end in zip([0.0, *ends], ends, strict=False)]

    def stage_tokens(self, grid: Grid) -> list[int]:
        """Patch tokens of an image in each of the `progressive_stages`."""
        return [self.tokens_at(self.step_at(stage.begin), grid) for stage in self.progressive_stages()]

    def epochs(self, count: int) -> float:
        """Epochs over `count` images in all steps; repeated augmentation counts once."""
        return self.steps * min(self.batch_size // self.repeated_augmentation, count) / count


@lru_cache(maxsize=16)
def list_segments(steps: int, history: StepsHistory) -> tuple[StepSegment, ...]:
    """The segments of a training, between which the number of its steps was replanned."""
    (_, first_steps), *replanned = history or ((0, steps),)
    segments = [StepSegment(0, 0.0, first_steps)]
    for start, total in replanned:
        last = segments[-1]
        done = (1 - last.progress) * (start - last.start) / (last.steps - last.start)
        segments.append(StepSegment(start, last.progress + done, total))
    return tuple(segments)


def replan_steps(section: Replanned, step: int, steps: int) -> Replanned:
    """The section of a plan after a decision, taken when `step` steps were done, to make `steps` in all."""
    history: StepsHistory = section.steps_history or ((0, section.steps),)
    return dataclasses.replace(section, steps=steps, steps_history=(*history, (step, steps)) if step else ())


def check_steps_history(section: str, steps: int, history: StepsHistory) -> None:
    """Check that step counts could have been replanned in this order, and that the last is `steps`.

    Raises:
        UsageError: they could not; the message says how to do without them.
    """
    if not history:
        return
    starts = [start for start, _ in history]
    in_order = starts[0] == 0 and all(earlier < later for earlier, later in pairwise(starts))
    reached = all(after < planned for (_, planned), after in zip(history, starts[1:], strict=False))
    if not in_order or not reached or history[-1][0] >= history[-1][1] or history[-1][1] != steps:
        raise UsageError(
            f"{section}.steps_history is written by a training and ends with the number of its steps. Got "
            f"{[list(entry) for entry in history]} and {section}.steps={steps}. Leave it out to plan the steps anew."
        )


# -- Section [finetune]: random initial weights, or a checkpoint that is probed and then fine-tuned

FinetuneMethod = Literal["probe", "full", "lora"]
ChannelsPolicy = Literal["none", "sum", "mean", "tile"]
METHOD_FIELDS: dict[str, tuple[FinetuneMethod, ...]] = {
    "freeze_blocks": ("full",),
    "layer_decay": ("full", "lora"),
    "lora_rank": ("lora",),
    "lora_mlp": ("lora",),
    "wise_ft_alphas": ("full", "lora"),
}
"""Fields that only apply to some methods."""

MAX_COMPARED_IMAGES = 5000
"""Validation images on which the start, the tuned weights and their means are compared; of more images, the best of
them and the start are compared on all."""


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """The initial weights. Without a checkpoint the other fields have no effect and must keep their defaults."""

    weights: str = "none"
    """A checkpoint: a weights file, folder, bundle, run or hf:OWNER/NAME; none begins from random values."""
    weights_sha256: str = ""
    """First digits of the SHA-256 of the checkpoint's tensors; another checkpoint is refused. Empty accepts any."""
    channels_policy: ChannelsPolicy = "none"
    """How a checkpoint with another number of channels is adapted: sum, mean or tile; none refuses it."""
    method: FinetuneMethod = "full"
    """What follows the linear probe, which becomes the head: probe: nothing; full: fine-tuning of the blocks above
    freeze_blocks; lora: LoRA adapters, merged into the matrices at the end."""
    freeze_blocks: int = 0
    """Number of first blocks that stay frozen, with the embeddings; 0 fine-tunes everything."""
    layer_decay: float = 1.0
    """Layer-wise learning rate decay: each block has this fraction of the rate of the block above it."""
    lora_rank: int = 8
    """Rank of the LoRA adapters."""
    lora_mlp: bool = False
    """LoRA adapters on the matrices of the MLPs too."""
    wise_ft_alphas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    """WiSE-FT (Wortsman et al. 2022): weights of the fine-tuned model in its mean with the start; the best on the
    validation pictures is kept. 0, the start itself, is always tried."""
    head_fraction: float = 1.0
    """Of masks: the fraction of the training and validation pictures, drawn by chance, that the head is fitted to."""
    head_patches: int = 0
    """Of masks: the most patches of training pictures that the head is fitted to, drawn by chance; 0 takes as many as
    the memory has room for. The training writes it where its minutes leave too little time for all."""

    def __post_init__(self) -> None:
        if not self.weights:
            raise UsageError('finetune.weights must name a checkpoint or be "none". Got nothing.')
        if self.freeze_blocks < 0:
            raise UsageError(f"finetune.freeze_blocks must be 0 or more. Got {self.freeze_blocks}.")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"finetune.layer_decay must lie in 0 < fraction <= 1. Got {self.layer_decay}.")
        if not 0 < self.head_fraction <= 1:
            raise UsageError(f"finetune.head_fraction must lie in 0 < fraction <= 1. Got {self.head_fraction}.")
        if self.head_patches < 0:
            raise UsageError(f"finetune.head_patches must be 0 or more. Got {self.head_patches}.")
        if self.lora_rank < 1:
            raise UsageError(f"finetune.lora_rank must be at least 1. Got {self.lora_rank}.")
        if not self.wise_ft_alphas or not all(0 < alpha <= 1 for alpha in self.wise_ft_alphas):
            raise UsageError(
                "finetune.wise_ft_alphas must list weights of the tuned model, one or more in 0 < alpha <= 1. "
                f"Got {self.wise_ft_alphas or 'none, with which the training would be for nothing'}."
            )
        if self.weights == "none" and any(vars(self)[one.name] != one.default for one in fields(self)):
            raise UsageError(
                "Fields of [finetune] only have a meaning with a checkpoint, and finetune.weights is none. "
                "Give one by --weights, or leave the fields out."
            )
        for one in fields(self):
            methods = METHOD_FIELDS.get(one.name, (self.method,))
            if self.method not in methods and getattr(self, one.name) != one.default:
                raise UsageError(
                    f"finetune.{one.name} has no meaning with finetune.method {self.method}. "
                    f"Leave it out, or give --finetune.method {' or '.join(methods)}."
                )

    @property
    def from_checkpoint(self) -> bool:
        """Whether there is a checkpoint."""
        return self.weights != "none"


# -- Section [pretrain]: masked autoencoding without labels

DECODER_HEAD_WIDTH = 32
"""Width of each attention head of the decoder."""


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """Masked autoencoding (He et al. 2021) before the training; off while `budget_fraction` and `steps` are 0."""

    budget_fraction: float = 0.0
    """Fraction of the minutes (without minutes: of all steps) for masked autoencoding; 0 does none."""
    steps: int = 0
    """Optimiser steps of masked autoencoding; 0 derives them from budget_fraction."""
    steps_history: StepsHistory = ()
    """As recipe.steps_history, of these steps."""
    extra_images: str = ""
    """A folder, or any SOURCE, of further pictures for pre-training; labels are not needed and not read."""
    batch_size: int = 0
    """Pictures per step; 0 chooses by the number of pictures."""
    mask_ratio: float = 0.75
    """Fraction of the patches that are masked and reconstructed by the decoder."""
    decoder_depth: int = 2
    """Blocks of the decoder, which is discarded after pre-training."""
    decoder_width: int = 64
    """Token width of the decoder; a multiple of 32."""
    norm_pix_loss: bool = True
    """Reconstruct each patch normalised to mean 0 and deviation 1, instead of its pixel values."""
    lr_scale: float = 1.0
    """Learning rates as a multiple of those of [recipe]."""
    warmup: float = 0.05
    """Fraction of the pre-training steps in which the learning rate rises from 0; then it decays as a cosine."""
    crop_scale: float = 0.5
    """Random resized crops: smallest area of the crop as a fraction of the picture; 0 turns them off."""

    def __post_init__(self) -> None:
        if not 0 <= self.budget_fraction < 1:
            raise UsageError(
                "pretrain.budget_fraction must lie in 0 <= fraction < 1: the rest is the training. "
                f"Got {self.budget_fraction}."
            )
        if self.steps < 0 or self.batch_size < 0:
            raise UsageError(
                f"pretrain.steps and pretrain.batch_size must be 0 or more. Got {self.steps} and {self.batch_size}."
            )
        if not 0 < self.mask_ratio < 1:
            raise UsageError(f"pretrain.mask_ratio must lie in 0 < fraction < 1. Got {self.mask_ratio}.")
        if not 0 <= self.warmup < 1:
            raise UsageError(f"pretrain.warmup must lie in 0 <= fraction < 1. Got {self.warmup}.")
        if not 0 <= self.crop_scale <= 1:
            raise UsageError(f"pretrain.crop_scale must lie in 0..1. Got {self.crop_scale}.")
        if not 0 < self.lr_scale < math.inf:
            raise UsageError(f"pretrain.lr_scale must be above 0: with {self.lr_scale} nothing would be learnt.")
        check_steps_history("pretrain", self.steps, self.steps_history)
        if self.decoder_depth < 1 or self.decoder_width < DECODER_HEAD_WIDTH or self.decoder_width % DECODER_HEAD_WIDTH:
            raise UsageError(
                f"The decoder needs at least one block and a width that is a multiple of {DECODER_HEAD_WIDTH}. "
                f"Got pretrain.decoder_depth={self.decoder_depth}, pretrain.decoder_width={self.decoder_width}."
            )

    @property
    def is_enabled(self) -> bool:
        """Whether the run has a pre-training phase."""
        return self.budget_fraction > 0 or self.steps > 0

    def num_visible_patches(self, patches: int) -> int:
        """Patches of an image that the encoder sees: at least one, and fewer than all."""
        return min(max(1, round((1 - self.mask_ratio) * patches)), patches - 1)


# -- Section [distill]: the teacher and its part of the loss

CNN_TEACHER = "cnn"


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """Distillation (Hinton et al. 2015). Without a teacher the other fields must keep their defaults."""

    teacher: str = ""
    """The teacher: a run, a bundle or a weights file with the same outputs; cnn: a small CNN that is trained first on
    the same pictures; with kind features any ViT that can be loaded. Empty turns distillation off."""
    kind: Literal["logits", "features"] = "logits"
    """logits: the teacher's predictions are in the loss; features: a first stage trains the model to reproduce the
    teacher's patch features."""
    alpha: float = 0.5
    """Weight of the distillation loss; the loss of the labels has the rest."""
    temperature: float = 2.0
    """Softmax temperature of both predictions in the distillation loss."""
    budget_fraction: float = 0.0
    """Fraction of the minutes (without minutes: of all steps) for the first stage: training the CNN, or feature
    distillation."""
    steps: int = 0
    """Steps of the first stage; 0 derives them from budget_fraction."""
    steps_history: StepsHistory = ()
    """As recipe.steps_history, of these steps."""
    cnn_width: int = 24
    """Channels of the CNN's first stage; the second and third have two and four times as many."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise UsageError(f"distill.alpha must lie in 0 < fraction <= 1. Got {self.alpha}.")
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"distill.temperature must be above 0. Got {self.temperature}.")
        if not 0 <= self.budget_fraction < 1:
            raise UsageError(
                "distill.budget_fraction must lie in 0 <= fraction < 1: the rest is the training. "
                f"Got {self.budget_fraction}."
            )
        if self.steps < 0 or self.cnn_width < 1:
            raise UsageError(
                "distill.steps must be 0 or more and distill.cnn_width at least 1. "
                f"Got {self.steps} and {self.cnn_width}."
            )
        check_steps_history("distill", self.steps, self.steps_history)

    @property
    def is_enabled(self) -> bool:
        """Whether there is a teacher."""
        return bool(self.teacher)

    @property
    def has_first_stage(self) -> bool:
        """Whether a first stage comes before the training."""
        return self.is_enabled and (self.teacher == CNN_TEACHER or self.kind == "features")


# -- Section [track]: experiment trackers

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
INSTALL_COMMANDS = {"tensorboard": "pip install 'vitrail[track]'"}
"""Install commands of trackers whose package has another name."""


@dataclass(frozen=True, kw_only=True)
class TrackSettings:
    """Experiment trackers, which get a copy of the metrics; a run's own files stay the same."""

    report_to: tuple[TrackerName, ...] = ()
    """Trackers beside metrics.jsonl: tensorboard (a folder in the run), wandb, mlflow, trackio; several with commas."""
    project: str = ""
    """Project of wandb and trackio, or experiment of mlflow; empty takes WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME, else
    vitrail."""

    def check(self) -> None:
        """Refuse a tracker that is not installed.

        Raises:
            UsageError: with the command that installs it.
        """
        for name in self.report_to:
            if find_spec(name) is None:
                command = INSTALL_COMMANDS.get(name, f"pip install {name}")
                raise UsageError(
                    f"track.report_to {name} needs the package {name}, which is not here. Install it, {command}, or "
                    "leave it out: --track.report_to ''."
                )


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """Device, precision and threads, as decided when the plan was made."""

    device: str = "cpu"
    """Torch device: cpu, cuda, cuda:1 or mps."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of matrix products; weights and losses stay in float32. float16 is for GPUs without bfloat16."""
    threads: int = 0
    """CPU threads of torch; 0 takes OMP_NUM_THREADS or every core. Bit-identical results need the same number."""
    num_workers: int = 2
    """Threads that decode pictures while the model trains; 0 decodes in the main thread. Batches stay the same."""
    compile: bool = False
    """Compile the training step with torch.compile."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Distributed training: ddp replicates the model in each process, fsdp shards it; auto shards what does not fit."""
    timeout: float = 1800.0
    """Seconds that the processes of a distributed training wait for each other."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a run depends on. The same plan on the same machine gives the same weights, bit for bit."""

    model_name: str = ""
    """Name of the model's size; its architecture is in [model]."""
    seed: int = 0
    """Random seed of splits, initial values, order, augmentation and dropout."""
    minutes: float = 0.0
    """Time budget of the training, by whose clock the number of steps is replanned on the way; 0 if steps, epochs or a
    plan were given."""
    data: DataSettings = field(default_factory=DataSettings)
    image: ImageSpec = field(default_factory=ImageSpec)
    model: ViTConfig = field(default_factory=ViTConfig)
    finetune: FinetuneSettings = field(default_factory=FinetuneSettings)
    pretrain: PretrainSettings = field(default_factory=PretrainSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)
    recipe: Recipe = field(default_factory=Recipe)
    decisions: DecisionSettings = field(default_factory=DecisionSettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    track: TrackSettings = field(default_factory=TrackSettings)

    def __post_init__(self) -> None:
        if self.model.depth < 1:
            raise UsageError(f"model.depth must be at least 1 in a training. Got {self.model.depth}.")
        if oversize := describe_oversize(self.model):
            raise UsageError(f"[model]: {oversize}")


def read_track_settings(overrides: Mapping[str, str]) -> TrackSettings:
    """The section [track] of a plan with these fields, by their dotted names, before the plan is made."""
    return config.override(Plan(), {name: text for name, text in overrides.items() if name.startswith("track.")}).track


def suggest_batch_size(count: int, device: str = "cpu") -> int:
    """Default batch size for a number of training images: about a twelfth, a power of two of 16 to 128.

    On a GPU about a hundredth where that is more, up to 512: there a step of a small model takes the time of its kernel
    launches, whatever the batch (H100, EXPERIMENTS.md).
    """
    size = min(128, max(16, _power_of_two(count / 12)))
    return size if device == "cpu" else max(size, min(512, _power_of_two(count / 100)))


def _power_of_two(number: float) -> int:
    """The nearest one, from 1 on."""
    return int(2 ** round(math.log2(max(number, 1))))
