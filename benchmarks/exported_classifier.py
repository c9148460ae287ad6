"""A classifier that Vitrail trained, opened by timm and by transformers from the folders that Vitrail wrote for them.

    python benchmarks/exported_classifier.py --steps 800

Trains a plain ViT (class token, learned positions) on Fashion-MNIST, unless the run is there already, and compares with
both libraries: logits on 200 of the official test pictures brought to the model's size; then the most likely class on
500 pictures of other sizes, which each library resizes by itself. What is compared is the model alone: that the run
averages its answers over every picture and its mirror image, no other library can know.

Writes benchmarks/results/exported-classifier.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from making.full_size import declare_torchvision
from PIL import Image

import vitrail
from vitrail.predict.predictor import Predictor, PredictorMember
from vitrail.services.open_model import find_model

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
from opened import CLASSIFIERS, Classifier

RESULT = Path(__file__).parent / "results" / "exported-classifier.json"
SIZE, AT_SIZE, RESIZED = 28, 200, 500
SETTINGS = {"model.rotary": "none", "model.class_token": True, "model.pool": "class", "model.patch": (4, 4)}
SETTINGS |= {"model.width": 64, "model.depth": 4, "model.heads": 4, "model.mlp_width": 128}
SETTINGS |= {"compute.precision": "float32"}


def main() -> None:
    """Train, export, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--run", type=Path, default=Path("runs") / "exported-classifier")
    options = parser.parse_args()
    declare_torchvision()
    if not (options.run / "report.json").exists():
        words = {"steps": options.steps, "image_size": SIZE, "channels": 3, "settings": SETTINGS}
        vitrail.fit("fashion-mnist", out=options.run, **words)
    run = vitrail.open(options.run)
    facts = {"accuracy": run.evaluate().accuracy, "pictures_at_size": AT_SIZE, "pictures_resized": RESIZED}
    with tempfile.TemporaryDirectory() as name:
        rows = {
            to: compare_with_library(run, opened(run.export(to, Path(name) / to))) for to, opened in CLASSIFIERS.items()
        }
    for to, row in rows.items():
        print(f"{to}: logits differ by at most {row['largest_difference']:.2g}; ", end="")
        print(f"equal answers on {row['equal_answers']:.1%} of {RESIZED} resized pictures")
    RESULT.write_text(json.dumps({**facts, "libraries": rows}, indent=1) + "\n")


def compare_with_library(run: vitrail.Run, other: Classifier) -> dict[str, object]:
    """Both comparisons with one library; every picture that is answered otherwise is listed."""
    found = find_model(str(run.path))
    predictor = Predictor([PredictorMember(model=found.model, spec=found.spec, classes=found.classes)])
    there = pictures(AT_SIZE, (SIZE, SIZE))
    batch = torch.stack([torch.from_numpy(picture).permute(2, 0, 1) for picture in there])
    gap = np.abs(predictor.logits(batch) - other.logits([Image.fromarray(picture) for picture in there])).max()
    resized = pictures(RESIZED, None)
    ours, theirs = predictor.predict(resized).probabilities, chances(other, resized)
    differing = np.flatnonzero(ours.argmax(-1) != theirs.argmax(-1))
    return {
        "largest_difference": float(gap),
        "equal_answers": 1 - len(differing) / RESIZED,
        "largest_difference_of_a_probability": float(np.abs(ours - theirs).max()),
        "differing": [
            {
                "test_picture": int(k),
                "size": list(resized[k].shape[:2]),
                "ours": [int(ours[k].argmax()), round(float(ours[k].max()), 3)],
                "theirs": [int(theirs[k].argmax()), round(float(theirs[k].max()), 3)],
            }
            for k in differing
        ],
    }


def chances(other: Classifier, images: list[np.ndarray]) -> np.ndarray:
    """Probabilities of another library, in float64."""
    logits = np.concatenate([other.logits([Image.fromarray(image)]) for image in images]).astype(np.float64)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def pictures(count: int, size: tuple[int, int] | None) -> list[np.ndarray]:
    """The first official test pictures in colour, stretched to one (height, width) or each to one of its own."""
    from vitrail.data.open import open_source

    source, draw = open_source("fashion-mnist"), np.random.default_rng(0)
    found = []
    for row in source.splits["test"][:count]:
        grey = Image.fromarray(np.asarray(source.images[row]).squeeze())
        height, width = size or draw.integers(20, 160, 2).tolist()
        found.append(np.array(grey.resize((width, height), Image.Resampling.BICUBIC).convert("RGB")))
    return found


if __name__ == "__main__":
    main()
