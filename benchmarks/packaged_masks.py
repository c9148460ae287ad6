"""Masks that people drew on real pixels, out of two installable packages: nuclei of cells, and regions of a brain.

    pip download --no-deps stardist && unzip stardist-*.whl 'stardist/data/images/*' -d FOLDER
    apt-get download mricron-data && dpkg -x mricron-data_*.deb FOLDER
    python benchmarks/packaged_masks.py DINOV2 FOLDER --threads 1 [--clock processor]
    python benchmarks/packaged_masks.py DINOV2 FOLDER --look       # only overlays, to check labels by eye

nuclei: stardist/data/images/img2d.tif and mask2d.tif, 512 x 512 pixels, fluorescence, outlines by biologists (data
    science bowl of 2018, Caicedo et al. 2019, BBBC038, public domain; the package has a BSD licence). One picture, cut
    into 16 tiles: the left column is for training, of the next two tiles for validation, the right half for the test.
brain: usr/share/mricron/templates/ch2.nii.gz and aal.nii.gz, a head of 181 x 217 x 181 mm (mean of 27 scans of one man,
    Holmes et al. 1998) and regions drawn on it by hand, every second slice (Tzourio-Mazoyer et al. 2002); Debian's
    package says BSD for all of it. Axial slices in pairs, 3 mm apart, and 6 mm from one pair to the next: neighbours
    are in one group and in one split. Classes are the cortex with the white matter in its gyri, the nuclei and the
    hippocampus, the cerebellum, and all else.

Nothing of either is copied into results. Figures are of one picture and of one head: their intervals are over tiles
and pairs of slices, and say nothing of other cells or heads. Pictures, runs and rows are kept. Writes
benchmarks/results/packaged-masks.json and .md.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from making.records import RESULTS, Results
from masks import format_span, measure
from PIL import Image
from planted_heads import table

TILE = 128
PAIRS, PAIR_STEP, SLICE_STEP, LOWEST = 15, 9, 3, 12
"""Pairs of slices, millimetres from one to the next and within one, and height of the first slice."""
SPLITS = ("train", "test", "val", "test", "train", "test")
"""Of the pairs in turn."""
METHODS = {"frozen": {"finetune.method": "probe"}, "tuning": {"finetune.method": "full"}}
COLORS = ((255, 0, 0), (0, 120, 255), (255, 210, 0))


class Labelled(NamedTuple):
    """A picture with its class map."""

    split: str
    group: str
    pixels: np.ndarray
    """uint8 [H, W]."""
    classes: np.ndarray
    """The same shape."""


def main() -> None:
    """Train what is missing, and write the table; or write overlays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?", help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("packages", type=Path, nargs="?", help="the folder that they are unpacked in")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=0, help="0: every core")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help="as of benchmarks/masks.py")
    parser.add_argument("--read", type=int, default=224, help="--image-size")
    parser.add_argument("--look", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.packages is None:
        print("packaged-masks: left out, needs a folder with DINOv2 and one with the packages; see --help")
        return
    if options.clock == "processor":  # the planner and the trainer read these two
        time.perf_counter = time.monotonic = time.process_time
    results = Results("packaged-masks")
    for name in options.sets:
        source = write_set(options.folder / f"packaged-{name}", name, options.packages)
        if options.look:
            draw_overlays(list(SETS[name].read(options.packages))).save(options.folder / f"packaged-{name}.png")
            continue
        for method in options.methods:
            key = {"set": name, "minutes": options.minutes, "method": method}
            key |= {"threads": options.threads, "read": options.read, "clock": options.clock}
            run = options.folder / f"packaged-{name}-{options.read}-{options.minutes:g}-{method}"
            settings = {**METHODS[method], "data.group": "group"}
            make = partial(
                measure, source, run, options.dinov2, options.minutes, options.read, settings, options.threads
            )
            print(results.row(key, make), flush=True)
            (RESULTS / "packaged-masks.md").write_text(table(COLUMNS, results.rows), encoding="utf-8")


def read_nuclei(root: Path) -> Iterator[Labelled]:
    """Tiles of the picture of nuclei."""
    folder = root / "stardist" / "data" / "images"
    pixels, numbers = (np.asarray(Image.open(folder / f"{name}2d.tif")) for name in ("img", "mask"))
    for row in range(0, len(pixels), TILE):
        for column in range(0, pixels.shape[1], TILE):
            split = "train" if not column else "test" if column > TILE else "val" if row < 2 * TILE else ""
            place = np.s_[row : row + TILE, column : column + TILE]
            if split:
                tile = pixels[place].clip(0, 255).astype(np.uint8)
                yield Labelled(split, f"{row}-{column}", tile, numbers[place] > 0)


def read_brain(root: Path) -> Iterator[Labelled]:
    """Axial slices of the head, the face upwards."""
    folder = root / "usr" / "share" / "mricron" / "templates"
    head, regions = (read_nifti(folder / f"{name}.nii.gz") for name in ("ch2", "aal"))
    lines = (folder / "aal.nii.txt").read_text("latin-1").splitlines()
    names = dict(line.split()[:2] for line in lines if line.strip())
    classes = np.array([0, *(name_region(names[str(k)]) for k in range(1, int(regions.max()) + 1))], np.uint8)
    for pair in range(PAIRS):
        for above in (0, SLICE_STEP):
            pixels, numbers = (volume[LOWEST + pair * PAIR_STEP + above, ::-1] for volume in (head, regions))
            yield Labelled(SPLITS[pair % len(SPLITS)], f"pair{pair:02}", pixels, classes[numbers])


def name_region(name: str) -> int:
    """The class of a region of the atlas."""
    inner = ("Hippocampus", "Amygdala", "Caudate", "Putamen", "Pallidum", "Thalamus")
    return 2 if name.startswith(inner) else 3 if name.startswith(("Cerebelum", "Vermis")) else 1


def read_nifti(path: Path) -> np.ndarray:
    """A volume of bytes, uint8 [depth, rows, columns], from the lowest slice up."""
    content = gzip.decompress(path.read_bytes())
    shape, (kind,), (start,) = (
        np.frombuffer(content, of, count, at) for of, count, at in (("<i2", 3, 42), ("<i2", 1, 70), ("<f4", 1, 108))
    )
    if kind != 2:
        raise ValueError(f"{path} has values of kind {kind}, and not bytes.")
    return np.frombuffer(content, np.uint8, int(np.prod(shape, dtype=np.int64)), int(start)).reshape(shape[::-1])


class PackagedSet(NamedTuple):
    """A set out of a package."""

    classes: tuple[str, ...]
    read: Callable[[Path], Iterator[Labelled]]


SETS = {
    "nuclei": PackagedSet(("ground", "nucleus"), read_nuclei),
    "brain": PackagedSet(("other", "cortex", "nuclei", "cerebellum"), read_brain),
}


def write_set(root: Path, name: str, packages: Path) -> Path:
    """A manifest of pictures, masks, splits and groups; nothing where it is there already."""
    manifest = root / "masks.csv"
    if manifest.is_file():
        return manifest
    rows = [("path", "mask", "split", "group")]
    for one in SETS[name].read(packages):
        number = len(rows)
        for kind, values in (("images", one.pixels), ("masks", one.classes)):
            (root / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values.astype(np.uint8)).save(root / kind / f"{number:02}.png")
        rows.append((f"images/{number:02}.png", f"masks/{number:02}.png", one.split, one.group))
    legend = "value,name\n" + "".join(f"{k},{name}\n" for k, name in enumerate(SETS[name].classes))
    (root / "classes.csv").write_text(legend, encoding="utf-8")
    with manifest.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return manifest


def draw_overlays(pictures: list[Labelled], columns: int = 6) -> Image.Image:
    """Each picture with its classes in colours, the first one clear."""
    shown = []
    for one in pictures:
        colors = np.repeat(one.pixels[..., None], 3, 2).astype(np.float64)
        for value, color in enumerate(COLORS, 1):
            colors[one.classes == value] = 0.6 * colors[one.classes == value] + 0.4 * np.array(color)
        shown.append(colors.astype(np.uint8))
    shown += [np.zeros_like(shown[0])] * (-len(shown) % columns)
    return Image.fromarray(np.vstack([np.hstack(shown[at : at + columns]) for at in range(0, len(shown), columns)]))


COLUMNS = {
    "set": lambda row: row["set"],
    "minutes": lambda row: f"{row['minutes']:g}",
    "method": lambda row: row["method"],
    "mean IoU": lambda row: format_span(row, "mean_iou"),
    "boundary F": lambda row: format_span(row, "mean_boundary_f"),
    "IoU of classes": lambda row: ", ".join(f"{name} {value:.3f}" for name, value in row["iou"].items()),
    "kept": lambda row: row["chosen"],
    "training, s": lambda row: f"{row['training']:.0f}",
}


if __name__ == "__main__":
    main()
