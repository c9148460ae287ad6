"""The miniature data that docs/data.md speaks of, under the names it has there."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from end_to_end.conftest import draw_flowers
from tar_files import write_tar

FILMS = 24
KINDS = ("normal", "fracture")
FINDINGS = ("Cardiomegaly", "No Finding", "Hernia|Mass", "Nodule")


def prepare(folder: Path) -> None:
    """All of it, below one folder."""
    (folder / "flowers").mkdir()
    draw_flowers(folder / "flowers")
    (folder / "films").mkdir()
    for number in range(FILMS):
        (folder / "films" / f"{number:03d}.png").write_bytes(encoded(number))
    tables(folder)
    xray14(folder / "xray14")
    arrays(folder / "photos.npz")
    shards(folder / "shards")
    spoiled(folder / "spoiled")


def values(number: int) -> np.ndarray:
    """A picture [20, 24] unlike all others: noise, with a bright disc in every second."""
    y, x = np.mgrid[:20, :24]
    noise = np.random.default_rng(number).integers(0, 100, (20, 24))
    disc = (y - 10) ** 2 + (x - 12) ** 2 < 30
    return (noise + 120 * disc * (number % 2)).astype(np.uint8)


def encoded(number: int) -> bytes:
    """The same as the bytes of a PNG file."""
    out = io.BytesIO()
    Image.fromarray(values(number)).save(out, "PNG")
    return out.getvalue()


def tables(folder: Path) -> None:
    names = [f"films/{number:03d}.png" for number in range(FILMS)]
    rows = [(name, KINDS[number % 2], f"p{number // 2:02d}") for number, name in enumerate(names)]
    write_csv(folder / "films.csv", [("path", "finding", "patient_id"), *rows])
    lines = [json.dumps({"path": path, "finding": finding}) for path, finding, _ in rows]
    (folder / "films.jsonl").write_text("\n".join(lines))
    flags = [(name, number % 2, ("0", "1", "-1", "")[number // 2 % 4]) for number, name in enumerate(names)]
    write_csv(folder / "findings.csv", [("path", "oedema", "nodule"), *flags])
    write_csv(folder / "angles.csv", [("path", "angle"), *((name, number) for number, name in enumerate(names))])


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def xray14(folder: Path) -> None:
    """Twelve films of six patients in the layout of the published archive."""
    (folder / "images").mkdir(parents=True)
    names = [f"{number // 2:08d}_{number % 2:03d}.png" for number in range(12)]
    for number, name in enumerate(names):
        (folder / "images" / name).write_bytes(encoded(number))
    rows = [(name, FINDINGS[number % 4], number % 2, number // 2, 57) for number, name in enumerate(names)]
    header = ("Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age")
    write_csv(folder / "Data_Entry_2017.csv", [header, *rows])
    (folder / "train_val_list.txt").write_text("\n".join(names[:8]))
    (folder / "test_list.txt").write_text("\n".join(names[8:]))


def arrays(path: Path) -> None:
    stack = np.stack([values(number) for number in range(FILMS)])
    labels = np.arange(FILMS) % 2
    np.savez(path, x_train=stack[:16], y_train=labels[:16], x_test=stack[16:], y_test=labels[16:])


def shards(folder: Path) -> None:
    for shard, split in enumerate(("train-0000", "train-0001", "test-0000")):
        files = {}
        for number in range(8 * shard, 8 * shard + 8):
            files |= {f"{number:04d}.png": encoded(number), f"{number:04d}.cls": KINDS[number % 2].encode()}
        write_tar(folder / f"pets-{split}.tar", files)


def spoiled(folder: Path) -> None:
    """Class folders with a file that is cut off and one that is no picture."""
    for number in range(FILMS):
        (folder / KINDS[number % 2]).mkdir(parents=True, exist_ok=True)
        (folder / KINDS[number % 2] / f"{number}.png").write_bytes(encoded(number))
    (folder / "normal" / "cut.png").write_bytes(encoded(0)[:200])
    (folder / "fracture" / "page.png").write_text("<html>404</html>")


def saved_dataset(folder: Path) -> None:
    """A folder of the datasets library; needs the library."""
    import datasets

    datasets.disable_progress_bars()
    pictures = [Image.fromarray(values(number)) for number in range(FILMS)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(KINDS))})
    columns = {"image": pictures, "label": [number % 2 for number in range(FILMS)]}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder))
