"""`vitrail predict` in parts: shared by processes that were started together, and taken up again where it stopped."""

from __future__ import annotations

import importlib.metadata
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data.source import Task
from ..errors import UsageError
from ..evaluate.prediction_tables import TaskPredictions, add_prediction_sets, concat_predictions, require_sets_support
from ..evaluate.tables import check_table_extension
from ..plural import counted
from ..predict.chunks import (
    BATCH_SIZE,
    DEFAULT_CHUNK_SIZE,
    FOLDER_SUFFIX,
    ChunkContent,
    ChunkFolder,
    ChunkJob,
    hash_file_stats,
    hash_paths,
)
from ..predict.predictor import Predictor, hash_predictor
from ..train.distributed.collectives import GroupInfo, group_from_env
from . import counting
from .predicting import open_predictor, reread


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prediction in parts, as a person asks for it."""

    model: str
    pictures: Sequence[Path]
    to: Path
    """The file that the parts become; they lie beside it, in a folder of its name and `.parts`."""
    size: int = DEFAULT_CHUNK_SIZE
    """Pictures in a part."""
    sets: bool = False
    skip_bad: bool = False
    device: str = "auto"
    changes: Mapping[str, str] | None = None
    """How files are opened."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of it in this process."""

    folder: Path
    """Where the parts lie."""
    to: Path
    parts: int
    """All that there are."""
    written: int
    """By this process, now."""
    kept: int
    """Of its share, those that an earlier start had written."""
    missing: int
    """Those that others have still to write."""
    rows: int | None
    """Of the whole file; None while parts are missing."""
    skipped: tuple[tuple[str, str], ...]
    """(path, reason) of all pictures that were left out, once the file is whole."""
    rank: int = 0
    world: int = 1

    def told(self) -> str:
        """The same as a sentence."""
        if self.rows is not None:
            from_parts = f"from {counted(self.parts, 'part')}; {self.folder} may be deleted now"
            return f"{counted(self.rows, 'row')} written to {self.to}, {from_parts}"
        return (
            f"Rank {self.rank} of {self.world} has written its share; {self.missing:,} of {self.parts:,} parts are "
            f"still to come in {self.folder}. Whoever ends last joins them; if somebody died, repeat the same command"
        )

    def facts(self) -> dict[str, object]:
        """The same as plain values."""
        return {
            "to": str(self.to),
            "folder": str(self.folder),
            "rank": self.rank,
            "world": self.world,
            "parts": self.parts,
            "written": self.written,
            "kept": self.kept,
            "missing": self.missing,
            "rows": self.rows,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def in_company() -> bool:
    """Whether this process was started with others, by torchrun, srun or an operator's variables.

    Raises:
        UsageError: the variables contradict each other.
    """
    return group_from_env().world > 1


def predict(asked: Asked) -> Outcome:
    """Answer this process's share of the parts, but for those that are whole, and join all if none is missing then.

    Processes say nothing to each other: part n belongs to rank n modulo their number, and the folder tells the rest. So
    whoever is killed loses the part at hand, and any number of processes may go on.

    Raises:
        UsageError: the folder holds parts of another prediction; a size that is no multiple of a batch.
        DataError: a picture of the share cannot be read, unless `skip_bad`; the parts before it are written.
        as `predicting.open_predictor`.
    """
    group = group_from_env()
    predictor, parts = begin(asked, _device(asked.device, group), group.local_world)
    share = parts.share(group.rank, group.world)
    todo = [number for number in share if not parts.is_whole(number)]
    answers = _written(parts, todo, predictor, asked)
    total = sum(len(parts.pictures(number)) for number in todo)
    deque(answers if group.rank else counting.answered(answers, total), maxlen=0)
    return conclude(parts, asked.to, predictor.task, len(todo), len(share) - len(todo), group)


def begin(asked: Asked, device: str, sharing: int = 1) -> tuple[Predictor, ChunkFolder]:
    """The model and the folder of parts, which are seen to belong together.

    Args:
        sharing: how many processes share this machine's cores.

    Raises:
        as `predict`.
    """
    predictor = opened(asked, device, sharing)
    job = ChunkJob(
        model=hash_predictor(predictor), pictures=hash_paths(asked.pictures), count=len(asked.pictures), size=asked.size,
        sets=asked.sets, skip_bad=asked.skip_bad, version=importlib.metadata.version("vitrail"),
    )  # fmt: skip
    return predictor, ChunkFolder(asked.to.with_name(asked.to.name + FOLDER_SUFFIX), job, asked.pictures)


def opened(asked: Asked, device: str, sharing: int = 1) -> Predictor:
    """The model alone.

    Raises:
        as `predict`.
    """
    predictor = reread(open_predictor(asked.model, device, sharing), asked.changes or {})
    if asked.sets:
        require_sets_support(predictor.task, predictor.decided)
    return predictor


def answered(predictor: Predictor, pictures: Sequence[Path], asked: Asked) -> Iterator[TaskPredictions]:
    """The pictures of a part batch by batch, in the batches of a prediction without parts."""
    for batch in predictor.parts(pictures, BATCH_SIZE, asked.skip_bad):
        yield add_prediction_sets(batch, predictor.decided) if asked.sets else batch


def conclude(parts: ChunkFolder, to: Path, task: Task, written: int, kept: int, group: GroupInfo) -> Outcome:
    """Join the parts if none is missing, and say how things stand."""
    missing = parts.missing()
    whole = None if missing else parts.join(to, task)
    return Outcome(
        folder=parts.folder, to=to, parts=parts.job.parts, written=written, kept=kept, missing=len(missing),
        rows=None if whole is None else whole.rows, skipped=() if whole is None else whole.skipped, rank=group.rank,
        world=group.world,
    )  # fmt: skip


def check_place(to: Path | None) -> Path:
    """The file that parts become.

    Raises:
        UsageError: none was given, or one that answers are not written to.
    """
    if to is None:
        raise UsageError(
            "Answers in parts lie beside the file that they become. Name it with --to FILE.csv; several processes that "
            "were started together (torchrun, srun, RANK and WORLD_SIZE) and --engine ray always answer in parts."
        )
    check_table_extension(to)
    return to


def _written(parts: ChunkFolder, todo: Sequence[int], predictor: Predictor, asked: Asked) -> Iterator[TaskPredictions]:
    """Every batch as it is answered; a part is written with its last one."""
    for number in todo:
        pictures = parts.pictures(number)
        before = hash_file_stats(pictures)
        batches: list[TaskPredictions] = []
        for batch in answered(predictor, pictures, asked):
            batches.append(batch)
            yield batch
        parts.write(number, ChunkContent.of(concat_predictions(batches), before))


def _device(wish: str, group: GroupInfo) -> str:
    """Every process takes the GPU of its number on this machine, where nobody has named one."""
    if group.world == 1 or wish not in ("auto", "cuda"):
        return wish
    import torch

    if not torch.cuda.is_available():
        return wish
    return f"cuda:{group.local_rank % torch.cuda.device_count()}"
