"""`vitrail predict`: one row per picture, as CSV, JSON lines or Parquet."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...errors import UsageError
from ...formatting import format_count
from ...runtime import PrecisionName
from ...services import progress
from ..arguments import Command, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...evaluate.predictions import TaskPredictions
    from ...spec import ImageSpec


@dataclass(frozen=True, kw_only=True)
class Predict(Command):
    """Answer pictures: one row each, with the probability of every class or label, the value of every number, the
    score and p-value of an anomaly model, or the area of every class of a segmentation model.

    PATHS are pictures, folders, patterns, @list.txt with one path a line, or - for such lines on standard input.
    Folders are searched to the bottom; the target of a picture in a folder with the name of a class is that class.

      vitrail predict RUN photo.jpg
      vitrail predict RUN "films/**/*.png" --to answers.csv
      vitrail predict RUN films/ --to answers.parquet
      vitrail predict RUN films/ --sets
      vitrail predict RUN films.csv --group patient --to answers.csv
      vitrail predict RUN films/ --to answers.csv --part-size 1024
      vitrail predict flowers.onnx photo.jpg
      vitrail predict RUN films/ --engine openvino
      vitrail predict RUN parts/ --to answers.csv --maps maps/
      vitrail predict RUN fields/ --to areas.csv --masks masks/
      find films -name '*.png' | vitrail predict RUN -
    """

    POSITIONAL = ("model", "paths")
    DOTTED = "changes"
    SECTIONS = ("image",)

    model: str
    """A run folder, a bundle, a folder of transformers or timm that names its classes, hf:OWNER/NAME, or FILE.onnx or
    FILE.xml as `vitrail export` writes them."""
    paths: tuple[str, ...]
    """Pictures, folders, patterns, @list.txt or -."""
    to: Path | None = None
    """Write to this file instead of CSV to standard output: .csv, .jsonl (an object a line) or .parquet."""
    group: str = ""
    """Of a run with --case, also answer the pictures of a case together, into cases.csv beside --to: folder, where each
    folder is a case, or a column of the manifest that PATHS names."""
    sets: bool = False
    """Also the classes, or the range of each number, that hold the truth in 95 % of all cases
    (1 - decisions.conformal_alpha)."""
    maps: Path | None = None
    """Of an anomaly model, also write into this folder for each picture where it differs from good ones: NAME.png, the
    picture under its map, and NAME.map.png with 16 bits."""
    masks: Path | None = None
    """Of a segmentation model, also write into this folder for each picture NAME.png, the class of every pixel."""
    engine: Literal["local", "onnx", "openvino", "ray"] = "local"
    """Where the model answers: here; onnx, openvino: by ONNX Runtime from the run's exports/model.onnx, or by OpenVINO
    from its exports/model.xml, without torch, as FILE.onnx and FILE.xml always do; ray: on the workers of a Ray
    cluster."""
    part_size: int = 0
    """Answer in parts of so many pictures, which are kept beside --to and not made again when the same command is
    given again. Processes that were started together share them, and ray its workers: of 1,024 pictures then."""
    skip_bad: bool = False
    """Leave out pictures that cannot be read and name them, instead of stopping."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: PrecisionName = "float32"
    """Number format of the answers: float32 is the same on every machine, bf16 and fp16 are faster on some."""
    json: bool = False
    """Print the rows as JSON; of an answer in parts, how it stands."""
    changes: tuple[tuple[str, str], ...] = ()
    """How files are opened, where that is no part of the model: --image.page 2, --image.max_pixels 100000000."""

    def run(self) -> int:
        """Predict and write."""
        if self.to is not None:
            from ...evaluate.tables import check_table_path

            self._check_to(self.to)
            replaced = check_table_path(self.to)
            progress.print_notes([replaced] if replaced and not self._is_chunked() else [])
        if self.group:
            self._check_group()
        if not self.paths:
            raise UsageError("PATHS are missing: pictures, folders, patterns, @list.txt or - for standard input.")
        from ...predict.folder_targets import add_folder_targets, list_named_folders
        from ...predict.image_paths import expand_case_paths, expand_image_paths

        if self.masks is not None and self._is_chunked():
            raise UsageError("--masks are written in one process: leave out --part-size and --engine ray.")
        if self.maps is not None and (self._file_engine or self._is_chunked()):
            raise UsageError("--maps are drawn by torch in one process: name the run, without --part-size or --engine.")
        if self._is_chunked():
            return self._predict_in_chunks()
        groups: list[str] = []
        if self.group:
            images, groups, notes = expand_case_paths(self.paths, self.group)
            progress.print_notes(notes)
        else:
            images = expand_image_paths(self.paths)
        limits: list[str] = []
        if self._file_engine:
            predictions = self._predict_with_file(images)
        else:
            predictions, limits = self._predict_with_torch(images, groups)
        predictions = add_folder_targets(predictions, list_named_folders(self.paths))
        self._print_target_notes(predictions)
        if self.to is not None:
            predictions.write(self.to)
        if self._cases_path is not None and predictions.cases is not None:
            predictions.cases.write(self._cases_path)
        if self.json:
            print_json(predictions.records())
        elif self.to is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(predictions.csv_bytes())  # paths may hold bytes that are no text
        else:
            print(f"{format_count(len(predictions), 'row')} written to {self.to}")
            if predictions.cases is not None:
                print(f"{format_count(len(predictions.cases), 'case')} written to {self._cases_path}")
        progress.print_skipped(predictions.skipped)
        progress.print_notes(limits)
        return 0

    def _print_target_notes(self, predictions: TaskPredictions) -> None:
        """Say which targets are known from class folders, and which of the pictures the model has learnt from."""
        from ...predict.folder_targets import describe_folder_targets

        notes = describe_folder_targets(predictions, self.model)
        progress.print_notes(notes)
        if notes and not self._file_engine:
            from ...services.evaluation import describe_seen_files

            progress.print_notes(describe_seen_files(self.model, predictions.paths))

    @property
    def _cases_path(self) -> Path | None:
        """The file of the cases, beside that of the pictures."""
        return self.to.with_name(f"cases{self.to.suffix}") if self.group and self.to is not None else None

    def _check_group(self) -> None:
        """Refuse --group where cases cannot be answered, before anything is read."""
        if self._cases_path is None or self._cases_path == self.to:
            raise UsageError(
                "--group writes the cases into cases.csv beside the pictures' rows: say where with --to FILE."
            )
        if self._is_chunked() or self._file_engine:
            raise UsageError(
                "--group pools pictures by torch in one process: name the run, without --part-size, --engine."
            )
        from ...evaluate.tables import check_table_path

        replaced = check_table_path(self._cases_path)
        progress.print_notes([replaced] if replaced else [])

    def _check_to(self, to: Path) -> None:
        """Refuse the name of a format as a file."""
        if not to.suffix and to.name.lower() in ("csv", "jsonl", "json", "parquet", "stdout", "-"):
            ending = to.name.lower() if to.name in ("jsonl", "parquet") else "csv"
            raise UsageError(
                f"--to names the file, whose ending says the format: --to answers.{ending}. Got {to}. "
                "Without --to the rows are printed as CSV, with --json as JSON."
            )

    def _is_chunked(self) -> bool:
        """Whether predictions are made in parts: with --part-size, in several processes, or on a Ray cluster."""
        if not self._file_engine:
            from ...train.distributed.collectives import group_from_env

            return bool(self.part_size) or self.engine == "ray" or group_from_env().world_size > 1
        if self.part_size:
            raise UsageError("--part-size is for models that torch answers with: leave it out, or name the run.")
        return False

    @property
    def _file_engine(self) -> str:
        """The engine of an exported file; empty where torch answers."""
        from ...services.predict_file import find_file_engine

        return find_file_engine(self.model, self.engine)

    def _predict_in_chunks(self) -> int:
        from ...data.parallel import find_id_folder
        from ...predict.chunks import DEFAULT_CHUNK_SIZE
        from ...predict.folder_targets import list_named_folders
        from ...predict.image_paths import expand_image_paths
        from ...services import predict_chunks

        pictures = expand_image_paths(self.paths)
        request = predict_chunks.ChunkedPredictRequest(
            model=self.model,
            to=predict_chunks.check_output_path(self.to),
            pictures=pictures,
            folders=list_named_folders(self.paths),
            id_folder=find_id_folder(pictures),
            sets=self.sets,
            chunk_size=self.part_size or DEFAULT_CHUNK_SIZE,
            skip_bad=self.skip_bad,
            device=self.device,
            precision=self.precision,
            changes=dict(self.changes),
        )
        predict = predict_chunks.predict_on_ray if self.engine == "ray" else predict_chunks.predict_in_chunks
        outcome = predict(request)
        if self.json:
            print_json(outcome.to_json())
        else:
            print(outcome.summarize())
        progress.print_skipped(outcome.skipped)
        return 0

    def _predict_with_file(self, images: Sequence[Path]) -> TaskPredictions:
        from ...evaluate.predictions import concat_predictions
        from ...services.predict_file import open_file_predictor

        if self.precision != "float32":
            raise UsageError(
                f"An exported file computes in the number format that it was exported in. Leave out --precision "
                f"{self.precision}, or name the run."
            )
        if self.sets:
            raise UsageError("--sets are fitted in the run and not exported: leave out --engine and name the run.")
        predictor = open_file_predictor(self.model, self._file_engine, self.device, dict(self.changes))
        progress.print_notes(predictor.notes)
        parts = predictor.predict_batches(images, skip_bad=self.skip_bad)
        parts = self._write_masks(parts, predictor.metadata.task, images, predictor.spec)
        return concat_predictions(list(progress.track_batches(parts, len(images))))

    def _write_masks(
        self, parts: Iterator[TaskPredictions], task: str, images: Sequence[Path], spec: ImageSpec
    ) -> Iterator[TaskPredictions]:
        """The same parts; of a segmentation model their masks are written, and not kept."""
        if task != "segmentation" and self.masks is None:
            return parts
        from ...services.mask_files import require_masks, write_masks

        require_masks(task)
        return write_masks(parts, images, spec, self.masks)

    def _predict_with_torch(self, images: Sequence[Path], groups: Sequence[str]) -> tuple[TaskPredictions, list[str]]:
        """The predictions, and what the model was not fitted for."""
        from ...evaluate.decisions import describe_limits, require_sets_support
        from ...evaluate.predictions import concat_predictions
        from ...predict.predictor import drop_skipped_groups
        from ...services.defect_maps import require_maps, write_defect_maps
        from ...services.prediction import apply_image_options, open_predictor

        predictor = apply_image_options(open_predictor(self.model, self.device, self.precision), dict(self.changes))
        progress.print_notes(predictor.notes)
        if self.sets:
            require_sets_support(predictor.task, predictor.decisions)
        if self.maps is not None:
            require_maps(predictor)
        if self.group:
            predictor.require_cases()
        parts = predictor.predict_batches(images, skip_bad=self.skip_bad)
        parts = self._write_masks(parts, predictor.task, images, predictor.spec)
        predictions = concat_predictions(list(progress.track_batches(parts, len(images))))
        if self.group:
            kept = drop_skipped_groups(images, groups, predictions.skipped)
            predictions = predictor.add_cases(predictions, kept)
        if self.maps is not None:
            count = sum(1 for _ in write_defect_maps(predictor, [Path(path) for path in predictions.paths], self.maps))
            print(f"{format_count(count, 'map')} written to {self.maps}", file=sys.stderr)
        limits = describe_limits(predictor.task, [member.decisions for member in predictor.members])
        if self.sets:
            predictions = predictor.add_sets(predictions)
        return predictions, limits
