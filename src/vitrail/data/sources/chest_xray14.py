"""Read ChestX-ray14 (Wang et al. 2017) as published by the NIH: 112,120 chest X-rays, 14 findings (multilabel).

The folder holds Data_Entry_2017.csv (or Data_Entry_2017_v2020.csv), train_val_list.txt, test_list.txt, and the images
in images/, or in images_001/images/ to images_012/images/.

Source: Wang et al. 2017, "ChestX-ray8: Hospital-scale chest X-ray database and benchmarks", with its later release.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ...errors import DataError, UsageError
from ...formatting import format_count
from ..labels.codes import CategoricalColumn, Cell, encode_categorical, format_column
from ..labels.columns import ColumnRoles, split_words
from ..settings import DataSettings, check_supported_settings
from ..source import Source
from .manifest import Splits, build_manifest_source, locate_images
from .table_files import ManifestTable, read_manifest_table

# fmt: off
FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax",
    "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia",
)
# fmt: on
NO_FINDING = "No Finding"
IMAGE_COLUMN, LABELS, PATIENT = "Image Index", "Finding Labels", "Patient ID"
METADATA = ("Patient Age", "Patient Gender", "Patient Sex", "View Position", "Follow-up #")
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}


def open_chest_xray14(folder: Path, settings: DataSettings) -> Source:
    """Open the images with their findings, the official test list, and patients as groups.

    "No Finding" is none of the fourteen. The published list is for training and validation together; validation is
    split off later, by patients. Age, sex, view and follow-up become metadata.

    Raises:
        UsageError: settings that do not apply to this layout.
        DataError: a file is not as published, a finding is none of the fourteen, or no image is there.
    """
    _check_layout(settings)
    check_supported_settings(settings, "chest-xray14", "ChestX-ray14")
    tables = sorted(folder.glob("Data_Entry_2017*.csv"))
    if not tables:
        raise DataError(f"{folder} has no Data_Entry_2017.csv, the table of ChestX-ray14.")
    table = read_manifest_table(tables[-1])  # the corrected release of 2020, where both exist
    for column in (IMAGE_COLUMN, LABELS, settings.group or PATIENT):
        if column not in table.columns:
            raise DataError(f"{table.name} has no column {column!r}, which ChestX-ray14 has. Is it another table?")
    findings = settings.targets or FINDINGS
    splits, notes = _read_official_splits(folder, table)
    whole = replace(table, columns={**table.columns, **_encode_findings(table, findings)})
    images, image_notes = locate_images(folder, table.columns[IMAGE_COLUMN], settings, table.where)
    roles = ColumnRoles(
        path=IMAGE_COLUMN,
        targets=tuple(findings),
        split="",
        group=settings.group or PATIENT,
        metadata=tuple(name for name in METADATA if name in table.columns),
    )
    as_labels = replace(settings, task="multilabel")
    source = build_manifest_source("ChestX-ray14", folder, images, whole, roles, splits, as_labels)
    reason = f"Column {LABELS!r} holds {len(FINDINGS)} findings joined by |, so a picture may have several: labels."
    note = (
        f"{NO_FINDING!r} was read as none of the {len(FINDINGS)} findings. Pictures of one patient stay in one split."
    )
    return replace(source, reason=reason, notes=(*table.notes, note, *notes, *image_notes, *source.notes))


def _check_layout(settings: DataSettings) -> None:
    if settings.task not in ("auto", "multilabel"):
        raise UsageError(
            f"ChestX-ray14 has labels, of which a film may have several; --task {settings.task} does not fit. For "
            "another task, name its CSV file as the SOURCE."
        )
    for name, value in {"path": settings.path, "split": settings.split}.items():
        if value:
            raise UsageError(
                f"ChestX-ray14's files have a known layout, so --data.{name} {value} has no use. To read it otherwise, "
                "name its CSV file as the SOURCE."
            )
    unknown = [name for name in settings.targets if name not in FINDINGS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is none of ChestX-ray14's findings: {', '.join(FINDINGS)}.")


def _encode_findings(table: ManifestTable, findings: tuple[str, ...]) -> dict[str, CategoricalColumn[Cell]]:
    """A column of ones and zeros for each finding."""
    labels = encode_categorical(table.columns[LABELS])
    findings_of_value = [split_words(value, "|") for value in labels.values]
    for number, words in enumerate(findings_of_value):
        wrong = [word for word in words if word not in FINDINGS and (word != NO_FINDING or len(words) > 1)]
        if wrong or not words:
            raise DataError(
                f"{table.where(labels.first_row(number))}: {LABELS!r} is {labels.values[number]!r}, expected "
                f"{NO_FINDING!r} or some of {', '.join(FINDINGS)}, joined by |."
            )
    columns = {}
    for finding in findings:
        has = np.array([finding in words for words in findings_of_value], dtype=np.int32)
        columns[finding] = CategoricalColumn[Cell]((0, 1), has[labels.codes])
    return columns


def _read_official_splits(folder: Path, table: ManifestTable) -> tuple[Splits, list[str]]:
    """The rows of each official list, and notes on the lists."""
    rows = {name: row for row, name in enumerate(format_column(table.columns[IMAGE_COLUMN]))}
    splits: Splits = {}
    notes = []
    for split, file in LISTS.items():
        path = folder / file
        if not path.is_file():
            notes.append(f"{file} is not there, so there is no official {split} split.")
            continue
        named = path.read_text(encoding="utf-8-sig").split()
        splits[split] = np.array(sorted({rows[name] for name in named if name in rows}), dtype=np.int64)
        unknown = sum(name not in rows for name in named)
        if unknown:
            notes.append(f"{unknown:,} of the {format_count(len(named), 'film')} in {file} are not in {table.name}.")
    unlisted = len(table) - sum(map(len, splits.values()))
    if splits and unlisted > 0:
        both = len(splits) == len(LISTS)
        where = "in neither official list" if both else "not in the one official list that is there"
        notes.append(f"{format_count(unlisted, 'film is', 'films are')} {where}, so no split uses them.")
    return splits, notes
