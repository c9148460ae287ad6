"""One model of a predictor: how it reads prepared pictures, and what turns its outputs into answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from ..checkpoints import bundle
from ..checkpoints.model_card import UNLABELED_KEY
from ..data.source import Task, parse_task
from ..errors import UsageError
from ..evaluate import decisions
from ..evaluate.collect import answering, made_ready, outputs_of
from ..evaluate.decisions import Decisions
from ..evaluate.scaling import Scaling, scaling_in
from ..evaluate.unlike import Familiar
from ..evaluate.views import Views
from ..spec import ImageSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A model with all that it needs to answer.

    Raises:
        UsageError: no class names, a scale for another task, or a cut for unlike pictures and nothing to compare with.
    """

    model: nn.Module
    spec: ImageSpec
    classes: tuple[str, ...]
    """Names of the outputs."""
    task: Task = "classes"
    number_format: str = "float32"
    views: Views = field(default_factory=Views)
    """Of each picture, which its answer is averaged over."""
    scaling: Scaling | None = None
    """Of the task number, the scale that its numbers were learnt on."""
    decided: Decisions = field(default_factory=Decisions)
    familiar: Familiar | None = None
    """What the training pictures look like to the model, if that is known."""

    def __post_init__(self) -> None:
        if not self.classes:
            raise UsageError("A predictor needs the names of its classes. Got none.")
        if self.scaling is not None and self.task != "number":
            raise UsageError(f"A scale belongs to the task number and to no other. Got {self.scaling} for {self.task}.")
        if self.decided.unlike is not None and self.familiar is None:
            raise UsageError(
                "A predictor that leaves pictures unlike its training unanswered needs what those look like. Got a cut "
                f"of {self.decided.unlike:g} and nothing to compare with."
            )

    @classmethod
    def open(cls, folder: Path, number_format: str | None = None) -> Member:
        """The model of a bundle.

        Args:
            number_format: None takes the one the model was evaluated in where it is known, else float32.

        Raises:
            DamagedFileError: the bundle's files are not those of its manifest, or it notes what cannot be.
            UsageError: the model has learnt from pictures only, and from no answer.
        """
        found = bundle.load_bundle(folder)
        if UNLABELED_KEY in found.info:
            raise UsageError(
                f"The model in {folder} has seen pictures and no label, so what it would answer means nothing. Search "
                f"by its features (vitrail embed {folder} PICTURES --to features.npy), or teach it: vitrail train "
                f"SOURCE --weights {folder}"
            )
        task = parse_task(found.task)
        return cls(
            model=found.model,
            spec=found.spec,
            classes=found.classes,
            task=task,
            number_format=number_format or str(found.info.get("number_format", "float32")),
            views=Views.of(found.info, str(folder / bundle.CONFIG_FILE)),
            scaling=scaling_in(found.info, len(found.classes), str(folder)) if task == "number" else None,
            decided=decisions.read(found.info, task, found.classes, str(folder / bundle.CONFIG_FILE)),
            familiar=Familiar.of(found.familiar, found.model.config.width, str(folder / bundle.FEATURE_STATS_FILE)),
        )

    @cached_property
    def ready(self) -> nn.Module:
        """The model as it answers, from the first answer on where it then is: matrices cast once and not every time."""
        return made_ready(self.model, self.number_format)

    def outputs(self, images: UInt8[Tensor, "B C H W"], device: torch.device) -> tuple[np.ndarray, np.ndarray | None]:
        """Outputs float32 [B, K], and the distances [B] of the pictures from those of the training, if known."""
        with answering(self.ready):
            outputs, seen = outputs_of(
                self.ready, images, self.spec, device, self.number_format, self.views, self.task,
                seen=self.familiar is not None,
            )  # fmt: skip
        if self.familiar is None or seen is None:
            return outputs.cpu().numpy(), None
        return outputs.cpu().numpy(), self.familiar.distances(seen.cpu().numpy())
