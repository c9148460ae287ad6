"""How alike the maps of trainings are that differ by their seed only: what two honest runs of one plan disagree about.

    python benchmarks/retrained.py RUN RUN [RUN ...]

Every run explains the same 100 pictures that the first one has held out, by the default method and by others, for the
class that the first run answers. Printed is the rank correlation of the maps, picture by picture, of all pairs of runs,
its mean and 95 % interval over pictures. Arun et al. 2021 ("Assessing the trustworthiness of saliency maps") call this
repeatability; a map that changes with the seed shows the run and not the pictures.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata

from vitrail.data.preprocess import normalize, preprocess_image
from vitrail.explain.faithfulness.localization import row_correlation
from vitrail.explain.methods import METHODS, MethodOptions
from vitrail.model.vit import ViT
from vitrail.predict.predictor import Predictor
from vitrail.services.evaluation import load_held_out
from vitrail.stats.intervals import bootstrap_interval

PICTURES = 100


def main() -> None:
    """Print one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--methods", default="relevance,legrad,grad-cam,integrated,rollout")
    options = parser.parse_args()
    if len(options.runs) < 2:
        print("Left out: two or more run folders of one plan with other seeds are needed (see --help).")
        return
    held = load_held_out(options.runs[0], "test")
    pictures = [held.source.images[row] for row in held.rows[:PICTURES].tolist()]
    predictors = [Predictor.open(run) for run in options.runs]
    answers = predictors[0].predict(pictures).indices.tolist()
    print(f"{'method':11} rank correlation between {len(options.runs)} runs, {len(pictures)} pictures")
    for method in options.methods.split(","):
        ranked = [ranks(predictor, pictures, method, answers) for predictor in predictors]
        pairs = np.mean([row_correlation(*pair) for pair in combinations(ranked, 2)], axis=0)  # [pictures]
        low, high = bootstrap_interval(pairs, lambda rows: float(rows.mean()), 0)
        print(f"{method:11} {pairs.mean():.3f} ({low:.3f} to {high:.3f})", flush=True)


def ranks(predictor: Predictor, pictures: list, method: str, answers: list[int]) -> np.ndarray:
    """The patches of every map by rank: [pictures, patches]."""
    member = predictor.single_member()
    assert isinstance(member.model, ViT)
    images = normalize(torch.stack([preprocess_image(picture, member.spec) for picture in pictures]), member.spec)
    of = answers if METHODS[method].class_specific else None
    steps = MethodOptions(steps=32) if method == "integrated" else MethodOptions()
    maps = np.concatenate(
        [METHODS[method].run(member.model, images[[i]], of and of[i], steps).values for i in range(len(images))]
    )
    return rankdata(maps.reshape(len(maps), -1), axis=1)


if __name__ == "__main__":
    main()
