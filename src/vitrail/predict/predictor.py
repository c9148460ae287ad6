"""One `Predictor` behind every door: pictures in, predictions out, however many are asked for at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from ..checkpoints.bundle import find_ensemble, list_members
from ..data.preprocess import preprocess_image
from ..data.source import ImageInput
from ..errors import UsageError
from ..evaluate.answers import Answers, answers_of, join
from ..evaluate.ensemble import mean_of, shared
from .member import Member
from .reading import Name, in_batches


class Predictor:
    """A model, or several whose answers are averaged, what they expect of a picture, and the names of the answers.

    A picture gets the same answer alone and in a batch, to 1e-5 in probability. The models are moved to `device`.

    Args:
        members: of the same classes and task, reading pictures that are prepared alike.

    Raises:
        UsageError: no member, or members that answer or read differently.
    """

    def __init__(self, members: Sequence[Member], device: str | torch.device = "cpu"):
        if not members:
            raise UsageError("A predictor needs at least one model. Got none.")
        first = members[0]
        for member in members:
            _check_alike(first, member)
            member.model.to(device)
        self.members = tuple(members)
        self.device = torch.device(device)
        self.spec = first.spec
        """How pictures are prepared."""
        self.classes = first.classes
        self.task = first.task
        self.scaling = first.scaling
        self.decided = shared([member.decided for member in members])
        """What turns outputs into answers, of all models together."""

    @classmethod
    def open(cls, path: Path, device: str | torch.device = "cpu", number_format: str | None = None) -> Predictor:
        """The predictor of a bundle, an ensemble, or a run folder, in whose `model/` either lies.

        Args:
            number_format: None takes the one the model was evaluated in where it is known, else float32.

        Raises:
            UsageError: no bundle and no run folder at `path`.
            DamagedFileError: the files are not those of their manifest, or note what cannot be.
        """
        together = find_ensemble(path)
        if together is not None:
            return cls([Member.open(folder, number_format) for folder in list_members(together)], device)
        folder = next((f for f in (Path(path), Path(path) / "model") if (f / "config.json").is_file()), None)
        if folder is None:
            raise UsageError(
                f"A model must be a bundle (a folder with config.json) or a run folder with one in model/. Got {path}."
            )
        return cls([Member.open(folder, number_format)], device)

    def predict(self, pictures: Sequence[ImageInput | bytes], batch: int = 64, skip_bad: bool = False) -> Answers:
        """One row per picture, in order.

        Args:
            skip_bad: leave unreadable pictures out and name them in `skipped`, instead of raising at the first.

        Raises:
            DataError: a picture that cannot be read, by name.
            UsageError: batch below 1.
        """
        parts = list(self.parts(pictures, batch, skip_bad))
        return join(parts) if parts else self._answered([], None, [])

    def parts(
        self, pictures: Sequence[ImageInput | bytes], batch: int = 64, skip_bad: bool = False
    ) -> Iterator[Answers]:
        """The same rows batch by batch, as they are answered: for progress bars and for more pictures than memory."""
        for names, made, skipped in in_batches(
            pictures, batch, lambda picture: preprocess_image(picture, self.spec), skip_bad
        ):
            yield self._answered(names, torch.stack(made) if made else None, skipped)

    def logits(self, images: UInt8[Tensor, "B C H W"]) -> np.ndarray:
        """Outputs float32 [B, K] for pictures that `data.transforms.prepare` made ready: logits, or scaled numbers.

        Raises:
            UsageError: as `alone`.
        """
        return self.alone().outputs(images, self.device)[0]

    def alone(self) -> Member:
        """The only model.

        Raises:
            UsageError: there are several.
        """
        if len(self.members) > 1:
            raise UsageError(
                f"This is an ensemble of {len(self.members)} models, and only one can be looked into. Name one of "
                "them, such as MODEL/member-0."
            )
        return self.members[0]

    def answer(self, names: Sequence[Name], images: UInt8[Tensor, "B C H W"]) -> tuple[Answers, list[np.ndarray]]:
        """What is said of prepared pictures, and the outputs of each model [B, K] that it is said by."""
        found = [member.outputs(images, self.device) for member in self.members]
        return self._table(names, found, []), [outputs for outputs, _ in found]

    def _answered(
        self, names: Sequence[Name], images: UInt8[Tensor, "B C H W"] | None, skipped: list[tuple[str, str]]
    ) -> Answers:
        """The mean of what all models make of prepared pictures, None for no pictures."""
        nothing: tuple[np.ndarray, np.ndarray | None] = (np.zeros((0, 0), np.float32), None)
        found = [nothing if images is None else member.outputs(images, self.device) for member in self.members]
        return self._table(names, found, skipped)

    def _table(
        self,
        names: Sequence[Name],
        found: Sequence[tuple[np.ndarray, np.ndarray | None]],
        skipped: Sequence[tuple[str, str]],
    ) -> Answers:
        """The mean of the answers that follow from each model's outputs and distances."""
        tables = [
            answers_of(
                self.task, outputs, self.classes, member.scaling, names, skipped=skipped, decisions=member.decided,
                distances=distances,
            )
            for member, (outputs, distances) in zip(self.members, found, strict=True)
        ]  # fmt: skip
        return mean_of(tables, self.decided)


def _check_alike(first: Member, other: Member) -> None:
    """Members share pictures and tables, so they must prepare the ones and fill the others alike."""
    ours, theirs = (replace(one.spec, mean=(0.5,), std=(0.5,)) for one in (first, other))
    if (first.classes, first.task, ours) != (other.classes, other.task, theirs):
        raise UsageError(
            "Models that answer together must have the same classes and read the same pictures. "
            f"Got {first.classes} at {first.spec.size} and {other.classes} at {other.spec.size}."
        )
