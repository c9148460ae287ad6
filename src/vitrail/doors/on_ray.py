"""`vitrail predict --engine ray`: the parts of a prediction answered by the workers of a Ray cluster, through Ray Data.

The parts are those of `sharing`, written by the process that asked: the workers need the model and the pictures under
the same names as here, and no place to write to. A worker that dies is started again by Ray, with the part at hand.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError, VitrailError, WorkerError
from ..evaluate.prediction_tables import concat_predictions
from ..predict.chunks import ChunkContent, ChunkFolder, hash_file_stats
from ..predict.predictor import Predictor, hash_predictor
from ..train.distributed.collectives import GroupInfo, group_from_env
from . import counting
from .sharing import Asked, Outcome, answered, begin, conclude, opened

SEPARATOR = b"\0"
"""Between the paths of a part's pictures, where no path holds it."""
FAMILY = {kind.__name__: kind for kind in VitrailError.__subclasses__()}


def predict(asked: Asked) -> Outcome:
    """Answer all parts that are not whole on the cluster of RAY_ADDRESS, on one that runs here, or on one of our own.

    A worker for every GPU of the cluster, else for every processor core, has the model once and answers part by part.

    Raises:
        UsageError: Ray is not installed, or this process was started with others.
        WorkerError: the cluster failed, or has another model under this name than this machine.
        as `sharing.predict`.
    """
    if group_from_env().world > 1:
        raise UsageError(
            "--engine ray hands out the work itself, and this process was started with others (RANK and WORLD_SIZE are "
            "set). Start it alone, or leave --engine out."
        )
    ray = _ray()
    predictor, parts = begin(asked, "cpu")
    share = parts.share(0, 1)
    todo = [number for number in share if not parts.is_whole(number)]
    if todo:
        written = _written(ray, parts, todo, asked)
        with redirect_stdout(sys.stderr):  # what Ray has to say is no answer
            sizes = {number: len(parts.pictures(number)) for number in todo}
            deque(counting.counted(written, sum(sizes.values()), sizes.__getitem__), maxlen=0)
    return conclude(parts, asked.to, predictor.task, len(todo), len(share) - len(todo), GroupInfo())


class Worker:
    """What Ray makes once on a worker, and then asks for part after part.

    Args:
        asked: the prediction; its pictures come part by part.
        here: the working folder of who asked, so that names mean the same.
        identity: of the model that must answer.
    """

    def __init__(self, asked: Asked, here: str, identity: str):
        self._asked, self._here, self._identity = asked, here, identity

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with `part` and `paths` becomes one with `part`, `table` and `facts`, or with an error in `facts`."""
        try:
            made = self._made([Path(os.fsdecode(path)) for path in row["paths"].split(SEPARATOR)])
            facts = {"head": made.head, "rows": made.rows, "skipped": made.skipped, "seen": made.seen}
            return {"part": row["part"], "table": made.table, "facts": json.dumps(facts)}
        except (VitrailError, OSError) as error:
            facts = {"error": type(error).__name__, "text": str(error)}
            return {"part": row["part"], "table": b"", "facts": json.dumps(facts)}

    def _made(self, pictures: Sequence[Path]) -> ChunkContent:
        predictor, before = self._predictor, hash_file_stats(pictures)
        return ChunkContent.of(concat_predictions(list(answered(predictor, pictures, self._asked))), before)

    @cached_property
    def _predictor(self) -> Predictor:
        os.chdir(self._here)
        predictor = opened(self._asked, self._asked.device, sharing=os.cpu_count() or 1)  # a thread for a core
        if hash_predictor(predictor) != self._identity:
            raise WorkerError(
                f"{self._asked.model} is another model on the worker {os.uname().nodename} than where the prediction "
                "was started. Give a path that is the same file everywhere."
            )
        return predictor


def _ray() -> ModuleType:
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


def _written(ray: Any, parts: ChunkFolder, todo: Sequence[int], asked: Asked) -> Iterator[int]:
    """The number of every part as it comes back and is written."""
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start tells nobody of it
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        for row in _rows(ray, parts, todo, asked):
            facts = json.loads(row["facts"])
            if "error" in facts:
                raise FAMILY.get(facts["error"], WorkerError)(facts["text"])
            skipped = tuple((path, reason) for path, reason in facts["skipped"])
            made = ChunkContent(
                table=row["table"], head=facts["head"], rows=facts["rows"], skipped=skipped, seen=facts["seen"]
            )
            parts.write(int(row["part"]), made)
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


def _rows(ray: Any, parts: ChunkFolder, todo: Sequence[int], asked: Asked) -> Iterator[dict[str, Any]]:
    """What the workers answer, in the order in which they are done."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    there = ray.cluster_resources()
    gpus = 0 if asked.device == "cpu" else int(there.get("GPU", 0))
    workers = min(len(todo), gpus or max(1, int(there.get("CPU", 1))))
    items = [
        {"part": number, "paths": SEPARATOR.join(os.fsencode(path) for path in parts.pictures(number))}
        for number in todo
    ]
    rows = ray.data.from_items(items, override_num_blocks=len(items)).map(
        Worker,
        fn_constructor_args=(replace(asked, pictures=()), str(Path.cwd()), parts.job.model),
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=None if gpus else 1,
        num_gpus=1 if gpus else None,
    )
    yield from rows.iter_rows()
