"""Pictures per second from JPEG files to batches that a model can be trained on, beside torchvision and timm.

    python benchmarks/loading.py                # about seven minutes; nothing else should be running
    python benchmarks/loading.py --quick        # a look whether it works

Files of 640 x 427 and of 2560 x 1708 pixels are made from scikit-learn's sample photographs (JPEG, quality 90) and read
once beforehand, so that the disk plays no part. Every loader ends with normalised float32 batches [32, 3, 224, 224] of
randomly resized crops, half of them mirrored. Then one epoch of Fashion-MNIST with padded crops and flips, against a
pipeline that treats one picture at a time. Passes are interleaved (ours, theirs, ours, theirs), figures are medians.
Writes benchmarks/results/loading.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from making.full_size import declare_torchvision
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.data.augment.crops import crop_and_flip
from vitrail.data.loader import iter_batches, load_images
from vitrail.data.open import open_source
from vitrail.data.preprocess import normalize
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.data.source import Source
from vitrail.randomness import uniform
from vitrail.runtime import cpu_name
from vitrail.spec import ImageSpec

RESULTS = Path(__file__).parent / "results"
SIZE, BATCH = 224, 32
SPEC = ImageSpec(height=SIZE, width=SIZE)
FILES = {"640x427": 384, "2560x1708": 128, "2560x1708 rich": 96}
GOALS = {"640x427": 1.5, "2560x1708": 3.0, "fashion-mnist": 10.0}
HALF = (0.5, 0.5, 0.5)
Pass = Callable[[], Iterable[Tensor]]
"""Begins to go through the data once: normalised batches."""


def main() -> None:
    """Make files, measure all loaders on them, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few files, two passes, nothing written")
    parser.add_argument("--repeats", type=int, default=5, help="passes of each loader that are counted")
    options = parser.parse_args()
    declare_torchvision()
    torch.set_num_threads(1)  # for every loader: two threads of the main process would fight the workers for the cores
    repeats = 2 if options.quick else options.repeats
    rows = []
    for name, count in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            make_files(Path(folder), name, max(BATCH, count // 6) if options.quick else count)
            for workers in (1, 2):
                rows += measure_loaders(
                    name, workers, photograph_loaders(Path(folder), workers), repeats, limit(Path(folder))
                )
    rows += measure_loaders("fashion-mnist", 0, fashion_loaders(options.quick), repeats, None)
    if options.quick:
        return
    RESULTS.mkdir(exist_ok=True)
    result = {"command": "python benchmarks/loading.py", "machine": machine(), "batch": BATCH, "rows": rows}
    (RESULTS / "loading.json").write_text(json.dumps(result, indent=1) + "\n")


BEYOND = "torchvision on tensors"  # its documentation's own best, shown beside what the goal names


def measure_loaders(
    case: str, workers: int, loaders: dict[str, Pass], repeats: int, most: float | None
) -> list[dict[str, object]]:
    """A row a loader; each has gone through the data once before, which also starts its workers."""
    for begin in loaders.values():
        time_pass(begin)
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(repeats):
        for name, begin in loaders.items():
            rates[name].append(time_pass(begin))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    best = max(rate for name, rate in medians.items() if name not in ("vitrail", BEYOND))
    goal = f"; goal {GOALS[case]:g} times the better of the others" if case in GOALS else ""
    print(f"{case}, workers: {workers}{goal}")
    for name, rate in medians.items():
        times = f"vitrail is {medians['vitrail'] / rate:5.2f} times as fast" if name != "vitrail" else ""
        print(f"  {name:<24} {rate:10,.0f} pictures/s  {times}")
    return [
        {
            "case": case,
            "workers": workers,
            "loader": name,
            "pictures_per_second": medians[name],
            "slowest": min(found),
            "fastest": max(found),
            "repeats": repeats,
            "times_the_best_other": medians[name] / best,
            "full_decodes_per_second_of_one_thread": most,
        }
        for name, found in rates.items()
    ]


def time_pass(begin: Pass) -> float:
    """Pictures per second of one pass, from its begin to its last batch."""
    began, count = time.perf_counter(), 0
    batches = begin()
    for images in batches:
        assert images.dtype == torch.float32
        count += len(images)
    return count / (time.perf_counter() - began)


def make_files(folder: Path, size: str, count: int) -> None:
    """The two photographs, shifted so that no two files are equal, in two class folders.

    The larger files are the same photographs enlarged; rich ones are four by four of them side by side, which is as
    much detail per pixel as the small files have, and more than most cameras deliver.
    """
    width, height = map(int, size.split(maxsplit=1)[0].split("x"))
    photographs = load_sample_images().images
    for number in range(count):
        values = np.roll(photographs[number % 2], 17 * number, axis=1)
        if size.endswith("rich"):
            pair = np.concatenate([values, values[:, ::-1]], axis=1)
            values = np.tile(pair, (height // values.shape[0], width // pair.shape[1], 1))
        path = folder / "ab"[number % 2] / f"{number:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(values).resize((width, height), Image.Resampling.LANCZOS).save(path, quality=90)


def limit(folder: Path) -> float:
    """Whole pictures that one thread of libjpeg-turbo decodes per second, doing nothing else."""
    files = [path.read_bytes() for path in sorted(folder.glob("*/*.jpg"))[:48]]
    began = time.perf_counter()
    for data in files:
        simplejpeg.decode_jpeg(data)
    return len(files) / (time.perf_counter() - began)


def photograph_loaders(folder: Path, workers: int) -> dict[str, Pass]:
    """Ours, torchvision's transforms on Pillow's pictures and on tensors, and timm's own loader."""
    return {
        "vitrail": ours(folder, workers),
        "torchvision on Pillow": torchvision_on(folder, workers, tensors=False),
        "torchvision on tensors": torchvision_on(folder, workers, tensors=True),
        "timm": timm_loader(folder, workers),
    }


def ours(folder: Path, workers: int) -> Pass:
    """Decoding, cutting, resizing and mirroring in threads; normalising a batch at a time."""
    source = open_source(folder)
    rows = np.arange(len(source))
    pictures = load_images(source, rows, SPEC, 0, workers, RandomResizedCrop(0, mirror=True), training=True)

    def begin() -> Iterable[Tensor]:
        return (
            normalize(batch.images, SPEC)
            for _, _, batch in islice(iter_batches(pictures, source.targets, BATCH, 0), len(rows) // BATCH)
        )

    return begin


def torchvision_on(folder: Path, workers: int, tensors: bool) -> Pass:
    """v2 transforms in torch's DataLoader; as tensors before the resize, as its documentation recommends, or after."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import InterpolationMode, v2

    moves = [
        v2.RandomResizedCrop(SIZE, interpolation=InterpolationMode.BICUBIC, antialias=True),
        v2.RandomHorizontalFlip(),
    ]
    moves.insert(0 if tensors else len(moves), v2.PILToTensor())
    transform = v2.Compose([*moves, v2.ToDtype(torch.float32, scale=True), v2.Normalize(HALF, HALF)])
    return pass_of(ImageFolder(folder, transform), workers)


def pass_of(dataset: Dataset, workers: int, batch: int = BATCH) -> Pass:
    """One epoch of torch's DataLoader, whose processes stay alive from one to the next."""
    loader = DataLoader(
        dataset, batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: (images for images, _ in loader)


def timm_loader(folder: Path, workers: int) -> Pass:
    """timm's training loader at its defaults for speed: uint8 from the processes, normalised as a batch."""
    from timm.data import ImageDataset, create_loader

    loader = create_loader(
        ImageDataset(str(folder)),
        (3, SIZE, SIZE),
        BATCH,
        is_training=True,
        color_jitter=0.0,
        interpolation="bicubic",
        mean=HALF,
        std=HALF,
        num_workers=workers,
        device=torch.device("cpu"),
    )
    return lambda: (images for images, _ in loader)


def fashion_loaders(quick: bool) -> dict[str, Pass]:
    """One epoch of 60,000 pictures of 28 x 28 with crops padded by 2 and flips: ours, and PIL one by one."""
    from torchvision import transforms

    source = open_source("fashion-mnist")
    rows = source.splits["train"][: 6_000 if quick else None]
    one_by_one = transforms.Compose(  # the older kind, which is the faster one here
        [
            transforms.RandomCrop(28, padding=2),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5,), (0.5,)),
        ]
    )
    peers = {f"PIL one by one, {n} workers": pass_of(OneByOne(source, rows, one_by_one), n, 250) for n in (0, 1, 2)}
    return {"vitrail": fashion_of_ours(source, rows), **peers}


def fashion_of_ours(source: Source, rows: np.ndarray) -> Pass:
    """Resident pictures, moved and normalised a batch at a time."""
    spec = ImageSpec(height=28, width=28, channels=1)
    pictures = load_images(source, rows, spec, 2**30)

    def begin() -> Iterable[Tensor]:
        return (
            normalize(crop_and_flip(batch.images, uniform(0, "flip", epoch, batch.indices, 3), 2, True), spec)
            for _, epoch, batch in islice(iter_batches(pictures, source.targets[rows], 250, 0), len(rows) // 250)
        )

    return begin


class OneByOne(Dataset):
    """Pictures of an array as PIL pictures, each transformed by itself."""

    def __init__(self, source: Source, rows: np.ndarray, transform: Callable[[Image.Image], Tensor]):
        self.pictures, self.targets, self.transform = source.images[rows], source.targets[rows], transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pictures[index])), int(self.targets[index])


def machine() -> dict[str, object]:
    """What a figure depends on."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }


if __name__ == "__main__":
    main()
