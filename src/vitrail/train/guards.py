"""Guards against non-finite and exploding steps: which updates are applied, and the notes on skipped ones.

Every decision depends on the losses and norms so far and on nothing else, and all of that is part of a checkpoint: a
resumed run decides as an uninterrupted one. Each rank has its own guards; all get the same global loss and norm, so all
decide alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from ..data.loader import Batch
from ..data.sampler import iter_step_indices
from ..errors import DataError, DivergedError, ResourceError
from ..files.atomic import write_json
from ..formatting import format_count
from .plan import Recipe

MAX_BAD_STEPS = 3
LOSS_WINDOW = 128
SPIKE_DEVIATIONS = 6.0
MAX_SKIPPED_FRACTION = 0.01
LEARNING_CHECK_STEP, EARLY_STEPS, MAX_LOSS_RATIO = 500, 100, 0.98
MAX_NAMES_SHOWN = 10


class PhaseLabel(NamedTuple):
    """A phase before the training, whose steps are counted by themselves."""

    name: str
    """Begins the names of its files, such as pretrain."""
    title: str
    """In messages, such as "pre-training"."""
    advice: str
    """Printed when it diverges."""


class Guards:
    """Decides for every step whether the optimisers apply it.

    Args:
        folder: where `nan-step-000123.json` is written; None writes nothing, as on all ranks but the first.
        names: image names by row of the source.
        phase_label: the phase of these steps, for `pretrain-nan-step-000123.json`; None is the training itself.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path | None = None,
        names: Sequence[str] = (),
        phase_label: PhaseLabel | None = None,
    ):
        self.recipe = recipe
        """The recipe that is followed: the loop reads it at every step, because its steps may be replanned."""
        self.nonfinite_steps = 0
        """Steps that were not applied because their loss or gradient was not finite."""
        self.skipped_steps = 0
        """Steps that were not applied because their loss jumped."""
        self.overflow_steps = 0
        """Steps whose gradients overflowed float16; the loss scale handles them."""
        self.is_applying = False
        """Whether the optimisers are running: an error now leaves half-updated weights."""
        self._folder = folder
        self._names = names
        self._phase_label = phase_label
        self._in_a_row = 0
        self._finite: deque[float] = deque(maxlen=LOSS_WINDOW)
        self._early: list[float] = []
        self._advised = False
        self._messages: list[str] = []

    def allow(
        self, step: int, loss: float, norm: float, batch: Batch, logits: Tensor | None = None, scale: float = 1.0
    ) -> bool:
        """Whether the step may be applied. Call it once a step, with the same numbers on every rank.

        Args:
            step: counted from 0.
            loss, norm: of the whole batch, over all ranks, without the loss scale.
            logits: the outputs, to name the images whose output is not finite.
            scale: the loss scale; above 1 a norm that is not finite is an overflow.

        Raises:
            DataError: targets are not finite; names the images.
            DivergedError: the third step in a row that is not finite.
        """
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite and math.isfinite(loss) and scale > 1:
            self.overflow_steps += 1
            return False
        if not finite:
            self._refuse(step, loss, norm, batch, logits)
            return False
        self._in_a_row = 0
        jumped = self._is_spike(step, loss)
        self._finite.append(loss)  # finite ones only: a NaN in here would refuse every step that follows
        if len(self._early) < EARLY_STEPS:
            self._early.append(loss)
        if jumped:
            self.skipped_steps += 1
            self._messages.append(f"{self._step_name(step)} was skipped: its loss jumped to {loss:.3g}.")
        return not jumped

    def take_messages(self, step: int) -> list[str]:
        """Messages after `step` finished steps, each given once.

        Only the training itself is checked for a falling loss: earlier phases have other losses.
        """
        news, self._messages = self._messages, []
        if (
            self._phase_label is None
            and step >= LEARNING_CHECK_STEP
            and not self._advised
            and len(self._finite) == LOSS_WINDOW
        ):
            self._advised = True
            before, now = fmean(self._early), fmean(self._finite)
            if now > MAX_LOSS_RATIO * before:
                fell = f"from {before:.3g} to {now:.3g}"
                news.append(f"The loss has not fallen in {format_count(step, 'step')} ({fell}). {self.advice}")
        return news

    @property
    def advice(self) -> str:
        """The three most likely reasons why a model learns nothing."""
        recipe = self.recipe
        lower = f"--recipe.muon_lr {recipe.muon_lr / 3:.2g} --recipe.lr {recipe.lr / 3:.2g}"
        return (
            f"Likeliest: the rates are too high (try {lower}), the labels do not belong to their pictures (look at "
            "figures/what-the-model-sees.png), or what tells them apart is lost at this size (try a larger "
            "--image-size)."
        )

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, in JSON types."""
        return {
            "refused": self.nonfinite_steps,
            "skipped": self.skipped_steps,
            "overflows": self.overflow_steps,
            "in_a_row": self._in_a_row,
            "finite": list(self._finite),
            "early": list(self._early),
            "advised": self._advised,
        }

    def load_state_dict(self, facts: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; an empty mapping (an older checkpoint) changes nothing."""
        if facts:
            self.nonfinite_steps, self.skipped_steps = facts["refused"], facts["skipped"]
            self.overflow_steps, self._in_a_row = facts["overflows"], facts["in_a_row"]
            self._finite = deque(facts["finite"], maxlen=LOSS_WINDOW)
            self._early, self._advised = list(facts["early"]), facts["advised"]

    def _is_spike(self, step: int, loss: float) -> bool:
        """Whether a finite loss lies six deviations above the recent mean, and another step may be skipped."""
        if not self.recipe.skip_spikes or len(self._finite) < LOSS_WINDOW:
            return False
        if self.skipped_steps + 1 > MAX_SKIPPED_FRACTION * self.recipe.segment_at(step).steps:
            return False
        return loss > fmean(self._finite) + SPIKE_DEVIATIONS * pstdev(self._finite)

    def _refuse(self, step: int, loss: float, norm: float, batch: Batch, logits: Tensor | None) -> None:
        self.nonfinite_steps += 1
        self._in_a_row += 1
        self._write_bad_step(step, loss, norm, batch, logits)
        # NaN targets only mean unknown, and images of integers are always finite.
        if rows := _rows_with(torch.isinf(batch.targets.view(len(batch.targets), -1))):
            raise DataError(
                f"{self._step_name(step)} read numbers that are not finite with {self._join_image_names(batch, rows)}. "
                "Mend or remove them, and begin again."
            )
        if self._in_a_row == MAX_BAD_STEPS:
            title, advice = (
                "Training",
                (
                    f"Lower the rates, for example --recipe.muon_lr {self.recipe.muon_lr / 3:.2g} "
                    f"--recipe.lr {self.recipe.lr / 3:.2g}, and begin again."
                ),
            )
            if self._phase_label is not None:
                title, advice = f"The {self._phase_label.title}", self._phase_label.advice
            raise DivergedError(
                f"{title} diverged: the loss or its gradient was not finite in steps {step - MAX_BAD_STEPS + 2} to "
                f"{step + 1}. {advice}"
            )

    def _write_bad_step(self, step: int, loss: float, norm: float, batch: Batch, logits: Tensor | None) -> None:
        """Write a report of the step; a failure to write it does not stop the training."""
        text = f"{self._step_name(step)} was not applied: loss {loss:.3g}, gradient norm {norm:.3g}."
        if self._folder is None:
            self._messages.append(text)
            return
        path = self._folder / f"{f'{self._phase_label.name}-' if self._phase_label else ''}nan-step-{step + 1:06d}.json"
        factor = self.recipe.lr_factor(step)
        facts: dict[str, Any] = {
            "step": step + 1,
            "loss": str(loss),  # JSON has no word for NaN
            "gradient_norm": str(norm),
            "rates": {"muon": factor * self.recipe.muon_lr, "adamw": factor * self.recipe.lr},
            "pictures": [self._image_name(row) for row in batch.indices.tolist()],
        }
        if logits is not None:
            nonfinite = [
                self._image_name(int(batch.indices[row])) for row in _rows_with(~torch.isfinite(logits).flatten(1))
            ]
            facts["pictures_without_a_finite_answer"] = nonfinite
        try:
            write_json(path, facts)
        except (ResourceError, OSError) as error:
            self._messages.append(f"{text} {error}")
        else:
            self._messages.append(f"{text} Its pictures are in {path}.")

    def _step_name(self, step: int) -> str:
        return f"Step {step + 1}{f' of the {self._phase_label.title}' if self._phase_label else ''}"

    def _image_name(self, row: int) -> str:
        return self._names[row] if row < len(self._names) else str(row)

    def _join_image_names(self, batch: Batch, rows: Sequence[int]) -> str:
        names = [self._image_name(int(batch.indices[row])) for row in rows]
        more = f" and {len(names) - MAX_NAMES_SHOWN:,} more" if len(names) > MAX_NAMES_SHOWN else ""
        return ", ".join(names[:MAX_NAMES_SHOWN]) + more


def _rows_with(mask: Tensor) -> list[int]:
    """Rows of a 2-D mask in which any value is true."""
    return torch.nonzero(mask.any(1)).flatten().tolist()


# -- Warning before the first step: batches of a single class teach little but its frequency

CHECKED_BATCHES = 50
MIN_CHECKED_BATCH = 8  # in smaller batches it happens by chance
MAX_SINGLE_CLASS_FRACTION = 0.1


def warn_of_single_class_batches(
    targets: Shaped[np.ndarray, " n *K"],
    rows: Int64[np.ndarray, " n"],
    recipe: Recipe,
    seed: int,
    shard_ids: Int64[np.ndarray, " n"] | None,
) -> str | None:
    """A warning if more than a tenth of the first batches are of one class; None for targets that are not classes."""
    if targets.ndim > 1 or min(recipe.batch_size // recipe.repeated_augmentation, len(rows)) < MIN_CHECKED_BATCH:
        return None
    first = islice(
        iter_step_indices(rows, recipe.batch_size, seed, 0, recipe.repeated_augmentation, shard_ids), CHECKED_BATCHES
    )
    alike = sum(len(set(targets[share.places].tolist())) == 1 for share in first)
    if alike <= MAX_SINGLE_CLASS_FRACTION * CHECKED_BATCHES:
        return None
    sorted_shards = "the shards are sorted by class: write them in a random order"
    why = "use a larger batch" if shard_ids is None else sorted_shards
    return (
        f"{alike} of the first {CHECKED_BATCHES} batches show one class only, so little can be learnt from each; {why}."
    )
