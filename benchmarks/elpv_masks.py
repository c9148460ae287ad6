"""Busbars and borders of solar cells: real pixels, labels by a rule, frozen patches beside tuning.

    python benchmarks/elpv_masks.py DINOV2 ELPV --threads 1 [--minutes 2]
    python benchmarks/elpv_masks.py DINOV2 ELPV --look 24        # only overlays of the rule, to check it by eye

ELPV: the folder `data` of the package elpv_dataset (electroluminescence, 300 x 300 pixels; CC BY-NC-SA 4.0), of which
nothing is copied into results. The labels are a rule's and nobody's drawing, so a figure says how well a model repeats
the rule on other cells, not how well it sees what a person would draw:

busbar: horizontal dark bands, two or three at the distances at which these cells have them (141 or 97 rows, a few more
    or less), where the median of the rows lies deepest below its surroundings; as high as half of that depth reaches,
    and as wide as the cell. A row above and below, and places where the band is not dark, are unknown.
border: what is darker than half-way between the frame of the picture and the cell, hangs together with the frame, and
    lies within 14 pixels of it or in one of the corners that round wafers lack; two pixels at its edge are unknown.
cell: all else, defects with it.

Cells with a busbar that is hardly darker than its surroundings are left out; the rule fails on them. 20 cells are for
training, 10 for validation and 60 for the test, by chance. Pictures, runs and rows are kept. Writes
benchmarks/results/elpv-masks.json and .md.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from making.records import RESULTS, Results
from masks import format_span, measure
from PIL import Image
from planted_heads import table
from scipy.ndimage import binary_dilation, binary_propagation, gaussian_filter, median_filter

CLASSES = ("cell", "busbar", "border")
UNKNOWN = 255
LAYOUTS = {3: (52, 150, 247), 2: (79, 221)}
"""Rows of the busbars, by their number, in a cell that is centred."""
SLACK, MARGIN, CORNER = 12, 14, 75
MIN_DEPTH = 0.05
"""How much darker a busbar is, as a fraction of the cell, in cells that the rule labels."""
COUNTS = {"train": 20, "val": 10, "test": 60}
METHODS = {"frozen": {"finetune.method": "probe"}, "tuning": {"finetune.method": "full"}}


def main() -> None:
    """Train what is missing, and write the table; or write overlays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?", help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("elpv", type=Path, nargs="?")
    parser.add_argument("--minutes", type=float, nargs="+", default=[2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--threads", type=int, default=0, help="0: every core")
    parser.add_argument("--read", type=int, help="--image-size, for slow machines; else the plan's")
    parser.add_argument("--look", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.elpv is None:
        print("elpv-masks: left out, needs a folder with DINOv2 and one with the solar cells; see --help")
        return
    cells = sorted((options.elpv / "images").glob("*.png"))
    order = np.random.default_rng(0).permutation(len(cells))[: max(options.look, 2 * sum(COUNTS.values()))]
    chosen = [cells[place] for place in order.tolist() if has_dark_bars(read_cell(cells[place]))]
    print(f"{len(order) - len(chosen)} of {len(order)} cells are left out: a busbar is not dark")
    if options.look:
        options.folder.mkdir(parents=True, exist_ok=True)
        draw_overlays(chosen[: options.look]).save(options.folder / "elpv-masks.png")
        return
    source, results = label_set(options.folder / "elpv-masks", chosen), Results("elpv-masks")
    for minutes in options.minutes:
        for method in options.methods:
            key = {"minutes": minutes, "method": method, "threads": options.threads, "read": options.read}
            run = options.folder / f"elpv-masks-{options.read}-{minutes:g}-{method}"
            make = partial(
                measure, source, run, options.dinov2, minutes, options.read, METHODS[method], options.threads
            )
            print(results.row(key, make), flush=True)
            (RESULTS / "elpv-masks.md").write_text(table(COLUMNS, results.rows), encoding="utf-8")
    print((RESULTS / "elpv-masks.md").read_text(encoding="utf-8"))


def read_cell(path: Path) -> np.ndarray:
    """A grey picture, uint8 [H, W]."""
    return np.asarray(Image.open(path).convert("L"))


def has_dark_bars(picture: np.ndarray) -> bool:
    """Whether the rule labels a cell."""
    _, profile, rows = measure_depth(gaussian_filter(picture.astype(np.float64), 1))
    return bool(profile[rows].min() > MIN_DEPTH * np.median(picture))


def label_cell(picture: np.ndarray) -> np.ndarray:
    """The class map of a cell by the rule, uint8 [H, W]."""
    values = gaussian_filter(picture.astype(np.float64), 1)
    classes = np.zeros(values.shape, np.uint8)
    for band, unknown in find_busbars(values):
        classes[unknown], classes[band] = UNKNOWN, CLASSES.index("busbar")
    border = find_border(values)
    classes[binary_dilation(border, iterations=2)] = UNKNOWN
    classes[border] = CLASSES.index("border")
    return classes


def find_busbars(values: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each busbar its pixels, and those that may be of it."""
    (depth, profile, rows), found = measure_depth(values), []
    for row in rows:
        above, below = row, row
        while above > 0 and profile[above - 1] > profile[row] / 2:
            above -= 1
        while below < len(profile) - 1 and profile[below + 1] > profile[row] / 2:
            below += 1
        band, near = np.zeros(values.shape, bool), np.zeros(values.shape, bool)
        near[above - 1 : below + 2] = True
        is_dark = gaussian_filter(depth[above : below + 1].mean(0), 2) > profile[row] / 3
        band[above : below + 1, is_dark] = True
        found.append((band, near))
    return found


def measure_depth(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """How much darker each pixel is than those above and below, the median of each row, and the rows of the busbars."""
    depth = median_filter(values, (31, 1)) - values
    profile = np.median(depth[:, MARGIN:-MARGIN], 1)
    layouts = (place_bars(profile, layout) for layout in LAYOUTS.values())
    return depth, profile, max(layouts, key=lambda each: profile[each].mean())


def place_bars(profile: np.ndarray, layout: tuple[int, ...]) -> list[int]:
    """The deepest row close to each row of a layout."""
    return [row - SLACK + int(profile[row - SLACK : row + SLACK + 1].argmax()) for row in layout]


def find_border(values: np.ndarray) -> np.ndarray:
    """Dark pixels that hang together with the frame."""
    height, width = values.shape
    y, x = np.mgrid[:height, :width]
    near = np.minimum(np.minimum(y, height - 1 - y), np.minimum(x, width - 1 - x))
    corner = np.minimum(y, height - 1 - y) + np.minimum(x, width - 1 - x)
    frame = near < 2
    inside = np.median(values[(near > 2 * MARGIN) & (near < 3 * MARGIN)])
    dark = values < (np.percentile(values[frame], 20) + inside) / 2
    return binary_propagation(frame & dark, mask=dark & ((near < MARGIN) | (corner < CORNER)))


def draw_overlays(cells: list[Path], columns: int = 6) -> Image.Image:
    """The labels over each cell: busbars red, borders blue, unknown pixels yellow."""
    shown = []
    for cell in cells:
        picture = read_cell(cell)
        classes, colours = label_cell(picture), np.repeat(picture[..., None], 3, 2).astype(np.float64)
        for value, colour in ((1, (255, 0, 0)), (2, (0, 80, 255)), (UNKNOWN, (255, 220, 0))):
            colours[classes == value] = 0.5 * colours[classes == value] + 0.5 * np.array(colour)
        shown.append(colours.astype(np.uint8))
    blank = np.zeros_like(shown[0])
    shown += [blank] * (-len(shown) % columns)
    return Image.fromarray(np.vstack([np.hstack(shown[at : at + columns]) for at in range(0, len(shown), columns)]))


def label_set(root: Path, cells: list[Path]) -> Path:
    """A folder with train/, val/ and test/; nothing where it is there already."""
    if root.is_dir():
        return root
    draft, at = root.with_name(f"{root.name}-draft"), 0
    for split, count in COUNTS.items():
        for kind in ("images", "masks"):
            (draft / split / kind).mkdir(parents=True, exist_ok=True)
        for cell in cells[at : at + count]:
            picture = read_cell(cell)
            Image.fromarray(picture).save(draft / split / "images" / f"{cell.stem}.png")
            Image.fromarray(label_cell(picture)).save(draft / split / "masks" / f"{cell.stem}.png")
        at += count
    legend = "value,name\n" + "".join(f"{k},{name}\n" for k, name in enumerate(CLASSES))
    (draft / "classes.csv").write_text(legend, encoding="utf-8")
    draft.rename(root)
    return root


COLUMNS = {
    "minutes": lambda row: f"{row['minutes']:g}",
    "method": lambda row: row["method"],
    "mean IoU": lambda row: format_span(row, "mean_iou"),
    "boundary F": lambda row: format_span(row, "mean_boundary_f"),
    **{name: lambda row, name=name: f"{row['iou'][name]:.3f}" for name in CLASSES},
    "kept": lambda row: row["chosen"],
    "training, s": lambda row: f"{row['training']:.0f}",
}


if __name__ == "__main__":
    main()
