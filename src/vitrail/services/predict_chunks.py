"""`vitrail predict` in parts: shared by processes that were started together, and taken up again where it stopped."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from ..data.source import Task
from ..errors import UsageError, VitrailError, WorkerError
from ..evaluate.decisions import add_prediction_sets, require_sets_support
from ..evaluate.predictions import TaskPredictions, concat_predictions
from ..evaluate.tables import check_table_extension
from ..formatting import format_count
from ..predict.chunks import (
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
from . import progress
from .prediction import apply_image_options, open_predictor


@dataclass(frozen=True, kw_only=True)
class ChunkedPredictRequest:
    """A prediction in parts, as a person asks for it."""

    model: str
    pictures: Sequence[Path]
    to: Path
    """The file that the parts become; they lie beside it, in a folder of its name and `.parts`."""
    chunk_size: int = DEFAULT_CHUNK_SIZE
    """Images in a part."""
    sets: bool = False
    skip_bad: bool = False
    device: str = "auto"
    changes: Mapping[str, str] | None = None
    """How files are opened."""


@dataclass(frozen=True, kw_only=True)
class ChunkedPredictResult:
    """What became of it in this process."""

    folder: Path
    """Where the parts lie."""
    to: Path
    num_chunks: int
    """All that there are."""
    num_written: int
    """By this process, now."""
    num_reused: int
    """Of its share, those that an earlier start had written."""
    num_missing: int
    """Those that others have still to write."""
    num_rows: int | None
    """Of the whole file; None while parts are missing."""
    skipped: tuple[tuple[str, str], ...]
    """(path, reason) of all images that were left out, once the file is whole."""
    rank: int = 0
    world_size: int = 1

    def summarize(self) -> str:
        """The same as a sentence."""
        if self.num_rows is not None:
            from_parts = f"from {format_count(self.num_chunks, 'part')}; {self.folder} may be deleted now"
            return f"{format_count(self.num_rows, 'row')} written to {self.to}, {from_parts}"
        return (
            f"Rank {self.rank} of {self.world_size} has written its share; {self.num_missing:,} of "
            f"{self.num_chunks:,} parts are "
            f"still to come in {self.folder}. Whoever ends last joins them; if somebody died, repeat the same command"
        )

    def to_json(self) -> dict[str, object]:
        """The same as plain values."""
        return {
            "to": str(self.to),
            "folder": str(self.folder),
            "rank": self.rank,
            "world": self.world_size,
            "parts": self.num_chunks,
            "written": self.num_written,
            "kept": self.num_reused,
            "missing": self.num_missing,
            "rows": self.num_rows,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def is_multi_process() -> bool:
    """Whether this process was started with others, by torchrun, srun or an operator's variables.

    Raises:
        UsageError: the variables contradict each other.
    """
    return group_from_env().world_size > 1


def predict_in_chunks(request: ChunkedPredictRequest) -> ChunkedPredictResult:
    """Answer this process's fraction of the parts, but for those that are whole, and join all if none is missing then.

    Processes say nothing to each other: part n belongs to rank n modulo their number, and the folder tells the rest. So
    whoever is killed loses the part at hand, and any number of processes may go on.

    Raises:
        UsageError: the folder holds parts of another prediction; a size that is no multiple of a batch.
        DataError: an image of the share cannot be read, unless `skip_bad`; the parts before it are written.
        as `predicting.open_predictor`.
    """
    group = group_from_env()
    predictor, parts = open_chunk_folder(request, _local_device(request.device, group), group.local_world_size)
    share = parts.chunks_for_rank(group.rank, group.world_size)
    todo = [number for number in share if not parts.is_complete(number)]
    answers = _predict_and_write(parts, todo, predictor, request)
    total = sum(len(parts.chunk_images(number)) for number in todo)
    deque(answers if group.rank else progress.track_batches(answers, total), maxlen=0)
    return join_if_complete(parts, request.to, predictor.task, len(todo), len(share) - len(todo), group)


def open_chunk_folder(
    request: ChunkedPredictRequest, device: str, num_processes: int = 1
) -> tuple[Predictor, ChunkFolder]:
    """The model and the folder of parts, which are seen to belong together.

    Args:
        num_processes: how many processes share this machine's cores.

    Raises:
        as `predict`.
    """
    predictor = open_request_predictor(request, device, num_processes)
    job = ChunkJob(
        model=hash_predictor(predictor),
        pictures=hash_paths(request.pictures),
        count=len(request.pictures),
        size=request.chunk_size,
        sets=request.sets,
        skip_bad=request.skip_bad,
        version=importlib.metadata.version("vitrail"),
    )
    return predictor, ChunkFolder(request.to.with_name(request.to.name + FOLDER_SUFFIX), job, request.pictures)


def open_request_predictor(request: ChunkedPredictRequest, device: str, num_processes: int = 1) -> Predictor:
    """The model alone.

    Raises:
        as `predict`.
    """
    predictor = apply_image_options(open_predictor(request.model, device, num_processes), request.changes or {})
    if request.sets:
        require_sets_support(predictor.task, predictor.decisions)
    return predictor


def predict_chunk_batches(
    predictor: Predictor, images: Sequence[Path], request: ChunkedPredictRequest
) -> Iterator[TaskPredictions]:
    """The images of a part batch by batch, in the batches of a prediction without parts."""
    for batch in predictor.predict_batches(images, request.skip_bad):
        yield add_prediction_sets(batch, predictor.decisions) if request.sets else batch


def join_if_complete(
    parts: ChunkFolder, to: Path, task: Task, num_written: int, num_reused: int, group: GroupInfo
) -> ChunkedPredictResult:
    """Join the parts if none is missing, and say how things stand."""
    missing = parts.list_missing()
    whole = None if missing else parts.join_chunks(to, task)
    return ChunkedPredictResult(
        folder=parts.folder,
        to=to,
        num_chunks=parts.job.num_chunks,
        num_written=num_written,
        num_reused=num_reused,
        num_missing=len(missing),
        num_rows=None if whole is None else whole.rows,
        skipped=() if whole is None else whole.skipped,
        rank=group.rank,
        world_size=group.world_size,
    )


def check_output_path(to: Path | None) -> Path:
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


def _predict_and_write(
    parts: ChunkFolder, chunk_indices: Sequence[int], predictor: Predictor, request: ChunkedPredictRequest
) -> Iterator[TaskPredictions]:
    """Every batch as it is answered; a part is written with its last one."""
    for number in chunk_indices:
        pictures = parts.chunk_images(number)
        before = hash_file_stats(pictures)
        batches: list[TaskPredictions] = []
        for batch in predict_chunk_batches(predictor, pictures, request):
            batches.append(batch)
            yield batch
        parts.write_chunk(number, ChunkContent.from_predictions(concat_predictions(batches), before))


def _local_device(requested: str, group: GroupInfo) -> str:
    """Every process takes the GPU of its number on this machine, where nobody has named one."""
    if group.world_size == 1 or requested not in ("auto", "cuda"):
        return requested
    import torch

    if not torch.cuda.is_available():
        return requested
    return f"cuda:{group.local_rank % torch.cuda.device_count()}"


# `vitrail predict --engine ray`: the parts of a prediction answered by the workers of a Ray cluster, through Ray
# Data.
#
# The parts are those of `sharing`, written by the process that asked: the workers need the model and the images
# under the same names as here, and no place to write to. A worker that dies is started again by Ray, with the part at
# hand.

PATH_SEPARATOR = b"\0"
"""Between the paths of a part's images, where no path holds it."""
ERROR_CLASSES = {kind.__name__: kind for kind in VitrailError.__subclasses__()}


def predict_on_ray(request: ChunkedPredictRequest) -> ChunkedPredictResult:
    """Answer all parts that are not whole on the cluster of RAY_ADDRESS, on one that runs here, or on one of our own.

    A worker for every GPU of the cluster, else for every processor core, has the model once and answers part by part.

    Raises:
        UsageError: Ray is not installed, or this process was started with others.
        WorkerError: the cluster failed, or has another model under this name than this machine.
        as `sharing.predict`.
    """
    if group_from_env().world_size > 1:
        raise UsageError(
            "--engine ray hands out the work itself, and this process was started with others (RANK and WORLD_SIZE are "
            "set). Start it alone, or leave --engine out."
        )
    ray = _import_ray()
    predictor, parts = open_chunk_folder(request, "cpu")
    share = parts.chunks_for_rank(0, 1)
    todo = [number for number in share if not parts.is_complete(number)]
    if todo:
        written = _write_ray_chunks(ray, parts, todo, request)
        with redirect_stdout(sys.stderr):  # what Ray has to say is no answer
            sizes = {number: len(parts.chunk_images(number)) for number in todo}
            deque(progress.track_progress(written, sum(sizes.values()), sizes.__getitem__), maxlen=0)
    return join_if_complete(parts, request.to, predictor.task, len(todo), len(share) - len(todo), GroupInfo())


class RayWorker:
    """What Ray makes once on a worker, and then asks for part after part.

    Args:
        asked: the prediction; its images come part by part.
        here: the working folder of who asked, so that names mean the same.
        identity: of the model that must answer.
    """

    def __init__(self, request: ChunkedPredictRequest, working_folder: str, identity: str):
        self._request, self._working_folder, self._identity = request, working_folder, identity

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with `part` and `paths` becomes one with `part`, `table` and `facts`, or with an error in `facts`."""
        try:
            made = self._predict_chunk([Path(os.fsdecode(path)) for path in row["paths"].split(PATH_SEPARATOR)])
            facts = {"head": made.header_bytes, "rows": made.rows, "skipped": made.skipped, "seen": made.file_stats}
            return {"part": row["part"], "table": made.table, "facts": json.dumps(facts)}
        except (VitrailError, OSError) as error:
            facts = {"error": type(error).__name__, "text": str(error)}
            return {"part": row["part"], "table": b"", "facts": json.dumps(facts)}

    def _predict_chunk(self, images: Sequence[Path]) -> ChunkContent:
        predictor, before = self._predictor, hash_file_stats(images)
        return ChunkContent.from_predictions(
            concat_predictions(list(predict_chunk_batches(predictor, images, self._request))), before
        )

    @cached_property
    def _predictor(self) -> Predictor:
        os.chdir(self._working_folder)
        predictor = open_request_predictor(
            self._request, self._request.device, num_processes=os.cpu_count() or 1
        )  # a thread for a core
        if hash_predictor(predictor) != self._identity:
            raise WorkerError(
                f"{self._request.model} is another model on the worker {os.uname().nodename} than where the prediction "
                "was started. Give a path that is the same file everywhere."
            )
        return predictor


def _import_ray() -> ModuleType:
    """Ray with Ray Data.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import ray
        import ray.data.exceptions
        import ray.exceptions
    except ImportError as error:
        raise UsageError("--engine ray needs Ray and Ray Data: pip install 'vitrail[ray]'.") from error
    module: ModuleType = ray
    return module


def _write_ray_chunks(
    ray: Any, parts: ChunkFolder, chunk_indices: Sequence[int], request: ChunkedPredictRequest
) -> Iterator[int]:
    """The number of every part as it comes back and is written."""
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start tells nobody of it
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        for row in _run_ray_workers(ray, parts, chunk_indices, request):
            facts = json.loads(row["facts"])
            if "error" in facts:
                raise ERROR_CLASSES.get(facts["error"], WorkerError)(facts["text"])
            skipped = tuple((path, reason) for path, reason in facts["skipped"])
            made = ChunkContent(
                table=row["table"],
                header_bytes=facts["head"],
                rows=facts["rows"],
                skipped=skipped,
                file_stats=facts["seen"],
            )
            parts.write_chunk(int(row["part"]), made)
            yield int(row["part"])
    except (ray.exceptions.RayError, ray.data.exceptions.SystemException) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkerError(
            f"The Ray cluster could not go on ({said[0][:200].rstrip('.')}); what was answered is kept in "
            f"{parts.folder}. Give the same command again."
        ) from error
    finally:
        if ours:
            ray.shutdown()


def _run_ray_workers(
    ray: Any, parts: ChunkFolder, chunk_indices: Sequence[int], request: ChunkedPredictRequest
) -> Iterator[dict[str, Any]]:
    """What the workers answer, in the order in which they are done."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    there = ray.cluster_resources()
    gpus = 0 if request.device == "cpu" else int(there.get("GPU", 0))
    workers = min(len(chunk_indices), gpus or max(1, int(there.get("CPU", 1))))
    items = [
        {"part": number, "paths": PATH_SEPARATOR.join(os.fsencode(path) for path in parts.chunk_images(number))}
        for number in chunk_indices
    ]
    rows = ray.data.from_items(items, override_num_blocks=len(items)).map(
        RayWorker,
        fn_constructor_args=(replace(request, pictures=()), str(Path.cwd()), parts.job.model),
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=None if gpus else 1,
        num_gpus=1 if gpus else None,
    )
    yield from rows.iter_rows()
