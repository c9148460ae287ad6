"""Chunked `vitrail predict`: work shared by several processes or a Ray cluster, and resumable."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..data.parallel import make_id
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
from ..predict.folder_targets import add_folder_targets
from ..predict.predictor import Predictor, hash_predictor
from ..train.distributed.collectives import GroupInfo, group_from_env
from ..version import __version__
from . import progress
from .prediction import apply_image_options, open_predictor


@dataclass(frozen=True, kw_only=True)
class ChunkedPredictRequest:
    """Options of a chunked prediction."""

    model: str
    pictures: Sequence[Path]
    folders: tuple[Path, ...] = ()
    """Folders that were named, below which folders may be called as classes."""
    to: Path
    """The output file; chunks are in a folder beside it, with the suffix `.parts`."""
    chunk_size: int = DEFAULT_CHUNK_SIZE
    """Images in a chunk."""
    sets: bool = False
    skip_bad: bool = False
    device: str = "auto"
    precision: str = "float32"
    changes: Mapping[str, str] | None = None
    """How files are opened."""
    id_folder: str | None = None
    """Folder below which the paths of files are their ids, see `find_id_folder`: parts are named as the whole is."""


@dataclass(frozen=True, kw_only=True)
class ChunkedPredictResult:
    """Result of a chunked prediction in this process."""

    folder: Path
    """The chunk folder."""
    to: Path
    num_chunks: int
    """All chunks of the job."""
    num_written: int
    """Chunks written by this process now."""
    num_reused: int
    """Chunks of this process that were complete before."""
    num_missing: int
    """Chunks that other processes have still to write."""
    num_rows: int | None
    """Rows of the output file; None while chunks are missing."""
    skipped: tuple[tuple[str, str], ...]
    """(path, reason) of all skipped images, once the output file is complete."""
    rank: int = 0
    world_size: int = 1

    def summarize(self) -> str:
        """The result as a sentence."""
        if self.num_rows is not None:
            from_parts = f"from {format_count(self.num_chunks, 'part')}; {self.folder} may be deleted now"
            return f"{format_count(self.num_rows, 'row')} written to {self.to}, {from_parts}"
        return (
            f"Rank {self.rank} of {self.world_size} has written its share; still to come are {self.num_missing:,} of "
            f"{format_count(self.num_chunks, 'part')} in {self.folder}. The last process to end joins them; if one "
            "died, repeat the same command"
        )

    def to_json(self) -> dict[str, object]:
        """The result as plain values."""
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


def predict_in_chunks(request: ChunkedPredictRequest) -> ChunkedPredictResult:
    """Predict the incomplete chunks of this process, and join all chunks if none is missing then.

    Processes do not communicate: chunk n belongs to rank n modulo their number, and progress is in the folder. A killed
    process loses only its current chunk, and any number of processes may continue.

    Raises:
        UsageError: the folder holds chunks of another prediction; a chunk size that is no multiple of a batch.
        DataError: an image cannot be read, unless `skip_bad`; the chunks before it are kept.
        as `open_predictor`.
    """
    group = group_from_env()
    device = request.device
    if group.world_size > 1 and device in ("auto", "cuda"):  # the GPU of this process's local rank
        import torch

        if torch.cuda.is_available():
            device = f"cuda:{group.local_rank % torch.cuda.device_count()}"
    predictor, chunks = open_chunk_folder(request, device, group.local_world_size)
    own = chunks.chunks_for_rank(group.rank, group.world_size)
    todo = [index for index in own if not chunks.is_complete(index)]
    batches = _predict_and_write(chunks, todo, predictor, request)
    total = sum(len(chunks.chunk_images(index)) for index in todo)
    progress.print_notes(() if group.rank else predictor.notes)
    deque(batches if group.rank else progress.track_batches(batches, total), maxlen=0)
    return join_if_complete(request, chunks, predictor.task, own, todo, group)


def open_chunk_folder(
    request: ChunkedPredictRequest, device: str, num_processes: int = 1
) -> tuple[Predictor, ChunkFolder]:
    """Open the model and the chunk folder, checked to belong to the same job.

    Args:
        num_processes: processes that share this machine's cores.

    Raises:
        as `predict_in_chunks`.
    """
    predictor = open_request_predictor(request, device, num_processes)
    job = ChunkJob(
        model=hash_predictor(predictor),
        pictures=hash_paths([*request.pictures, *request.folders]),
        count=len(request.pictures),
        size=request.chunk_size,
        sets=request.sets,
        skip_bad=request.skip_bad,
        version=__version__,
    )
    return predictor, ChunkFolder(request.to.with_name(request.to.name + FOLDER_SUFFIX), job, request.pictures)


def open_request_predictor(request: ChunkedPredictRequest, device: str, num_processes: int = 1) -> Predictor:
    """Open the model of a request.

    Raises:
        as `predict_in_chunks`.
    """
    predictor = open_predictor(request.model, device, request.precision, num_processes)
    predictor = apply_image_options(predictor, request.changes or {})
    if request.sets:
        require_sets_support(predictor.task, predictor.decisions)
    return predictor


def predict_chunk_batches(
    predictor: Predictor, images: Sequence[Path], request: ChunkedPredictRequest
) -> Iterator[TaskPredictions]:
    """Predictions for a chunk's images, in the same batches as without chunks."""
    for predicted in predictor.predict_batches(images, request.skip_bad):
        named = replace(predicted, ids=tuple(make_id(Path(path), request.id_folder) for path in predicted.paths))
        batch = add_folder_targets(named, request.folders)
        yield add_prediction_sets(batch, predictor.decisions, predictor.task) if request.sets else batch


def join_if_complete(
    request: ChunkedPredictRequest,
    chunks: ChunkFolder,
    task: Task,
    own: Sequence[int],
    written: Sequence[int],
    group: GroupInfo,
) -> ChunkedPredictResult:
    """Join the chunks if none is missing, and return the result.

    Args:
        own, written: indices of this process's chunks, and of those that it has written now.
    """
    missing = chunks.list_missing()
    joined = None if missing else chunks.join_chunks(request.to, task)
    return ChunkedPredictResult(
        folder=chunks.folder,
        to=request.to,
        num_chunks=chunks.job.num_chunks,
        num_written=len(written),
        num_reused=len(own) - len(written),
        num_missing=len(missing),
        num_rows=None if joined is None else joined.rows,
        skipped=() if joined is None else joined.skipped,
        rank=group.rank,
        world_size=group.world_size,
    )


def check_output_path(to: Path | None) -> Path:
    """Check the output file of a chunked prediction.

    Raises:
        UsageError: no file, or an unsupported extension.
    """
    if to is None:
        raise UsageError(
            "Answers in parts lie beside the file that they become. Name it with --to FILE.csv; several processes that "
            "were started together (torchrun, srun, RANK and WORLD_SIZE) and --engine ray always answer in parts."
        )
    check_table_extension(to)
    return to


def _predict_and_write(
    chunks: ChunkFolder, chunk_indices: Sequence[int], predictor: Predictor, request: ChunkedPredictRequest
) -> Iterator[TaskPredictions]:
    """Yield every batch of predictions; a chunk is written after its last batch."""
    for index in chunk_indices:
        images = chunks.chunk_images(index)
        before = hash_file_stats(images)
        batches: list[TaskPredictions] = []
        for batch in predict_chunk_batches(predictor, images, request):
            batches.append(batch)
            yield batch
        chunks.write_chunk(index, ChunkContent.from_predictions(concat_predictions(batches), before))


# -- `--engine ray`: chunks predicted by the workers of a Ray cluster, through Ray Data.

PATH_SEPARATOR = b"\0"
"""Separates the paths of a chunk's images; no path contains it."""
ERROR_CLASSES = {kind.__name__: kind for kind in VitrailError.__subclasses__()}


def predict_on_ray(request: ChunkedPredictRequest) -> ChunkedPredictResult:
    """Predict all incomplete chunks on the cluster of RAY_ADDRESS, on one that runs here, or on a new local one.

    A worker for every GPU of the cluster, else for every CPU core, loads the model once and predicts chunk by chunk.
    This process writes the chunks: workers need the model and the images under the same paths, and no place to write
    to. Ray restarts a worker that dies, with its current chunk.

    Raises:
        UsageError: Ray is not installed, or this process is one of several.
        WorkerError: the cluster failed, or its model of this name differs from this machine's.
        as `predict_in_chunks`.
    """
    if group_from_env().world_size > 1:
        raise UsageError(
            "--engine ray hands out the work itself, and this process was started with others (RANK and WORLD_SIZE are "
            "set). Start it alone, or leave --engine out."
        )
    try:
        import ray
        import ray.data.exceptions
        import ray.exceptions
    except ImportError as error:
        raise UsageError("--engine ray needs Ray and Ray Data: pip install 'vitrail[ray]'.") from error
    predictor, chunks = open_chunk_folder(request, "cpu")
    progress.print_notes(predictor.notes)
    own = chunks.chunks_for_rank(0, 1)
    todo = [index for index in own if not chunks.is_complete(index)]
    if todo:
        written = _write_ray_chunks(ray, chunks, todo, request)
        with redirect_stdout(sys.stderr):  # Ray prints to standard output, which is for results
            sizes = {index: len(chunks.chunk_images(index)) for index in todo}
            deque(progress.track_progress(written, sum(sizes.values()), sizes.__getitem__), maxlen=0)
    return join_if_complete(request, chunks, predictor.task, own, todo, GroupInfo())


class RayWorker:
    """A Ray actor that predicts chunk after chunk.

    Args:
        request: the prediction, without its images, which come chunk by chunk.
        working_folder: the working folder of the driver, to which relative paths refer.
        identity: hash of the driver's model, by `hash_predictor`.
    """

    def __init__(self, request: ChunkedPredictRequest, working_folder: str, identity: str):
        self._request, self._working_folder, self._identity = request, working_folder, identity

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with `part` and `paths` becomes one with `part`, `table` and `facts`, or with an error in `facts`."""
        try:
            images = [Path(os.fsdecode(path)) for path in row["paths"].split(PATH_SEPARATOR)]
            predictor, before = self._predictor, hash_file_stats(images)
            batches = list(predict_chunk_batches(predictor, images, self._request))
            chunk = ChunkContent.from_predictions(concat_predictions(batches), before)
            table, facts = chunk.table, {name: value for name, value in vars(chunk).items() if name != "table"}
        except (VitrailError, OSError) as error:
            table, facts = b"", {"error": type(error).__name__, "text": str(error)}
        return {"part": row["part"], "table": table, "facts": json.dumps(facts)}

    @cached_property
    def _predictor(self) -> Predictor:
        os.chdir(self._working_folder)
        cores = os.cpu_count() or 1  # one worker and one thread for each
        predictor = open_request_predictor(self._request, self._request.device, num_processes=cores)
        if hash_predictor(predictor) != self._identity:
            raise WorkerError(
                f"{self._request.model} is another model on the worker {os.uname().nodename} than where the prediction "
                "was started. Give a path that is the same file everywhere."
            )
        return predictor


def _write_ray_chunks(
    ray: Any, chunks: ChunkFolder, chunk_indices: Sequence[int], request: ChunkedPredictRequest
) -> Iterator[int]:
    """Write every chunk as it comes back, and yield its index."""
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry from a cluster that we start
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        for row in _run_ray_workers(ray, chunks, chunk_indices, request):
            facts = json.loads(row["facts"])
            if "error" in facts:
                raise ERROR_CLASSES.get(facts["error"], WorkerError)(facts["text"])
            facts["skipped"] = tuple((path, reason) for path, reason in facts["skipped"])
            chunk = ChunkContent(table=row["table"], **facts)
            chunks.write_chunk(int(row["part"]), chunk)
            yield int(row["part"])
    except (ray.exceptions.RayError, ray.data.exceptions.SystemException) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkerError(
            f"The Ray cluster could not go on ({lines[0][:200].rstrip('.')}); what was answered is kept in "
            f"{chunks.folder}. Give the same command again."
        ) from error
    finally:
        if ours:
            ray.shutdown()


def _run_ray_workers(
    ray: Any, chunks: ChunkFolder, chunk_indices: Sequence[int], request: ChunkedPredictRequest
) -> Iterator[dict[str, Any]]:
    """Rows of the workers, in the order of completion."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    resources = ray.cluster_resources()
    gpus = 0 if request.device == "cpu" else int(resources.get("GPU", 0))
    workers = min(len(chunk_indices), gpus or max(1, int(resources.get("CPU", 1))))
    items = [
        {"part": number, "paths": PATH_SEPARATOR.join(os.fsencode(path) for path in chunks.chunk_images(number))}
        for number in chunk_indices
    ]
    rows = ray.data.from_items(items, override_num_blocks=len(items)).map(
        RayWorker,
        fn_constructor_args=(replace(request, pictures=()), str(Path.cwd()), chunks.job.model),
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=None if gpus else 1,
        num_gpus=1 if gpus else None,
    )
    yield from rows.iter_rows()
