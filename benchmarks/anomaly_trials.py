"""Other ways to compare patches of solar cells, beside that of the plan: what each gains or loses.

    python benchmarks/anomaly_trials.py DINOV2 ELPV
    python benchmarks/anomaly_trials.py DINOV2 ELPV --trials "block 8" turned

The cells, folds and features of anomaly.py at 224 pixels, 10 and 100 good cells, all of their patches in the bank.
Each trial changes one thing of "block 8", which is the plan's method: the blocks that are compared, alone or side by
side; a normalisation of features by the bank's; the neighbourhood of a patch; how many neighbours count; the light of
pictures; the bank by turned and mirrored good cells, too; a foreground by the first principal component. Each has the
mean area over the folds for four ways to make one score of a picture's distances.

A trial says what the test cells say of it: nothing here chooses for the plan.
Rows and features are kept. Writes benchmarks/results/anomaly-trials.json and .md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from anomaly import FOLDS, KINDS, SMALL, World, area, bank_cells, tested_cells
from making.records import RESULTS, Results, Row
from torch import Tensor

from vitrail.data.decoding.decode import to_8_bits
from vitrail.data.preprocess import preprocess_image
from vitrail.model.patch_bank import mean_largest, nearest_distances, normalize_patches

COUNTS = (10, 100)
BLOCKS, EVERY = (6, 8, 10), 2
"""Of DINOv2-S/14, whose features are computed at once."""
NEIGHBOURS = 3
TURNS = ("mirrored", "upside down", "half a turn", "transposed", "a quarter", "back a quarter", "other diagonal")
"""The seven other orientations of a square; the first three keep rows rows."""

Scores = Callable[["Cells", np.ndarray, np.ndarray], Tensor]
"""From the cells, those of a bank and tested ones to distances [n, N]; NaN where a patch is left out."""


def main() -> None:
    """Measure the trials that are asked for and missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dinov2", type=Path, nargs="?", help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("data", type=Path, nargs="?", help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS))
    parser.add_argument("--good", type=int, nargs="+", choices=COUNTS, default=list(COUNTS), help="cells in the bank")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    if options.data is None:
        print("anomaly_trials: left out, needs a folder with DINOv2 and the ELPV pictures; see --help")
        return
    torch.set_grad_enabled(False)
    results, world = Results("anomaly-trials"), World(options.dinov2, options.data, options.folder)
    for count in options.good:
        for trial in options.trials:
            for kind in KINDS:
                key = {"trial": trial, "kind": kind, "good": count}
                print(results.row(key, partial(measure_trial, world, trial, kind, count)), flush=True)
    (RESULTS / "anomaly-trials.md").write_text(table(results.rows), encoding="utf-8")
    print(table(results.rows))


class Cells:
    """Features of the cells of a kind, [n, N, 3, D], those of each block of length 1."""

    def __init__(self, world: World, kind: str):
        self.world, self.kind = world, kind
        self.patches = self.compute(world.paths[kind], "blocks")

    def compute(self, pictures: list, name: str) -> Tensor:
        shape = self.world.plan().read_plan().model
        shape = replace(shape, image_size=(SMALL, SMALL), depth=BLOCKS[-1], pool_blocks=len(BLOCKS), pool_every=EVERY)
        found = self.world.features_by(shape, pictures, f"{self.kind}-{name}")
        x = torch.from_numpy(found.astype(np.float32)).unflatten(-1, (len(BLOCKS), -1))
        return F.normalize(x, dim=-1)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Some cells as the model reads them, uint8 [n, C, H, W]."""
        spec = replace(self.world.plan().read_plan().image, height=SMALL, width=SMALL)
        pictures = [preprocess_image(self.world.paths[self.kind][row], spec) for row in rows]
        return np.asarray(to_8_bits(torch.stack(pictures).numpy()))


@cache
def open_cells(world: World, kind: str) -> Cells:
    """Those of a kind, once."""
    return Cells(world, kind)


def measure_trial(world: World, trial: str, kind: str, count: int) -> Row:
    """Mean areas over the folds."""
    cells = open_cells(world, kind)
    areas: dict[str, list[float]] = {name: [] for name in POOLS}
    for fold in range(FOLDS):
        bank = bank_cells(fold, count)
        parts = [TRIALS[trial](cells, bank, rows) for rows in tested_cells(fold)]
        for name, pool in POOLS.items():
            areas[name].append(area(*(pool(part).numpy() for part in parts)))
    return {name: round(statistics.fmean(each), 4) for name, each in areas.items()}


def smooth(distances: Tensor) -> Tensor:
    """The mean of each patch's distance and those of its neighbours."""
    side = round(distances.shape[-1] ** 0.5)
    grid = distances.view(-1, 1, side, side)
    return F.avg_pool2d(grid, 3, stride=1, padding=1, count_include_pad=False).flatten(1)


def fill_left_out(distances: Tensor) -> Tensor:
    """Patches that are left out differ from nothing."""
    return distances.nan_to_num(0.0)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "auroc": lambda distances: mean_largest(fill_left_out(distances)),
    "largest": lambda distances: fill_left_out(distances).amax(-1),
    "largest_5_percent": lambda distances: fill_left_out(distances).topk(distances.shape[-1] // 20).values.mean(-1),
    "less_median": lambda distances: mean_largest(fill_left_out(distances)) - distances.nanmedian(-1).values,
    "smoothed": lambda distances: mean_largest(smooth(fill_left_out(distances))),
}
"""From distances [n, N] to scores [n]; "auroc" is the plan's, the mean of the largest hundredth."""


def join_blocks(cells: Cells, blocks: tuple[int, ...]) -> Tensor:
    """Patches of some blocks side by side, [n, N, D]; products of two are means of cosines."""
    kept = [BLOCKS.index(block) for block in blocks]
    return normalize_patches(cells.patches[:, :, kept].flatten(2), len(kept))


def compare(x: Tensor, rows: Tensor) -> Tensor:
    """Distances of pictures [n, N, D] to a bank [m, D]."""
    return torch.stack([nearest_distances(one, rows) for one in x])


def compare_blocks(cells: Cells, bank: np.ndarray, rows: np.ndarray, blocks: tuple[int, ...]) -> Tensor:
    x = join_blocks(cells, blocks)
    return compare(x[rows], x[bank].flatten(0, 1))


def compare_centred(cells: Cells, bank: np.ndarray, rows: np.ndarray, scaled: bool) -> Tensor:
    """Features less the mean of the bank's, and each by its deviation there."""
    x = cells.patches[:, :, 1]
    known = x[bank].flatten(0, 1)
    scale = known.std(0) if scaled else torch.ones(())
    x, known = (F.normalize((some - known.mean(0)) / scale, dim=-1) for some in (x[rows], known))
    return compare(x, known)


def compare_neighbourhoods(cells: Cells, bank: np.ndarray, rows: np.ndarray) -> Tensor:
    """Each patch is the mean of the 3 x 3 around it, as in PatchCore."""
    x = cells.patches[:, :, 1]
    side = round(x.shape[1] ** 0.5)
    grids = x.mT.unflatten(-1, (side, side))
    x = F.avg_pool2d(grids, 3, stride=1, padding=1, count_include_pad=False).flatten(2).mT
    x = F.normalize(x, dim=-1)
    return compare(x[rows], x[bank].flatten(0, 1))


def compare_several(cells: Cells, bank: np.ndarray, rows: np.ndarray) -> Tensor:
    """The mean distance to the three nearest patches."""
    x = cells.patches[:, :, 1]
    known = x[bank].flatten(0, 1)
    return torch.stack([1 - (one @ known.T).topk(NEIGHBOURS).values.mean(-1) for one in x[rows]])


def compare_near(cells: Cells, bank: np.ndarray, rows: np.ndarray) -> Tensor:
    """Only with patches of the bank at most two rows and columns away."""
    x = cells.patches[:, :, 1]
    side = round(x.shape[1] ** 0.5)
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).view(-1, 2)
    is_far = (places[:, None] - places).abs().amax(-1) > 2  # [N, N]
    known = x[bank].flatten(0, 1)
    products = ((one @ known.T).view(len(one), len(bank), -1).amax(1) for one in x[rows])  # [N, N]
    return 1 - torch.stack([each.masked_fill(is_far, -1).amax(-1) for each in products])


def compare_in_even_light(cells: Cells, bank: np.ndarray, rows: np.ndarray) -> Tensor:
    """Each picture stretched so that its 2nd percentile is black and its 98th white."""
    x = compute_even_light(cells)
    return compare(x[rows], x[bank].flatten(0, 1))


@cache
def compute_even_light(cells: Cells) -> Tensor:
    pictures = []
    for picture in cells.read(np.arange(len(cells.patches))):
        low, high = np.percentile(picture, (2, 98))
        stretched = ((picture - low) / max(high - low, 1) * 255).clip(0, 255)
        pictures.append(np.ascontiguousarray(stretched.astype(np.uint8).transpose(1, 2, 0)))
    return cells.compute(pictures, "even-light")[:, :, 1]


def compare_turned(cells: Cells, bank: np.ndarray, rows: np.ndarray, turns: tuple[str, ...]) -> Tensor:
    """The bank has the good cells in other orientations, too."""
    x = cells.patches[:, :, 1]
    wanted = np.unique(np.concatenate([bank_cells(fold, len(bank)) for fold in range(FOLDS)]))
    parts = [x[bank]]
    for turn in turns:
        parts.append(compute_turned(cells, turn, tuple(wanted.tolist()))[np.searchsorted(wanted, bank)])
    return compare(x[rows], torch.cat(parts).flatten(0, 1))


@cache
def compute_turned(cells: Cells, turn: str, rows: tuple[int, ...]) -> Tensor:
    """Block 8 of some cells in another orientation."""
    number = TURNS.index(turn)
    pictures = cells.read(np.array(rows)).transpose(0, 2, 3, 1)  # [n, H, W, C]
    if number >= 3:
        pictures = pictures.swapaxes(1, 2)
    step = (-1 if number in (1, 2, 5, 6) else 1, -1 if number in (0, 2, 4, 6) else 1)
    turned = [np.ascontiguousarray(picture[:: step[0], :: step[1]]) for picture in pictures]
    return cells.compute(turned, f"{turn.replace(' ', '-')}-{len(rows)}")[:, :, 1]


def compare_foreground(cells: Cells, bank: np.ndarray, rows: np.ndarray) -> Tensor:
    """Patches on the smaller side of the bank's first principal component are left out, as a background."""
    x = cells.patches[:, :, 1]
    known = x[bank].flatten(0, 1)
    mean = known.mean(0)
    axis = torch.linalg.eigh((known - mean).T @ (known - mean)).eigenvectors[:, -1]
    axis = axis * (1 if ((known - mean) @ axis > 0).float().mean() >= 0.5 else -1)
    is_kept = [(part - mean) @ axis > 0 for part in (x[rows], known)]
    return compare(x[rows], known[is_kept[1]]).masked_fill(~is_kept[0], torch.nan)


TRIALS: dict[str, Scores] = {
    "block 8": partial(compare_blocks, blocks=(8,)),
    "block 6": partial(compare_blocks, blocks=(6,)),
    "block 10": partial(compare_blocks, blocks=(10,)),
    "blocks 6 and 8": partial(compare_blocks, blocks=(6, 8)),
    "blocks 6, 8 and 10": partial(compare_blocks, blocks=(6, 8, 10)),
    "centred": partial(compare_centred, scaled=False),
    "standardised": partial(compare_centred, scaled=True),
    "3 x 3 patches": compare_neighbourhoods,
    "three nearest": compare_several,
    "near places only": compare_near,
    "foreground": compare_foreground,
    "even light": compare_in_even_light,
    "mirrored": partial(compare_turned, turns=TURNS[:3]),
    "turned": partial(compare_turned, turns=TURNS),
}


def table(rows: list[Row]) -> str:
    """Areas of the plan's score for each trial, and of the other ways to make one score."""
    columns = [(kind, count) for kind in KINDS for count in COUNTS]
    found = {(row["trial"], row["kind"], row["good"]): row for row in rows}
    lines = ["| trial | " + " | ".join(f"{kind}, {count}" for kind, count in columns) + " |", "|---|" + "---:|" * 4]
    shown = [(trial, trial, "auroc") for trial in TRIALS]
    shown += [("block 8", f"block 8, score: {pool.replace('_', ' ')}", pool) for pool in list(POOLS)[1:]]
    for trial, name, figure in shown:
        areas = [found.get((trial, *column), {}).get(figure) for column in columns]
        if any(areas):
            lines.append(f"| {name} | {' | '.join('' if area is None else f'{area:.3f}' for area in areas)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
