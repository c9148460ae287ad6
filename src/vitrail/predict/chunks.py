"""Predictions in chunks: each chunk is complete or absent, with a JSON record beside it; joined in the images' order.

A folder of chunks belongs to one `ChunkJob`: one model, one list of images, one chunk size. Several processes write
into it at once, each its own chunks. Any process may join them when all are complete: the bytes are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..data.source import Task
from ..errors import UsageError
from ..evaluate import tables
from ..evaluate.inference import InferenceSettings
from ..evaluate.predictions import TaskPredictions, read_predictions_csv
from ..files import atomic
from ..files.checksums import sha256

FOLDER_SUFFIX = ".parts"
"""Of the folder, after the name of the joined file."""
JOB_FILE = "parts.json"
BATCH_SIZE = InferenceSettings.batch_size
"""Images that go through the model at once, with and without chunks: so that the last digit is the same."""
DEFAULT_CHUNK_SIZE = 16 * BATCH_SIZE
JOB_FIELD_MESSAGES = {
    "model": "another model, or other page and size limits for opening files",
    "pictures": "another list of pictures",
    "count": "another list of pictures",
    "size": "another --part-size",
    "sets": "with and without --sets",
    "skip_bad": "with and without --skip-bad",
    "version": "another version of Vitrail",
}
"""What the error says of each field in which two jobs differ."""


@dataclass(frozen=True, kw_only=True)
class ChunkJob:
    """What all chunks of a folder belong to.

    Raises:
        UsageError: a chunk size that is no whole number of batches.
    """

    model: str
    """As `hash_predictor` returns it."""
    pictures: str
    """As `hash_paths` returns it."""
    count: int
    """Images in the list."""
    size: int = DEFAULT_CHUNK_SIZE
    """Images in a chunk; the last one has what is left."""
    sets: bool = False
    skip_bad: bool = False
    version: str = ""
    """Of Vitrail."""

    def __post_init__(self) -> None:
        if self.size < BATCH_SIZE or self.size % BATCH_SIZE:
            near = max(BATCH_SIZE, round(self.size / BATCH_SIZE) * BATCH_SIZE)
            raise UsageError(
                f"--part-size must be a multiple of {BATCH_SIZE}, so that pictures go through the model in the same "
                f"batches as without parts and get the same answers to the last digit. Got {self.size}; use {near}."
            )

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return -(-self.count // self.size)

    @property
    def digest(self) -> str:
        """SHA-256 of all fields, which every chunk's record holds."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ChunkContent:
    """The content of one chunk."""

    table: bytes
    """A CSV file of its rows, header and all."""
    header_bytes: int
    rows: int
    skipped: tuple[tuple[str, str], ...]
    """(path, reason) of images that were left out on purpose."""
    file_stats: str
    """Of the images before inference, by `hash_file_stats`."""

    @classmethod
    def from_predictions(cls, predictions: TaskPredictions, file_stats: str) -> ChunkContent:
        """The content of a chunk with these predictions."""
        return cls(
            table=predictions.csv_bytes(),
            header_bytes=len(predictions.csv_header_bytes()),
            rows=len(predictions),
            skipped=predictions.skipped,
            file_stats=file_stats,
        )


@dataclass(frozen=True, kw_only=True)
class JoinedChunks:
    """The rows of the joined file, and the images that were left out."""

    rows: int
    skipped: tuple[tuple[str, str], ...]


class ChunkFolder:
    """The folder with the chunks of a job; it is made if need be.

    Raises:
        UsageError: the folder holds chunks of another job, or something else; the message says in what they differ.
        ResourceError: the disk is full or read-only, or permission is missing.
    """

    def __init__(self, folder: Path, job: ChunkJob, images: Sequence[Path]):
        self.folder, self.job = Path(folder), job
        self._images = images
        self._began = time.time()
        if not (self.folder / JOB_FILE).is_file():
            ours = (".", "part")  # unfinished files, and what another process has written in the meantime
            exists, is_folder = self.folder.exists(), self.folder.is_dir()
            if exists and not (is_folder and all(path.name.startswith(ours) for path in self.folder.iterdir())):
                raise UsageError(
                    f"{self.folder} is where parts would lie, and it holds something else. Choose another --to, or "
                    "move that away."
                )
            atomic.write_json(self.folder / JOB_FILE, asdict(job))
        theirs, job_fields = _read_json_object(self.folder / JOB_FILE), asdict(job)
        differing = [name for name, value in job_fields.items() if theirs.get(name) != value]
        if differing:
            reasons = dict.fromkeys(JOB_FIELD_MESSAGES[name] for name in differing)
            raise UsageError(
                f"{self.folder} holds parts of another prediction ({', '.join(reasons)}), which cannot be joined "
                "with these. Repeat that command as it was, choose another --to, or delete that folder."
            )

    def chunks_for_rank(self, rank: int, world_size: int) -> range:
        """The numbers of a process's chunks, complete or not."""
        return range(rank, self.job.num_chunks, world_size)

    def chunk_images(self, index: int) -> Sequence[Path]:
        """The images of a chunk."""
        return self._images[index * self.job.size : (index + 1) * self.job.size]

    def is_complete(self, index: int, check_images: bool = True) -> bool:
        """Whether a chunk of this job is there with the content that was written.

        Args:
            check_images: also that its images still have the same sizes and dates.
        """
        facts = self._read_record(index)
        if facts.get("job") != self.job.digest:
            return False
        table = self._table_path(index)
        if not table.is_file() or sha256(table) != facts.get("sha256"):
            return False
        return not check_images or facts.get("seen") == hash_file_stats(self.chunk_images(index))

    def list_missing(self) -> list[int]:
        """The chunks that are not complete yet; their content is checked only if every chunk has a record."""
        numbers = range(self.job.num_chunks)
        absent = [number for number in numbers if not self._record_path(number).is_file()]
        return absent or [number for number in numbers if not self.is_complete(number, check_images=False)]

    def write_chunk(self, index: int, content: ChunkContent) -> None:
        """Write a chunk: the table, then the record that makes it count.

        Raises:
            ResourceError: the disk is full or read-only, or permission is missing.
        """
        facts = {
            "part": index,
            "first": index * self.job.size,
            "rows": content.rows,
            "skipped": content.skipped,
            "head": content.header_bytes,
            "sha256": hashlib.sha256(content.table).hexdigest(),
            "seen": content.file_stats,
            "job": self.job.digest,
        }
        atomic.write_bytes(self._table_path(index), content.table)
        atomic.write_bytes(self._record_path(index), json.dumps(facts, indent=2).encode() + b"\n")

    def join_chunks(self, out: Path, task: Task) -> JoinedChunks:
        """Write all chunks as one file, with the bytes that a single process would have written.

        Args:
            out: with an extension that `tables.check_table_extension` allows; chunks are always CSV.

        Raises:
            UsageError: another ending, or Parquet without pyarrow.
            ResourceError: the disk is full or read-only, or permission is missing.
        """
        all_facts = [self._read_record(number) for number in range(self.job.num_chunks)]
        if out.suffix.lower() == tables.CSV_EXTENSION:
            with atomic.write_file(out) as joined:
                for number, facts in enumerate(all_facts):
                    with self._table_path(number).open("rb") as table:
                        table.seek(facts["head"] if number else 0)  # the first one with its header
                        shutil.copyfileobj(table, joined)
        else:
            tables.write_tables(
                out, (read_predictions_csv(self._table_path(number), task) for number in range(self.job.num_chunks))
            )
        atomic.remove_leftovers(self.folder, before=self._began)
        skipped = tuple((path, reason) for facts in all_facts for path, reason in facts["skipped"])
        return JoinedChunks(rows=sum(facts["rows"] for facts in all_facts), skipped=skipped)

    def _table_path(self, index: int) -> Path:
        return self.folder / f"part-{index:05d}.csv"

    def _record_path(self, index: int) -> Path:
        return self.folder / f"part-{index:05d}.json"

    def _read_record(self, index: int) -> dict[str, Any]:
        return _read_json_object(self._record_path(index))


def hash_paths(images: Iterable[Path]) -> str:
    """SHA-256 of the paths of images, in their order."""
    digest = hashlib.sha256()
    for path in images:
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()


def hash_file_stats(images: Iterable[Path]) -> str:
    """SHA-256 of the sizes and dates of files; one that is not there counts too."""
    digest = hashlib.sha256()
    for path in images:
        try:
            status = os.stat(path)
            digest.update(f"{status.st_size} {status.st_mtime_ns};".encode())
        except OSError:
            digest.update(b"gone;")
    return digest.hexdigest()


def _read_json_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is absent or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
