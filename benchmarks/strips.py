"""Strips, such as those of a line-scan camera: squashed to a square, or their shape kept in as many patches.

    python benchmarks/strips.py --steps 600      # about fifteen minutes for three seeds
    python benchmarks/strips.py --seeds 0 --weights DINOV2    # probes of frozen features, in 224 pixels or as many

Three drawn sets of 96 x 768 pixels, of 1,000 pictures each: eight handwritten digits beside each other, where the class
is whether a 7 is among them; a web of fine noise with a dark line across it, along it or none; and a weak wave along
it, whose length is the class. Each is trained as the plan has it, and with the square that it had before, for the same
number of steps; or its frozen features are probed from a checkpoint. Writes benchmarks/results/strips.json; rows that
are there are kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from making.records import Results, train_run
from PIL import Image
from sklearn.datasets import load_digits

HEIGHT, WIDTH, COUNT = 96, 768, 1000
SIZES = {"shape kept": None, "square": "96"}
Drawing = Callable[[np.random.Generator], tuple[np.ndarray, str]]


def main() -> None:
    """Draw the sets, and train on each of them in both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("strips"))
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--weights", help="a checkpoint whose features are probed, instead of training from scratch")
    parser.add_argument("--sets", nargs="+", default=list(DRAWINGS), choices=list(DRAWINGS))
    options = parser.parse_args()
    results = Results("strips")
    for seed in options.seeds:
        for name in options.sets:
            source = write_set(options.folder / name.replace(" ", "-"), DRAWINGS[name])
            for way, size in SIZES.items():
                key = {"set": name, "size": way, "steps": options.steps, "seed": seed}
                words = ["--steps", options.steps, "--seed", seed, "--weights", "none"]
                if options.weights:
                    key |= {"steps": 0, "weights": Path(options.weights).name}
                    words = ["--seed", seed, "--weights", options.weights, "--finetune.method", "probe"]
                    size = size and "224"
                words += [] if size is None else ["--image-size", size]
                run = options.folder / "runs" / "-".join(str(value).replace(" ", "-") for value in key.values())
                row = results.row(key, partial(train_run, run, source, *words))
                print(f"{name}, {way}, seed {seed}: {row['accuracy']:.1%} in {row['seconds']:.0f} s", flush=True)
    results.write({})


def draw_digits(random: np.random.Generator) -> tuple[np.ndarray, str]:
    """Eight digits side by side; whether a 7 is among them."""
    data, has_seven = load_digits(), bool(random.integers(2))
    usable = np.flatnonzero(data.target != 7)
    rows = random.choice(usable, 8)
    if has_seven:
        rows[random.integers(8)] = random.choice(np.flatnonzero(data.target == 7))
    side = HEIGHT // 8
    pieces = [np.kron(data.images[row] * 12, np.ones((side, side))) for row in rows]
    return np.concatenate(pieces, axis=1), "seven" if has_seven else "none"


def draw_web(random: np.random.Generator) -> tuple[np.ndarray, str]:
    """Fine noise with a dark line of three pixels across the strip, along it, or none."""
    values, kind = random.normal(128, 24, (HEIGHT, WIDTH)), ("across", "along", "none")[random.integers(3)]
    if kind == "across":
        place = random.integers(WIDTH - 3)
        values[:, place : place + 3] -= 40
    if kind == "along":
        place = random.integers(HEIGHT - 3)
        values[place : place + 3] -= 40
    return values, kind


def draw_wave(random: np.random.Generator) -> tuple[np.ndarray, str]:
    """A weak wave along the strip in noise: one of four lengths, of 16 to 44 pixels."""
    kind = int(random.integers(4))
    wave = 16 * np.sin(2 * np.pi * (np.arange(WIDTH) / (16, 22, 31, 44)[kind] + random.uniform()))
    return random.normal(128, 24, (HEIGHT, WIDTH)) + wave, f"length-{kind}"


DRAWINGS: dict[str, Drawing] = {"digits": draw_digits, "web": draw_web, "wave": draw_wave}


def write_set(folder: Path, draw: Drawing) -> Path:
    """Class folders of drawn strips, made once."""
    if folder.is_dir():
        return folder
    random = np.random.default_rng(0)
    for number in range(COUNT):
        values, kind = draw(random)
        path = folder / kind / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.clip(0, 255).round().astype(np.uint8)).save(path)
    return folder


if __name__ == "__main__":
    main()
