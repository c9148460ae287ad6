"""CIFAR's files as they were published, in miniature: Python 2's own pickles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import python2

NAMES10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def batch(first: int, count: int, key: str, many: int) -> dict:
    """`count` pictures; picture i is red i, green i + 1 and blue i + 2, its upper left pixel white."""
    rows = np.repeat(np.arange(first, first + count, dtype=np.uint8)[:, None], 3072, axis=1)
    rows = rows + np.repeat(np.arange(3, dtype=np.uint8), 1024)
    rows[:, ::1024] = 255
    labels = [(first + row) % many for row in range(count)]
    content = {
        "batch_label": "b",
        key: labels,
        "data": rows,
        "filenames": [f"{first + row}.png" for row in range(count)],
    }
    return content | ({"coarse_labels": [0] * count} if key == "fine_labels" else {})


def files10() -> dict[str, dict]:
    found = {f"data_batch_{number}": batch(4 * number, 4, "labels", 10) for number in range(1, 6)}
    found["test_batch"] = batch(40, 6, "labels", 10)
    found["batches.meta"] = {"num_cases_per_batch": 4, "label_names": NAMES10, "num_vis": 3072}
    return found


def files100() -> dict[str, dict]:
    names = [f"fine {number}" for number in range(100)]
    return {
        "train": batch(1, 20, "fine_labels", 100),
        "test": batch(40, 6, "fine_labels", 100),
        "meta": {"fine_label_names": names, "coarse_label_names": ["all"]},
    }


def write(folder: Path, files: dict[str, dict], pickled=python2.pickled) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(pickled(content))
    return folder
