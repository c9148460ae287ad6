"""Maps taken for segmentations, as papers compare methods on ImageNet-Segmentation. Not yet measured: bring the data.

    python benchmarks/imagenet_segmentation.py MODEL PICTURES MASKS [--methods relevance,legrad,rollout]

MODEL is a classifier, such as ViT-B/16 of the paper. PICTURES and MASKS are folders whose files have the same names but
for their endings; in a mask everything that is not 0 is object. The 4,276 pictures of ImageNet-Segmentation (Guillaumin
et al. 2014) come in one MATLAB file, from which both folders have to be written once. The model's own largest class is
explained, pictures are squashed to its size, and `making/segmentation.py` has the rest of the protocol.

Chefer et al. 2021, table 2, has pixel accuracy, mAP and mIoU of several methods for ViT-B/16 to compare with. Nobody
has run this script on those pictures yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from making.segmentation import SegmentationScores, merge_segmentation_scores, score_segmentation
from PIL import Image

from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.explain.methods import METHODS, MethodOptions
from vitrail.services.open_model import ModelInfo, find_model

BATCH = 16


def main() -> None:
    """Print one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("pictures", nargs="?", type=Path)
    parser.add_argument("masks", nargs="?", type=Path)
    parser.add_argument("--methods", default="relevance,legrad,grad-cam,attention,rollout")
    options = parser.parse_args()
    if options.masks is None:
        print("Left out: the pictures and masks of ImageNet-Segmentation are not here (see --help).")
        return
    found = find_model(options.model)
    pairs = match_masks(options.pictures, options.masks)
    print(f"{len(pairs):,} pictures\n{'method':11} {'accuracy':>8} {'mAP':>6} {'mIoU':>6}")
    for method in options.methods.split(","):
        one = merge_segmentation_scores(list(measure_batches(found, pairs, method)))
        print(f"{method:11} {one.accuracy:8.2%} {one.mean_average_precision:6.2%} {one.mean_iou:6.2%}", flush=True)


def match_masks(pictures: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Pictures with their masks, by name."""
    by_name = {path.stem: path for path in sorted(masks.iterdir())}
    pairs = [(path, by_name[path.stem]) for path in sorted(pictures.iterdir()) if path.stem in by_name]
    if not pairs:
        raise SystemExit(f"No file in {pictures} has the name of one in {masks}.")
    return pairs


def measure_batches(found: ModelInfo, pairs: list[tuple[Path, Path]], method: str) -> Iterator[SegmentationScores]:
    """A batch after another."""
    spec = replace(found.spec, fit="squash", crop_fraction=1.0)
    for first in range(0, len(pairs), BATCH):
        some = pairs[first : first + BATCH]
        images = normalize(torch.stack([preprocess_image(picture, spec) for picture, _ in some]), spec)
        maps = METHODS[method].run(found.model, images, None, MethodOptions()).values
        yield score_segmentation(maps, np.stack([mask_of(mask, spec.size) for _, mask in some]))


def mask_of(path: Path, size: tuple[int, int]) -> np.ndarray:
    """bool [H, W]: where the object is, at the model's size."""
    with Image.open(path) as mask:
        return np.asarray(mask.convert("L").resize((size[1], size[0]), Image.Resampling.NEAREST)) > 0


if __name__ == "__main__":
    main()
