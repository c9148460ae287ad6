"""Augmentation: whole batches here, picture by picture in torchvision, on its tensors and on Pillow's pictures.

    python benchmarks/augmentation.py                  # about two minutes

Pictures a second of every policy, at three sizes, and of crop and flip on Fashion-MNIST's shape. Runs are interleaved
(ours, theirs, ours, theirs), figures are medians of five, torchvision sees a part of each batch and is scaled up, and
nothing else should be running. Prints a table and writes benchmarks/results/augmentation.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from attention import machine
from making.full_size import declare_torchvision
from torch import Tensor

from vitrail.data.augment.crops import crop_and_flip, resized_crop
from vitrail.data.augment.mixing import ERASING_DRAWS, MIXING_DRAWS, apply_mixup_cutmix, random_erasing
from vitrail.data.augment.policies import apply_operations, draw_rand_augment, draw_three_augment, draw_trivial_augment
from vitrail.data.random_crop import RandomResizedCrop
from vitrail.randomness import uniform

RESULTS = Path(__file__).parent / "results"
SHAPES = ((128, 1, 28, 28), (128, 3, 32, 32), (64, 3, 224, 224))
REPEATS = 5
SAMPLE = 16  # pictures of a batch that the picture-by-picture ways are timed on


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    declare_torchvision()
    rows = []
    print(f"{'what':18} {'batch':>18} {'ours':>10} {'tv tensor':>10} {'tv Pillow':>10}  pictures a second")
    for shape in SHAPES:
        images = torch.randint(0, 256, shape, dtype=torch.uint8)
        for name, ours in our_ways(shape).items():
            ways = {"ours": partial(whole, ours, images), **their_ways(name, images)}
            rates = measure(ways)
            rows.append({"what": name, "shape": list(shape), **rates})
            shown = " ".join(f"{rates.get(way, 0):>10,.0f}" for way in ("ours", "tensor", "pillow"))
            print(f"{name:18} {'x'.join(map(str, shape)):>18} {shown}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "augmentation.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written to {path}")


def our_ways(shape: tuple[int, int, int, int]) -> dict[str, Callable[[Tensor, int], Tensor]]:
    """What a training step does to a batch, the drawing of its numbers included."""
    n, _, H, W = shape
    indices, sizes, targets = np.arange(n), np.tile([H, W], (n, 1)), torch.arange(n) % 10

    def keys(epoch: int, draws: int) -> np.ndarray:
        return uniform(0, "benchmark", epoch, indices, draws)

    return {
        "crop and flip": lambda images, e: crop_and_flip(images, keys(e, 3), max(1, H // 28), True),
        "resized crop": lambda images, e: resized_crop(images, RandomResizedCrop(0).boxes(indices, e, sizes), (H, W)),
        "rand augment 2, 9": lambda images, e: apply_operations(images, draw_rand_augment(keys(e, 4), 9.0, (H, W))),
        "trivial augment": lambda images, e: apply_operations(images, draw_trivial_augment(keys(e, 3), (H, W))),
        "three augment": lambda images, e: apply_operations(images, draw_three_augment(keys(e, 6))),
        "erase 0.25": lambda images, e: random_erasing(images, keys(e, ERASING_DRAWS), 0.25),
        "mixup and cutmix": lambda images, e: apply_mixup_cutmix(images, targets, keys(e, MIXING_DRAWS), 0.8, 1.0, 10)[
            0
        ],
    }


def their_ways(name: str, images: Tensor) -> dict[str, Callable[[int], int]]:
    """torchvision's transforms on a part of the batch, one picture at a time, as a Dataset applies them."""
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional

    H, W = images.shape[2:]
    shift = [v2.RandomCrop((H, W), padding=max(1, H // 28), padding_mode="edge"), v2.RandomHorizontalFlip()]
    three = [
        v2.RandomChoice([v2.Grayscale(3), v2.RandomSolarize(128, p=1.0), v2.GaussianBlur(13, (0.1, 2.0))]),
        v2.ColorJitter(0.3, 0.3, 0.3),
    ]
    transforms = {
        "crop and flip": v2.Compose(shift),
        "resized crop": v2.RandomResizedCrop((H, W), interpolation=v2.InterpolationMode.BICUBIC),
        "rand augment 2, 9": v2.RandAugment(2, 27, interpolation=v2.InterpolationMode.BILINEAR),
        "trivial augment": v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR),
        "three augment": v2.Compose(three) if images.shape[1] == 3 else None,
    }
    transform = transforms.get(name)
    if transform is None:
        return {}
    tensors = list(images[:SAMPLE])
    pillow = [functional.to_pil_image(image) for image in tensors]
    to_tensor = v2.PILToTensor()
    return {
        "tensor": lambda _: len([transform(image) for image in tensors]),
        "pillow": lambda _: len([to_tensor(transform(image)) for image in pillow]),
    }


def whole(function: Callable[[Tensor, int], Tensor], images: Tensor, epoch: int) -> int:
    """Run one of our ways; the number of pictures."""
    return len(function(images, epoch))


def measure(ways: dict[str, Callable[[int], int]]) -> dict[str, float]:
    """Pictures a second of each way: medians of interleaved runs of at least 0.1 s, after one that is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(REPEATS + 1):
        for name, run in ways.items():
            began, done, epoch = time.perf_counter(), 0, 0
            while time.perf_counter() - began < 0.1:
                done, epoch = done + run(epoch), epoch + 1
            if repeat:
                rates[name].append(done / (time.perf_counter() - began))
    return {name: round(statistics.median(found), 1) for name, found in rates.items()}


if __name__ == "__main__":
    main()
