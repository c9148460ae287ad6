"""Does the forecast of `vitrail evaluate RUN --plan-test doubling` hold what twice the pictures really bring?

    python benchmarks/doubling.py [--repeats 30]

Features are frozen: the pixels of digits, and the 64 first principal components of Fashion-MNIST's pixels. Each repeat
draws n training images, as many more, a validation and a test set; the forecast sees the first n. Afterwards probes are
fitted to all 2n, and the real change on the same test set is compared. Rows that are there are kept. Writes
benchmarks/results/doubling.json.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from making.records import Results, Row, commit
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from vitrail.data.open import open_source
from vitrail.services.refitting import LabelledFeatures, fit_contributions, fit_learning_curve

STUDIES = {"digits": (100, 400), "fashion-mnist": (150, 600)}
"""Training images before the doubling."""
HELD_OUT = {"digits": 500, "fashion-mnist": 1000}


def main() -> None:
    """Simulate every study that is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    results = Results("doubling")
    for name, sizes in STUDIES.items():
        for n in sizes:
            key: Row = {"features": name, "images": n, "repeats": options.repeats}
            row = results.row(key, partial(simulate, name, n, options.repeats))
            print(row, flush=True)
    results.write({})


def read_features(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [N, P] and class indices."""
    if name == "digits":
        pixels, targets = load_digits(return_X_y=True)
        return pixels.astype(np.float32) / 16, targets.astype(np.int64)
    source = open_source("fashion-mnist")
    rows = source.splits["train"][:12_000]
    pixels = np.stack([np.asarray(source.images[row], np.float32).ravel() / 255 for row in rows])
    return PCA(64, random_state=0).fit_transform(pixels).astype(np.float32), source.targets[rows].astype(np.int64)


def simulate(name: str, n: int, repeats: int) -> Row:
    """How often the interval holds the real change, and both changes on average."""
    features, targets = read_features(name)
    classes, rows = int(targets.max()) + 1, []
    for repeat in range(repeats):
        order = np.random.default_rng((7, repeat)).permutation(len(targets))
        sizes = np.cumsum([n, n, max(n // 4, 30), HELD_OUT[name]])
        parts = [LabelledFeatures(features[some], targets[some]) for some in np.split(order[: sizes[-1]], sizes[:-1])]
        first, more, valid, held_out = parts
        forecast = fit_learning_curve(first, valid, held_out, "classification", classes, repeat)
        twice = LabelledFeatures(*(np.concatenate(pair) for pair in ((first.features, more.features),
                                                                      (first.targets, more.targets))))  # fmt: skip
        real = float(fit_contributions(twice, valid, held_out, "classification", classes, repeat).mean())
        change, (low, high) = real - forecast.values[-1], forecast.interval
        rows.append((low <= change <= high, forecast.gain, change, high - low, change < low, forecast.values[-1]))
    inside, gain, change, width, below, value = np.mean(rows, axis=0)
    return {
        "held": round(float(inside), 4), "below": round(float(below), 4), "accuracy": round(float(value), 4),
        "forecast": round(float(gain), 4), "real": round(float(change), 4), "width": round(float(width), 4),
        "held_out": HELD_OUT[name], "commit": commit(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
