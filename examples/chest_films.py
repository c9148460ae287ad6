"""Draw the films of docs/chest-films.md: 800 DICOM files of 400 patients, and the table of what readers found.

    python examples/chest_films.py FOLDER          # FOLDER/dicom/000.dcm to 799.dcm and FOLDER/readings.csv

Two films of each patient, PA and AP, 128 rows by 112 columns of 12 bits, without a window. A nodule is a soft spot of a
few pixels somewhere in a lung, an effusion a shadow at the lower edge of one lung. For every fifth film nobody looked
for an effusion. Needs pydicom.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage

PATIENTS, ROWS, COLUMNS = 400, 128, 112
DICOM_ROOT = "1.2.826.0.1.3680043.8.498"
"""The root under which pydicom makes identifiers."""


def main() -> None:
    """Write the films and the readings."""
    folder = Path(sys.argv[1])
    (folder / "dicom").mkdir(parents=True)
    rows = [("study", "nodule", "effusion")]
    for patient in range(PATIENTS):
        generator = np.random.default_rng(patient)
        findings = generator.random(2) < (0.25, 0.45)
        anatomy = generator.normal(0, 1, 4)
        for view in ("PA", "AP"):
            number = len(rows) - 1
            study = f"{DICOM_ROOT}.{number + 1}"
            write_film(
                folder / "dicom" / f"{number:03d}.dcm", draw_film(generator, anatomy, *findings), patient, study, view
            )
            looked = generator.random() > 0.2
            rows.append((study, str(int(findings[0])), str(int(findings[1])) if looked else ""))
    with (folder / "readings.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def draw_film(generator: np.random.Generator, anatomy: np.ndarray, nodule: bool, effusion: bool) -> np.ndarray:
    """uint16 [128, 112] of 0..4095: two dark lungs with ribs between the bright heart and the chest's wall."""
    y, x = np.mgrid[:ROWS, :COLUMNS]
    film = np.full((ROWS, COLUMNS), 2600.0)
    centres = [(60 + 2 * anatomy[0], 30 + anatomy[1]), (60 + 2 * anatomy[0], 82 + anatomy[1])]
    height, width = 42 + 2 * anatomy[2], 19 + anatomy[3]
    for row, column in centres:
        inside = 1 - ((y - row) / height) ** 2 - ((x - column) / width) ** 2
        film -= 1500 / (1 + np.exp(-12 * inside))
    film += 180 * np.sin((y + 0.25 * abs(x - COLUMNS / 2)) / 2.4 + anatomy[0]) * (film < 2000)
    film += 900 * np.exp(-(((y - 78) / 22) ** 2) - ((x - 62) / 14) ** 2)
    row, column = centres[generator.integers(2)]
    if nodule:
        row, column = row + generator.uniform(-22, 18), column + generator.uniform(-8, 8)
        film += 750 * np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2 * generator.uniform(2.5, 4) ** 2))
    if effusion:
        side = centres[generator.integers(2)][1]
        level = 86 + generator.uniform(-5, 5)
        film += 1000 / (1 + np.exp((level - y) / 4)) * np.exp(-(((x - side) / (1.1 * width)) ** 4))
    return np.clip(film + generator.normal(0, 110, film.shape), 0, 4095).astype(np.uint16)


def write_film(path: Path, values: np.ndarray, patient: int, study: str, view: str) -> None:
    """A secondary capture of 12 bits with the few elements that the page speaks of."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = UID(f"{study}.1")
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    film = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    film.SOPClassUID, film.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    film.StudyInstanceUID, film.PatientID, film.ViewPosition, film.Modality = study, f"p{patient:03d}", view, "DX"
    film.Rows, film.Columns = values.shape
    film.SamplesPerPixel, film.PhotometricInterpretation, film.PixelRepresentation = 1, "MONOCHROME2", 0
    film.BitsAllocated, film.BitsStored, film.HighBit = 16, 12, 11
    film.PixelData = values.astype("<u2").tobytes()
    film.save_as(path, enforce_file_format=True)


if __name__ == "__main__":
    main()
