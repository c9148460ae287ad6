"""One `Predictor` behind every door: pictures in, predictions out, however many are asked for at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from ..checkpoints import bundle
from ..data.source import Picture, Task, as_task
from ..data.transforms import prepare
from ..errors import DataError, UsageError
from ..evaluate.answers import Answers, answers_of, join
from ..evaluate import decisions
from ..evaluate.collect import answering, outputs_of
from ..evaluate.decisions import Decisions
from ..evaluate.scaling import Scaling, scaling_in
from ..evaluate.table import path_of
from ..evaluate.unlike import Familiar
from ..spec import ImageSpec

READERS = 4
"""Threads that decode the next batch while the model works on this one."""


class Predictor:
    """A model, what it expects of a picture, and the names of its answers.

    A picture gets the same answer alone and in a batch, to 1e-5 in probability. The model is moved to `device`.

    Args:
        classes: names of the model's outputs, those of labels and number columns too.
        number_format: float32 or bfloat16; float32 is exact on every device.
        mirror: average each picture's answer with that to its mirror image.
        task: classes, labels or number; decides which table comes out.
        scaling: the scale that numbers were learnt on, for the task `number`; None if outputs have their unit.
        decided: what turns outputs into answers; None takes them at their word.
        familiar: what the training pictures look like to the model, for pictures that are unlike them.

    Raises:
        UsageError: no class names, a scale for another task, or a cut for unlike pictures and nothing to compare with.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: ImageSpec,
        classes: Sequence[str],
        device: str | torch.device = "cpu",
        number_format: str = "float32",
        mirror: bool = False,
        task: Task = "classes",
        scaling: Scaling | None = None,
        decided: Decisions | None = None,
        familiar: Familiar | None = None,
    ):
        if not classes:
            raise UsageError("A predictor needs the names of its classes. Got none.")
        if scaling is not None and task != "number":
            raise UsageError(f"A scale belongs to the task number and to no other. Got {scaling} for {task}.")
        if decided is not None and decided.unlike is not None and familiar is None:
            raise UsageError(
                "A predictor that leaves pictures unlike its training unanswered needs what those look like. Got a cut "
                f"of {decided.unlike:g} and nothing to compare with."
            )
        self.decided = decided or Decisions()
        self.familiar = familiar
        self.model = model.to(device)
        self.spec = spec
        self.classes = tuple(classes)
        self.device = torch.device(device)
        self.number_format = number_format
        self.mirror = mirror
        self.task = task
        self.scaling = scaling

    @classmethod
    def open(cls, path: Path, device: str | torch.device = "cpu", number_format: str | None = None) -> Predictor:
        """The predictor of a bundle, or of a run folder, whose bundle lies in `model/`.

        Args:
            number_format: None takes the one the model was evaluated in where it is known, else float32.

        Raises:
            UsageError: no bundle and no run folder at `path`.
            DamagedFileError: the bundle's files are not those of its manifest, or it notes no scale that fits.
        """
        folder = next((f for f in (Path(path), Path(path) / "model") if (f / "config.json").is_file()), None)
        if folder is None:
            raise UsageError(
                f"A model must be a bundle (a folder with config.json) or a run folder with one in model/. Got {path}."
            )
        found = bundle.load(folder)
        task = as_task(found.task)
        scaling = scaling_in(found.info, len(found.classes), str(folder)) if task == "number" else None
        chosen = number_format or str(found.info.get("number_format", "float32"))
        mirror = bool(found.info.get("mirror", False))
        decided = decisions.read(found.info, str(folder / bundle.CONFIG))
        familiar = Familiar.of(found.familiar, str(folder / bundle.FAMILIAR))
        return cls(found.model, found.spec, found.classes, device, chosen, mirror, task, scaling, decided, familiar)

    def predict(self, pictures: Sequence[Picture | bytes], batch: int = 64, skip_bad: bool = False) -> Answers:
        """One row per picture, in order.

        Args:
            skip_bad: leave unreadable pictures out and name them in `skipped`, instead of raising at the first.

        Raises:
            DataError: a picture that cannot be read, by name.
            UsageError: batch below 1.
        """
        parts = list(self.parts(pictures, batch, skip_bad))
        return join(parts) if parts else self._table([], np.zeros((0, 0), np.float32), None, [])

    def parts(self, pictures: Sequence[Picture | bytes], batch: int = 64, skip_bad: bool = False) -> Iterator[Answers]:
        """The same rows batch by batch, as they are answered: for progress bars and for more pictures than memory."""
        if batch < 1:
            raise UsageError(f"batch must be at least 1. Got {batch}.")
        for rows in self._read(pictures, batch):
            good = [(path, id, image) for path, id, image in rows if isinstance(image, Tensor)]
            bad = [(path or id, image) for path, id, image in rows if isinstance(image, DataError)]
            if bad and not skip_bad:
                raise bad[0][1]
            outputs, distances = np.zeros((0, 0), np.float32), None
            if good:
                outputs, distances = self._answers(torch.stack([image for _, _, image in good]))
            names = [(path, id) for path, id, _ in good]
            yield self._table(names, outputs, distances, [(path, str(why)) for path, why in bad])

    def logits(self, images: UInt8[Tensor, "B C H W"]) -> np.ndarray:
        """Outputs float32 [B, K] for pictures that `data.transforms.prepare` made ready: logits, or scaled numbers."""
        return self._answers(images)[0]

    def _answers(self, images: UInt8[Tensor, "B C H W"]) -> tuple[np.ndarray, np.ndarray | None]:
        """Outputs, and how far the pictures are from those of the training, if that is known."""
        with answering(self.model):
            outputs, seen = outputs_of(
                self.model, images, self.spec, self.device, self.number_format, self.mirror, self.task,
                seen=self.familiar is not None,
            )  # fmt: skip
        if self.familiar is None or seen is None:
            return outputs.cpu().numpy(), None
        return outputs.cpu().numpy(), self.familiar.distances(seen.cpu().numpy())

    def _read(
        self, pictures: Sequence[Picture | bytes], batch: int
    ) -> Iterator[list[tuple[str, str, UInt8[Tensor, "C H W"] | DataError]]]:
        """Batches of (path, id, prepared picture or why not), decoded one batch ahead of the reader."""
        with ThreadPoolExecutor(READERS) as pool:
            ahead: deque[Future[UInt8[Tensor, "C H W"] | DataError]] = deque()
            todo = iter(pictures)
            for start in range(0, len(pictures), batch):
                room = 2 * batch - len(ahead)
                ahead.extend(pool.submit(_prepared, picture, self.spec) for picture in islice(todo, room))
                here = range(start, min(start + batch, len(pictures)))
                yield [(*_named(pictures[i], i), ahead.popleft().result()) for i in here]

    def _table(
        self,
        names: list[tuple[str, str]],
        outputs: np.ndarray,
        distances: np.ndarray | None,
        skipped: list[tuple[str, str]],
    ) -> Answers:
        return answers_of(
            self.task, outputs, self.classes, self.scaling, names, skipped=skipped, decisions=self.decided,
            distances=distances,
        )  # fmt: skip


def _named(picture: Picture | bytes, position: int) -> tuple[str, str]:
    """(path, id): a file is called by its name, an array by its place in what was asked."""
    if isinstance(picture, np.ndarray | bytes):
        return "", str(position)
    return path_of(picture), picture.name


def _prepared(picture: Picture | bytes, spec: ImageSpec) -> UInt8[Tensor, "C H W"] | DataError:
    try:
        return prepare(picture, spec)
    except DataError as problem:
        return problem
