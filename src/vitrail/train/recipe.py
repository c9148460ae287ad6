"""How to train, as values: budget, optimiser, schedule, patch dropout, augmentation. Every one depends on the step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..errors import UsageError
from ..evaluate.views import Views
from ..spec import Grid


class Phase(NamedTuple):
    """A stretch of a training, as fractions of its steps."""

    begin: float
    share: float


ClassWeights = Literal["none", "root", "balanced"]

EVALUATIONS = 10
"""In a run, unless the recipe says after how many steps."""
LOOKED_AT = 1000
"""Validation pictures in each of them, at most; all are answered at the end."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a training. Rates are per step, fractions are of all steps."""

    steps: int = 1000
    """Optimiser steps; fixed before the first one, so that a run can be repeated exactly. 0 only where a frozen
    checkpoint is probed."""
    batch: int = 128
    """Pictures per step, of all processes together."""
    accumulate: int = 1
    """In how many parts the pictures of a step go through the model, one after another: less memory, same result."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: matrices of the blocks by Muon, everything else by AdamW; adamw: everything by AdamW."""
    muon_rate: float = 0.02
    """Muon's learning rate at its peak."""
    momentum: float = 0.95
    """Muon's momentum."""
    rate: float = 2e-3
    """AdamW's learning rate at its peak."""
    weight_decay: float = 0.05
    """Decoupled decay of matrices per unit of rate; norms, biases, tables and the class token have none."""
    warmup: float = 0.05
    """Fraction of the steps in which the rate rises from 0."""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate falls to 0 after the warm-up."""
    clip: float = 0.0
    """Largest norm of all gradients together; 0 leaves them as they are."""
    skip_spikes: bool = False
    """Do not apply a step whose loss lies six deviations above the last 128; at most one step in a hundred."""
    smoothing: float = 0.0
    """Label smoothing."""
    class_weights: ClassWeights = "none"
    """What a picture weighs in the loss of classes: balanced: 1 / pictures of its class; root: its square root."""
    positive_weight: float = 0.0
    """Most that a positive weighs in the loss of labels, where it weighs its label's negatives / positives; 0 weighs
    all alike."""
    gamma_negative: float = 0.0
    """How much easy negatives fade in the loss of labels: by probability ^ gamma (asymmetric loss); 0 not at all."""
    gamma_positive: float = 0.0
    """How much easy positives fade in the loss of labels: by (1 - probability) ^ gamma; 0 not at all."""
    margin: float = 0.0
    """Negatives with a probability below this count for nothing in the loss of labels (asymmetric loss's clip)."""
    huber: float = 0.0
    """Errors beyond this many deviations count in proportion and not by their square, in numbers; 0 squares all."""
    own_loss: str = ""
    """Name of the function that was given as loss= in Python, where it replaces the loss of the task."""
    ema: float = 0.0
    """Keep and evaluate the running mean of the weights with this decay per step; 0 keeps none."""
    keep_patches: float = 1.0
    """Fraction of the patches that the model sees in the early steps."""
    keep_until: float = 0.0
    """Fraction of the steps in which only `keep_patches` are seen; afterwards all are."""
    small_size: float = 1.0
    """Sides of the pictures in the early steps, as a fraction of the model's, to whole patches."""
    small_until: float = 0.0
    """Fraction of the steps in which pictures have `small_size`; afterwards the model's own."""
    crop_padding: int = 0
    """Pictures are shifted by up to this many pixels each way."""
    flip: bool = False
    """Half of the pictures are mirrored left to right."""
    flip_vertical: bool = False
    """Half of the pictures are mirrored top to bottom."""
    transpose: bool = False
    """Half of the pictures have rows and columns exchanged; with both flips, every quarter turn. Square ones only."""
    turn: float = 0.0
    """Pictures are turned by up to this many degrees each way."""
    stretch: float = 0.0
    """Height and width change by up to this fraction, each by its own, larger or smaller."""
    move: float = 0.0
    """Pictures are moved by up to this fraction of their sides each way, between pixels too."""
    crop_scale: float = 0.0
    """Smallest area of a random part of each picture that is cut out and resized, as a fraction; 0 cuts none out."""
    augment: Literal["none", "rand", "trivial", "three"] = "none"
    """rand: RandAugment; trivial: TrivialAugment, wide; three: 3-Augment (grey, solarised or blurred, then jitter)."""
    augment_count: int = 2
    """Operations that RandAugment does to each picture, one after another."""
    augment_magnitude: float = 9.0
    """Strength of RandAugment's operations, 0..10 as in its paper."""
    erase: float = 0.0
    """Fraction of the pictures in which a random rectangle is covered with noise."""
    mixup: float = 0.0
    """Pictures show through each other, in shares drawn from Beta(mixup, mixup); 0 leaves it out."""
    cutmix: float = 0.0
    """A rectangle of another picture covers an area drawn from Beta(cutmix, cutmix); 0 leaves it out."""
    own_augment: str = ""
    """Name of the function that was given as augment= in Python; it changes pictures after all of these but mixing."""
    repeats: int = 1
    """How often each picture is in its batch, augmented differently each time."""
    mirror: bool = False
    """Answers are the mean for the picture and its mirror image."""
    shift: int = 0
    """Answers are the mean for the picture and itself moved left and right by so many pixels too; 0 moves nothing."""
    extended_at: int = 0
    """Step after which --extend gave the run more steps; 0 if it never did."""
    extended_from: float = 0.0
    """The rate before that step as a fraction of its peak; from there it rises again."""
    evaluate_every: int = 0
    """Steps between evaluations on the validation pictures; 0 evaluates ten times in a run."""
    save_every: int = 0
    """Steps between checkpoints; 0 saves about once a minute."""

    def __post_init__(self) -> None:
        counts = (
            ("recipe.steps", self.steps, 0), ("recipe.batch", self.batch, 1), ("recipe.accumulate", self.accumulate, 1),
            ("recipe.evaluate_every", self.evaluate_every, 0), ("recipe.save_every", self.save_every, 0),
        )  # fmt: skip
        for name, count, least in counts:
            if count < least:
                raise UsageError(f"{name} must be at least {least}. Got {count}.")
        for name, rate in (("recipe.muon_rate", self.muon_rate), ("recipe.rate", self.rate)):
            if not 0 < rate < math.inf:
                raise UsageError(f"{name} must be above 0: with {rate} nothing would be learnt.")
        if not 0 <= self.clip < math.inf:
            raise UsageError(f"recipe.clip must be a largest norm, or 0 for none. Got {self.clip}.")
        if not 0 <= self.weight_decay <= 1:
            raise UsageError(f"recipe.weight_decay must lie in 0..1. Got {self.weight_decay}.")
        fractions = {"recipe.warmup": self.warmup, "recipe.keep_until": self.keep_until, "recipe.ema": self.ema}
        fractions |= {"recipe.momentum": self.momentum, "recipe.smoothing": self.smoothing}
        fractions |= {"recipe.small_until": self.small_until}
        for name, fraction in fractions.items():
            if not 0 <= fraction < 1:
                raise UsageError(f"{name} must lie in 0 <= fraction < 1. Got {fraction}.")
        for name, part in (("recipe.keep_patches", self.keep_patches), ("recipe.small_size", self.small_size)):
            if not 0 < part <= 1:
                raise UsageError(f"{name} must lie in 0 < fraction <= 1. Got {part}.")
        self._check_loss()
        self._check_augmentation()

    @property
    def views(self) -> Views:
        """Of each picture, which its answer is averaged over."""
        return Views(self.mirror, self.shift)

    @property
    def asymmetric(self) -> bool:
        """Whether labels are learnt with the asymmetric loss."""
        return bool(self.gamma_negative or self.gamma_positive or self.margin)

    def _check_loss(self) -> None:
        bounds = {"recipe.positive_weight": self.positive_weight, "recipe.huber": self.huber}
        bounds |= {"recipe.gamma_negative": self.gamma_negative, "recipe.gamma_positive": self.gamma_positive}
        for name, bound in bounds.items():
            if not 0 <= bound < math.inf:
                raise UsageError(f"{name} must be 0 or more. Got {bound}.")
        if not 0 <= self.margin < 1:
            raise UsageError(f"recipe.margin must lie in 0 <= probability < 1. Got {self.margin}.")

    def _check_augmentation(self) -> None:
        for name, fraction in (("recipe.crop_scale", self.crop_scale), ("recipe.erase", self.erase)):
            if not 0 <= fraction <= 1:
                raise UsageError(f"{name} must lie in 0..1. Got {fraction}.")
        for name, most, limit in (("turn", self.turn, 180), ("stretch", self.stretch, 1), ("move", self.move, 1)):
            if not 0 <= most <= limit:
                raise UsageError(f"recipe.{name} must lie in 0..{limit}. Got {most}.")
        for name, pixels in (("recipe.crop_padding", self.crop_padding), ("recipe.shift", self.shift)):
            if pixels < 0:
                raise UsageError(f"{name} must be at least 0. Got {pixels}.")
        if not 0 <= self.augment_magnitude <= 10:
            raise UsageError(
                f"recipe.augment_magnitude must lie in 0..10. Got {self.augment_magnitude}. "
                "torchvision counts to 30: a third of its number means the same."
            )
        for name, alpha in (("recipe.mixup", self.mixup), ("recipe.cutmix", self.cutmix)):
            if not 0 <= alpha < math.inf:
                raise UsageError(f"{name} must be 0 or more. Got {alpha}.")
        for name, number in (("recipe.augment_count", self.augment_count), ("recipe.repeats", self.repeats)):
            if number < 1:
                raise UsageError(f"{name} must be at least 1. Got {number}.")
        if self.batch % self.repeats:
            raise UsageError(
                f"recipe.batch must be a multiple of recipe.repeats, so that every picture is in its batch as often. "
                f"Got batch={self.batch}, repeats={self.repeats}."
            )

    def rate_factor(self, step: int) -> float:
        """The learning rate at a step (from 0) as a fraction of its peak: a linear rise, then the decay to 0.

        After `--extend` it rises again, from where it was to where a run planned for so long would now be.
        """
        risen = min(1.0, (step - self.extended_at + 1) / (self.warmup * (self.steps - self.extended_at) + 1))
        left = 1 - step / self.steps
        fall = {"linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "constant": 1.0}[self.decay]
        if step < self.extended_at:
            return fall  # only where a damaged checkpoint forces a run to repeat what was done under the old plan
        return self.extended_from + risen * (fall - self.extended_from)

    def anew(self) -> Recipe:
        """This recipe for a run from its first step: as many steps, with one rise of the rate and one fall."""
        return dataclasses.replace(self, extended_at=0, extended_from=0.0)

    def evaluates_at(self, step: int) -> bool:
        """Whether the validation pictures are looked at after a step (from 1), the last one always."""
        return step == self.steps or step % self._between_looks == 0

    @property
    def looks(self) -> int:
        """How often the validation pictures are looked at in all."""
        return -(-self.steps // self._between_looks)

    @property
    def _between_looks(self) -> int:
        return self.evaluate_every or max(1, self.steps // EVALUATIONS)

    def patches_at(self, step: int, patches: int) -> int:
        """How many of a picture's patches the model sees at a step."""
        early = step < self.keep_until * self.steps
        return max(1, round(self.keep_patches * patches)) if early else patches

    def grid_at(self, step: int, grid: Grid) -> Grid:
        """Rows and columns of patches that the pictures of a step have, given those of the model."""
        if step >= self.small_until * self.steps or self.small_size == 1:
            return grid
        return Grid(*(max(1, round(self.small_size * side)) for side in grid))

    def tokens_at(self, step: int, grid: Grid) -> int:
        """How many patches of a picture the model sees at a step: what the step costs follows them."""
        return self.patches_at(step, self.grid_at(step, grid).patches)

    def phases(self) -> list[Phase]:
        """The stretches of the training in which pictures have one size and one share of their patches."""
        turns = {self.keep_until if self.keep_patches < 1 else 0.0, self.small_until if self.small_size < 1 else 0.0}
        ends = [*sorted(turns - {0.0}), 1.0]
        return [Phase(begin, end - begin) for begin, end in zip([0.0, *ends], ends, strict=False)]

    def epochs(self, count: int) -> float:
        """How often each of `count` pictures is shown in all steps, its repeats in a batch counted once."""
        return self.steps * min(self.batch // self.repeats, count) / count
