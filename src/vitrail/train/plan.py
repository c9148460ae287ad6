"""The plan: every setting of a run, resolved, as one value that `plan.toml` holds and `--plan` reads back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Literal, NamedTuple

from .. import config
from ..data.settings import DataSettings
from ..errors import UsageError
from ..evaluate.thresholds import DecisionSettings
from ..evaluate.tta import TtaViews
from ..model.config import ViTConfig
from ..spec import Grid, ImageSpec

# -- Section [recipe]: budget, optimiser, schedule, patch dropout, augmentation


class ProgressiveStage(NamedTuple):
    """A stretch of a training, as fractions of its steps."""

    begin: float
    fraction: float


ClassWeights = Literal["none", "root", "balanced"]

DEFAULT_EVALUATIONS = 10
"""In a run, unless the recipe says after how many steps."""
MAX_VALIDATION_IMAGES = 1000
"""Validation pictures in each of them, at most; all are answered at the end."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training. Rates are per step, fractions are of all steps."""

    steps: int = 1000
    """Optimiser steps; fixed before the first one, so that a run can be repeated exactly. 0 only where a frozen
    checkpoint is probed."""
    batch_size: int = 128
    """Pictures per step, of all processes together."""
    grad_accum_steps: int = 1
    """In how many parts the pictures of a step go through the model, one after another: less memory, same result."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: matrices of the blocks by Muon, everything else by AdamW; adamw: everything by AdamW."""
    muon_lr: float = 0.02
    """Muon's learning rate at its peak."""
    muon_momentum: float = 0.95
    """Muon's momentum."""
    lr: float = 2e-3
    """AdamW's learning rate at its peak."""
    weight_decay: float = 0.05
    """Decoupled decay of matrices per unit of rate; norms, biases, tables and the class token have none."""
    warmup: float = 0.05
    """Fraction of the steps in which the rate rises from 0."""
    lr_schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate falls to 0 after the warm-up."""
    grad_clip_norm: float = 0.0
    """Largest norm of all gradients together; 0 leaves them as they are."""
    skip_spikes: bool = False
    """Do not apply a step whose loss lies six deviations above the last 128; at most one step in a hundred."""
    label_smoothing: float = 0.0
    """Label smoothing."""
    class_weights: ClassWeights = "none"
    """What a picture weighs in the loss of classes: balanced: 1 / pictures of its class; root: its square root."""
    max_pos_weight: float = 0.0
    """Most that a positive weighs in the loss of labels, where it weighs its label's negatives / positives; 0 weighs
    all alike."""
    asl_gamma_neg: float = 0.0
    """How much easy negatives fade in the loss of labels: by probability ^ gamma (asymmetric loss); 0 not at all."""
    asl_gamma_pos: float = 0.0
    """How much easy positives fade in the loss of labels: by (1 - probability) ^ gamma; 0 not at all."""
    asl_margin: float = 0.0
    """Negatives with a probability below this count for nothing in the loss of labels (asymmetric loss's clip)."""
    huber_delta: float = 0.0
    """Errors beyond this many deviations count in proportion and not by their square, in numbers; 0 squares all."""
    custom_loss: str = ""
    """Name of the function that was given as loss= in Python, where it replaces the loss of the task."""
    ema_decay: float = 0.0
    """Keep and evaluate the running mean of the weights with this decay per step; 0 keeps none."""
    patch_keep_rate: float = 1.0
    """Fraction of the patches that the model sees in the early steps."""
    patch_keep_until: float = 0.0
    """Fraction of the steps in which only `keep_patches` are seen; afterwards all are."""
    progressive_size: float = 1.0
    """Sides of the pictures in the early steps, as a fraction of the model's, to whole patches."""
    progressive_until: float = 0.0
    """Fraction of the steps in which pictures have `small_size`; afterwards the model's own."""
    crop_padding: int = 0
    """Pictures are shifted by up to this many pixels each way."""
    flip: bool = False
    """Half of the pictures are mirrored left to right."""
    flip_vertical: bool = False
    """Half of the pictures are mirrored top to bottom."""
    transpose: bool = False
    """Half of the pictures have rows and columns exchanged; with both flips, every quarter turn. Square ones only."""
    rotate: float = 0.0
    """Pictures are turned by up to this many degrees each way."""
    scale: float = 0.0
    """Height and width change by up to this fraction, each by its own, larger or smaller."""
    translate: float = 0.0
    """Pictures are moved by up to this fraction of their sides each way, between pixels too."""
    crop_scale: float = 0.0
    """Smallest area of a random part of each picture that is cut out and resized, as a fraction; 0 cuts none out."""
    auto_augment: Literal["none", "rand", "trivial", "three"] = "none"
    """rand: RandAugment; trivial: TrivialAugment, wide; three: 3-Augment (grey, solarised or blurred, then jitter)."""
    randaugment_num_ops: int = 2
    """Operations that RandAugment does to each picture, one after another."""
    randaugment_magnitude: float = 9.0
    """Strength of RandAugment's operations, 0..10 as in its paper."""
    random_erasing: float = 0.0
    """Fraction of the pictures in which a random rectangle is covered with noise."""
    mixup: float = 0.0
    """Pictures show through each other, in shares drawn from Beta(mixup, mixup); 0 leaves it out."""
    cutmix: float = 0.0
    """A rectangle of another picture covers an area drawn from Beta(cutmix, cutmix); 0 leaves it out."""
    custom_augment: str = ""
    """Name of the function that was given as augment= in Python; it changes pictures after all of these but mixing."""
    repeated_augmentation: int = 1
    """How often each picture is in its batch, augmented differently each time."""
    tta_flip: bool = False
    """Answers are the mean for the picture and its mirror image."""
    tta_shift: int = 0
    """Answers are the mean for the picture and itself moved left and right by so many pixels too; 0 moves nothing."""
    extended_at: int = 0
    """Step after which --extend gave the run more steps; 0 if it never did."""
    extended_lr_factor: float = 0.0
    """The rate before that step as a fraction of its peak; from there it rises again."""
    evaluate_every: int = 0
    """Steps between evaluations on the validation pictures; 0 evaluates ten times in a run."""
    save_every: int = 0
    """Steps between checkpoints; 0 saves about once a minute."""

    def __post_init__(self) -> None:
        counts = (
            ("recipe.steps", self.steps, 0),
            ("recipe.batch_size", self.batch_size, 1),
            ("recipe.grad_accum_steps", self.grad_accum_steps, 1),
            ("recipe.evaluate_every", self.evaluate_every, 0),
            ("recipe.save_every", self.save_every, 0),
        )
        for name, count, least in counts:
            if count < least:
                raise UsageError(f"{name} must be at least {least}. Got {count}.")
        for name, rate in (("recipe.muon_lr", self.muon_lr), ("recipe.lr", self.lr)):
            if not 0 < rate < math.inf:
                raise UsageError(f"{name} must be above 0: with {rate} nothing would be learnt.")
        if not 0 <= self.grad_clip_norm < math.inf:
            raise UsageError(f"recipe.grad_clip_norm must be a largest norm, or 0 for none. Got {self.grad_clip_norm}.")
        if not 0 <= self.weight_decay <= 1:
            raise UsageError(f"recipe.weight_decay must lie in 0..1. Got {self.weight_decay}.")
        fractions = {
            "recipe.warmup": self.warmup,
            "recipe.patch_keep_until": self.patch_keep_until,
            "recipe.ema_decay": self.ema_decay,
        }
        fractions |= {"recipe.muon_momentum": self.muon_momentum, "recipe.label_smoothing": self.label_smoothing}
        fractions |= {"recipe.progressive_until": self.progressive_until}
        for name, fraction in fractions.items():
            if not 0 <= fraction < 1:
                raise UsageError(f"{name} must lie in 0 <= fraction < 1. Got {fraction}.")
        for name, part in (
            ("recipe.patch_keep_rate", self.patch_keep_rate),
            ("recipe.progressive_size", self.progressive_size),
        ):
            if not 0 < part <= 1:
                raise UsageError(f"{name} must lie in 0 < fraction <= 1. Got {part}.")
        self._check_loss()
        self._check_augmentation()

    @property
    def views(self) -> TtaViews:
        """Of each picture, which its answer is averaged over."""
        return TtaViews(self.tta_flip, self.tta_shift)

    @property
    def is_asymmetric(self) -> bool:
        """Whether labels are learnt with the asymmetric loss."""
        return bool(self.asl_gamma_neg or self.asl_gamma_pos or self.asl_margin)

    def _check_loss(self) -> None:
        bounds = {"recipe.max_pos_weight": self.max_pos_weight, "recipe.huber_delta": self.huber_delta}
        bounds |= {"recipe.asl_gamma_neg": self.asl_gamma_neg, "recipe.asl_gamma_pos": self.asl_gamma_pos}
        for name, bound in bounds.items():
            if not 0 <= bound < math.inf:
                raise UsageError(f"{name} must be 0 or more. Got {bound}.")
        if not 0 <= self.asl_margin < 1:
            raise UsageError(f"recipe.asl_margin must lie in 0 <= probability < 1. Got {self.asl_margin}.")

    def _check_augmentation(self) -> None:
        for name, fraction in (("recipe.crop_scale", self.crop_scale), ("recipe.random_erasing", self.random_erasing)):
            if not 0 <= fraction <= 1:
                raise UsageError(f"{name} must lie in 0..1. Got {fraction}.")
        for name, most, limit in (
            ("rotate", self.rotate, 180),
            ("scale", self.scale, 1),
            ("translate", self.translate, 1),
        ):
            if not 0 <= most <= limit:
                raise UsageError(f"recipe.{name} must lie in 0..{limit}. Got {most}.")
        for name, pixels in (("recipe.crop_padding", self.crop_padding), ("recipe.tta_shift", self.tta_shift)):
            if pixels < 0:
                raise UsageError(f"{name} must be at least 0. Got {pixels}.")
        if not 0 <= self.randaugment_magnitude <= 10:
            raise UsageError(
                f"recipe.randaugment_magnitude must lie in 0..10. Got {self.randaugment_magnitude}. "
                "torchvision counts to 30: a third of its number means the same."
            )
        for name, alpha in (("recipe.mixup", self.mixup), ("recipe.cutmix", self.cutmix)):
            if not 0 <= alpha < math.inf:
                raise UsageError(f"{name} must be 0 or more. Got {alpha}.")
        for name, number in (
            ("recipe.randaugment_num_ops", self.randaugment_num_ops),
            ("recipe.repeated_augmentation", self.repeated_augmentation),
        ):
            if number < 1:
                raise UsageError(f"{name} must be at least 1. Got {number}.")
        if self.batch_size % self.repeated_augmentation:
            raise UsageError(
                f"recipe.batch_size must be a multiple of recipe.repeated_augmentation, so that every picture is in "
                f"its batch as often. "
                f"Got batch_size={self.batch_size}, repeated_augmentation={self.repeated_augmentation}."
            )

    def lr_factor(self, step: int) -> float:
        """The learning rate at a step (from 0) as a fraction of its peak: a linear rise, then the decay to 0.

        After `--extend` it rises again, from where it was to where a run planned for so long would now be.
        """
        risen = min(1.0, (step - self.extended_at + 1) / (self.warmup * (self.steps - self.extended_at) + 1))
        left = 1 - step / self.steps
        fall = {"linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "constant": 1.0}[self.lr_schedule]
        if step < self.extended_at:
            return fall  # only where a damaged checkpoint forces a run to repeat what was done under the old plan
        return self.extended_lr_factor + risen * (fall - self.extended_lr_factor)

    def without_extension(self) -> Recipe:
        """This recipe for a run from its first step: as many steps, with one rise of the rate and one fall."""
        return dataclasses.replace(self, extended_at=0, extended_lr_factor=0.0)

    def evaluates_at(self, step: int) -> bool:
        """Whether the validation pictures are looked at after a step (from 1), the last one always."""
        return step == self.steps or step % self._evaluation_interval == 0

    @property
    def num_evaluations(self) -> int:
        """How often the validation pictures are looked at in all."""
        return -(-self.steps // self._evaluation_interval)

    @property
    def _evaluation_interval(self) -> int:
        return self.evaluate_every or max(1, self.steps // DEFAULT_EVALUATIONS)

    def patches_at(self, step: int, patches: int) -> int:
        """How many of a picture's patches the model sees at a step."""
        early = step < self.patch_keep_until * self.steps
        return max(1, round(self.patch_keep_rate * patches)) if early else patches

    def grid_at(self, step: int, grid: Grid) -> Grid:
        """Rows and columns of patches that the pictures of a step have, given those of the model."""
        if step >= self.progressive_until * self.steps or self.progressive_size == 1:
            return grid
        return Grid(*(max(1, round(self.progressive_size * side)) for side in grid))

    def tokens_at(self, step: int, grid: Grid) -> int:
        """How many patches of a picture the model sees at a step: what the step costs follows them."""
        return self.patches_at(step, self.grid_at(step, grid).patches)

    def progressive_stages(self) -> list[ProgressiveStage]:
        """The stretches of the training in which pictures have one size and one share of their patches."""
        turns = {
            self.patch_keep_until if self.patch_keep_rate < 1 else 0.0,
            self.progressive_until if self.progressive_size < 1 else 0.0,
        }
        ends = [*sorted(turns - {0.0}), 1.0]
        return [ProgressiveStage(begin, end - begin) for begin, end in zip([0.0, *ends], ends, strict=False)]

    def epochs(self, count: int) -> float:
        """How often each of `count` pictures is shown in all steps, its repeats in a batch counted once."""
        return self.steps * min(self.batch_size // self.repeated_augmentation, count) / count


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
"""Fields that mean nothing with another method."""

MAX_COMPARED_IMAGES = 5000
"""Validation pictures on which the start, the tuned weights and their means are compared; where there are more, the
best of them and the start are compared on all."""


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """What the weights are at the first step. Without a checkpoint the other fields have no use and must stay."""

    weights: str = "none"
    """A weights file, folder, bundle, run or hf:OWNER/NAME; none begins from random values."""
    weights_sha256: str = ""
    """Beginning of the SHA-256 of its tensors as they were read, so that a plan never follows another file; empty for
    any."""
    channels_policy: ChannelsPolicy = "none"
    """How a checkpoint of another number of channels is adapted: sum, mean or tile; none refuses it."""
    method: FinetuneMethod = "full"
    """After the linear probe, which becomes the head: probe trains no more; full tunes the blocks above
    `frozen_blocks`; lora tunes adapters beside the matrices, which then become part of them."""
    freeze_blocks: int = 0
    """So many of the first blocks, and the embeddings below them, stay as they are; 0 tunes everything."""
    layer_decay: float = 1.0
    """Every block learns at this fraction of the rate of the block above it."""
    lora_rank: int = 8
    """Rank of each adapter."""
    lora_mlp: bool = False
    """Adapters on the matrices of the MLPs too."""
    wise_ft_alphas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    """Shares of the tuned weights in the means with the start that are tried on the validation pictures; the start
    itself, 0, always is."""

    def __post_init__(self) -> None:
        if not self.weights:
            raise UsageError('finetune.weights must name a checkpoint or be "none". Got nothing.')
        if self.freeze_blocks < 0:
            raise UsageError(f"finetune.freeze_blocks must be 0 or more. Got {self.freeze_blocks}.")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"finetune.layer_decay must lie in 0 < fraction <= 1. Got {self.layer_decay}.")
        if self.lora_rank < 1:
            raise UsageError(f"finetune.lora_rank must be at least 1. Got {self.lora_rank}.")
        if not self.wise_ft_alphas or not all(0 < share <= 1 for share in self.wise_ft_alphas):
            raise UsageError(
                "finetune.wise_ft_alphas must list shares of the tuned weights, one or more in 0 < share <= 1. "
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
"""Numbers per head of the decoder."""


@dataclass(frozen=True, kw_only=True)
class PretrainSettings:
    """Masked autoencoding (He et al. 2021) before the training; there is none while `share` and `steps` are 0."""

    budget_fraction: float = 0.0
    """Fraction of the minutes (without minutes: of all steps) spent on masked autoencoding; 0 does none."""
    steps: int = 0
    """Optimiser steps of masked autoencoding; 0 takes as many as `share` allows."""
    extra_images: str = ""
    """A folder, or any SOURCE, of further pictures to learn from; labels are not needed and not looked at."""
    batch_size: int = 0
    """Pictures per step; 0 takes as many as suit their number."""
    mask_ratio: float = 0.75
    """Fraction of the patches that are hidden from the encoder and painted by the decoder."""
    decoder_depth: int = 2
    """Blocks of the decoder, which is thrown away afterwards."""
    decoder_width: int = 64
    """Numbers per token of the decoder; a multiple of 32."""
    norm_pix_loss: bool = True
    """What is to be painted is each patch with its own mean 0 and deviation 1, not the pixels as they are."""
    lr_scale: float = 1.0
    """Learning rates, as a multiple of those of [recipe]."""
    warmup: float = 0.05
    """Fraction of these steps in which the rate rises from 0; then it falls as a cosine."""
    crop_scale: float = 0.5
    """Smallest area of a random part of each picture that is cut out and resized, as a fraction; 0 cuts none out."""

    def __post_init__(self) -> None:
        if not 0 <= self.budget_fraction < 1:
            raise UsageError(
                f"pretrain.budget_fraction must lie in 0 <= fraction < 1: the rest is the training. Got "
                f"{self.budget_fraction}."
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
        if self.decoder_depth < 1 or self.decoder_width < DECODER_HEAD_WIDTH or self.decoder_width % DECODER_HEAD_WIDTH:
            raise UsageError(
                f"The decoder needs at least one block and a width that is a multiple of {DECODER_HEAD_WIDTH}. "
                f"Got pretrain.decoder_depth={self.decoder_depth}, pretrain.decoder_width={self.decoder_width}."
            )

    @property
    def is_enabled(self) -> bool:
        """Whether there is such a phase."""
        return self.budget_fraction > 0 or self.steps > 0

    def num_visible_patches(self, patches: int) -> int:
        """How many of a picture's patches the encoder sees: at least one, and never all."""
        return min(max(1, round((1 - self.mask_ratio) * patches)), patches - 1)


# -- Section [distill]: the teacher and its part of the loss

CNN_TEACHER = "cnn"


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """Distillation (Hinton et al. 2015). Without a teacher the other fields have no use and must stay."""

    teacher: str = ""
    """Whom to follow: a run, a bundle or a weights file with the same outputs; cnn, a small network that is trained
    first on the same pictures; with `kind` features any ViT that can be loaded; empty for none."""
    kind: Literal["logits", "features"] = "logits"
    """logits: its answers are in the loss; features: before the training the model learns to give its features."""
    alpha: float = 0.5
    """Part of the loss that follows its answers; the labels have the rest."""
    temperature: float = 2.0
    """Both answers are softened by this factor before they are compared."""
    budget_fraction: float = 0.0
    """Fraction of the minutes (without minutes: of all steps) for what comes first: training the CNN, or learning
    features."""
    steps: int = 0
    """Steps of what comes first; 0 takes as many as `share` allows."""
    cnn_width: int = 24
    """Channels of the CNN's first stage; the second and third have two and four times as many."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise UsageError(f"distill.alpha must lie in 0 < share <= 1. Got {self.alpha}.")
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"distill.temperature must be above 0. Got {self.temperature}.")
        if not 0 <= self.budget_fraction < 1:
            raise UsageError(
                f"distill.budget_fraction must lie in 0 <= fraction < 1: the rest is the training. Got "
                f"{self.budget_fraction}."
            )
        if self.steps < 0 or self.cnn_width < 1:
            raise UsageError(
                f"distill.steps must be 0 or more and distill.cnn_width at least 1. Got {self.steps} and "
                f"{self.cnn_width}."
            )

    @property
    def is_enabled(self) -> bool:
        """Whether there is one."""
        return bool(self.teacher)

    @property
    def has_first_stage(self) -> bool:
        """Whether something comes before the training."""
        return self.is_enabled and (self.teacher == CNN_TEACHER or self.kind == "features")


# -- Section [track]: experiment trackers

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
INSTALL_COMMANDS = {"tensorboard": "pip install 'vitrail[track]'"}
"""How to get a tracker; the others by their own name."""


@dataclass(frozen=True, kw_only=True)
class TrackSettings:
    """Changes nothing that a run learns or writes; rates and losses are in metrics.jsonl with or without it."""

    report_to: tuple[TrackerName, ...] = ()
    """Where the curves go beside metrics.jsonl: tensorboard (a folder in the run), wandb, mlflow, trackio; several with
    commas."""
    project: str = ""
    """Under what wandb, mlflow and trackio file the run; empty is what WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME says,
    else vitrail."""

    def check(self) -> None:
        """Refuse a tracker that is not installed, before a picture is read.

        Raises:
            UsageError: with the command that installs it.
        """
        for name in self.report_to:
            if find_spec(name) is None:
                command = INSTALL_COMMANDS.get(name, f"pip install {name}")
                raise UsageError(
                    f"track.report_to {name} needs the package {name}, which is not here. Install it, {command}, or "
                    f"leave it "
                    "out: --track.report_to ''."
                )


@dataclass(frozen=True, kw_only=True)
class _TrackSection:
    """The part of a plan that can be known before there is one."""

    track: TrackSettings = field(default_factory=TrackSettings)


def read_track_settings(overrides: Mapping[str, str]) -> TrackSettings:
    """What a plan's [track] will be, from the fields that were asked for by their dotted names."""
    ours = {name: text for name, text in overrides.items() if name.startswith("track.")}
    return config.override(_TrackSection(), ours).track


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """What the machine computes with, as decided when the plan was made."""

    device: str = "cpu"
    """cpu, cuda, cuda:1 or mps."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Format of the large products; weights and losses stay in float32. float16 is for GPUs without bfloat16."""
    threads: int = 0
    """Threads of the CPU's products; 0 takes OMP_NUM_THREADS or every core. Equal bits need an equal count."""
    num_workers: int = 2
    """Threads that decode pictures while the model trains; 0 decodes in the main thread. Batches stay the same."""
    compile: bool = False
    """Compile the training step with torch.compile."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several processes train one model: ddp copies it into each, fsdp splits it; auto splits what does not fit."""
    timeout: float = 1800.0
    """Seconds that processes which train together wait for one that does not answer."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a run depends on. The same plan on the same machine gives the same weights, bit for bit."""

    model_name: str = ""
    """Name that the model was built from; the shape itself stands under [model]."""
    seed: int = 0
    """Start of every random choice: splits, initial values, order, augmentation, dropout."""
    minutes: float = 0.0
    """Training time that the number of steps was made to fit; 0 if steps or epochs were given."""
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


# -- Default batch size


def suggest_batch_size(count: int) -> int:
    """Pictures per step for so many of them: about a twelfth, a power of two of 16 to 128."""
    return min(128, max(16, 2 ** round(math.log2(max(count, 1) / 12))))
