"""How many planted near copies the doctor finds, and how many pictures it suspects wrongly.

    python benchmarks/near_duplicates.py                    # photographs, textures, look-alikes: about a minute
    python benchmarks/near_duplicates.py ELPV/images        # beside them, a folder of pictures of your own

Every second picture of a set gets a copy: resized, saved as JPEG of quality 75, or cropped by 2 % (of each side from
both ends, or from two ends only). Wrong is every picture in a pair that was not planted. Goal: 95 % found, at most
0.1 % of pictures suspected wrongly. Prints a table and writes benchmarks/results/near-duplicates.json.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from vitrail.data.checks import near_duplicates
from vitrail.data.checks.image_stats import measure_image
from vitrail.data.decoding.decode import decode_image
from vitrail.errors import DataError
from vitrail.runtime import cpu_name
from vitrail.spec import ImageSpec

RESULT = Path(__file__).parent / "results" / "near-duplicates.json"
SPEC = ImageSpec()
MANY = 100_000
GENERATED = ("photographs", "textures", "look-alikes")


def main() -> None:
    """Measure each set, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="a folder of pictures, searched to any depth")
    parser.add_argument("--pictures", type=int, default=2000, help="of each generated set")
    parser.add_argument("--skip-many", action="store_true", help=f"leave out the search among {MANY:,} sketches")
    options = parser.parse_args()
    made = (photographs(), textures(options.pictures), look_alikes(options.pictures))
    sets: dict[str, Iterator[np.ndarray]] = dict(zip(GENERATED, made, strict=True))
    if options.folder is not None:
        sets[options.folder.name] = of_folder(options.folder)
    rows = [measure_recall(name, list(pictures), name in GENERATED) for name, pictures in sets.items()]
    result: dict[str, object] = {
        "machine": cpu_name(),
        "thresholds": {
            "cosine": near_duplicates.MIN_CANDIDATE_COSINE,
            "alike": near_duplicates.MIN_SIMILARITY,
            "sure": near_duplicates.SURE_SIMILARITY,
        },
        "sets": rows,
    }
    if not options.skip_many:
        result["seconds_for_100000"] = seconds_for_many()
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {RESULT}")


def measure_recall(name: str, originals: list[np.ndarray], all_known: bool) -> dict[str, object]:
    """Plant, search, count. A folder of real pictures may hold copies of its own, so what is found beside the planted
    ones is counted there and called wrong only where every picture is known."""
    kinds = list(COPIES)
    generator = np.random.default_rng(7)
    copied = np.arange(0, len(originals), 2)
    copies = [COPIES[kinds[i % len(kinds)]](originals[row], generator) for i, row in enumerate(copied.tolist())]
    sketches = np.stack([sketch(picture) for picture in (*originals, *copies)])
    planted = {(row, len(originals) + i): kinds[i % len(kinds)] for i, row in enumerate(copied.tolist())}
    began = time.perf_counter()
    found = near_duplicates.find_near_duplicates(sketches)
    seconds = time.perf_counter() - began
    pairs = {tuple(pair) for pair in found.indices.tolist()}
    wrong = {place for pair in pairs - set(planted) for place in pair}
    recall = {kind: _share([pair in pairs for pair, each in planted.items() if each == kind]) for kind in kinds}
    row: dict[str, object] = {
        "set": name,
        "pictures": len(sketches),
        "planted": len(planted),
        "recall": round(_share([pair in pairs for pair in planted]), 4),
        "recall_of": {kind: round(share, 4) for kind, share in recall.items()},
        "wrongly_suspected" if all_known else "not_planted": round(len(wrong) / len(sketches), 5),
        "seconds": round(seconds, 2),
        **margins(sketches, planted),
    }
    shares = "  ".join(f"{kind} {share:.1%}" for kind, share in recall.items())
    print(f"{name:<12} {len(sketches):>6} pictures  found {row['recall']:.2%} ({shares})")
    kind = "wrong" if all_known else "not planted"
    print(f"{'':<12} {kind} {len(wrong)} = {len(wrong) / len(sketches):.3%} of pictures  {seconds:.1f} s")
    print(f"{'':<12} likeness of planted pairs {row['planted_alike']}, of others {row['others_alike']}", flush=True)
    return row


def margins(sketches: np.ndarray, planted: dict[tuple[int, int], str]) -> dict[str, object]:
    """How far planted pairs and others lie from the thresholds: the grounds on which these were chosen."""
    candidates = near_duplicates.find_candidate_pairs(sketches)
    own = near_duplicates.fit_sketch_whitening(sketches)
    parts = [
        candidates[start : start + near_duplicates.PAIRS_PER_CHUNK]
        for start in range(0, len(candidates), near_duplicates.PAIRS_PER_CHUNK)
    ]
    alike = np.concatenate([near_duplicates.compare_pairs(sketches, part, own)[0] for part in parts])
    is_planted = np.array([tuple(pair) in planted for pair in candidates.tolist()])
    described = near_duplicates.compute_descriptors(sketches)
    first, second = np.array(list(planted)).T
    cosines = (described[first] * described[second]).sum(1)
    return {
        "candidates": len(candidates),
        "planted_cosine": marks(cosines, (1, 2, 5, 50)),
        "planted_alike": marks(alike[is_planted], (1, 2, 5, 50)),
        "others_alike": marks(alike[~is_planted], (50, 99, 100)),
    }


def marks(values: np.ndarray, shares: tuple[int, ...]) -> dict[str, float]:
    """Percentiles."""
    return {f"{share} %": round(float(np.percentile(values, share)), 3) for share in shares if len(values)}


def seconds_for_many() -> float:
    """The search among 100,000 sketches of smooth noise."""
    generator = np.random.default_rng(0)
    small = generator.integers(0, 256, (MANY, 8, 8), dtype=np.uint8)
    sketches = np.stack(
        [np.asarray(Image.fromarray(each).resize((40, 40), Image.Resampling.BICUBIC)) for each in small]
    )
    began = time.perf_counter()
    pairs = near_duplicates.find_near_duplicates(sketches)
    seconds = round(time.perf_counter() - began, 1)
    print(f"{MANY:,} sketches: {seconds} s, {len(pairs.indices)} pairs")
    return seconds


def sketch(picture: np.ndarray) -> np.ndarray:
    """As the doctor makes it."""
    found = measure_image(picture, SPEC)
    if isinstance(found, str) or found.sketch is None:
        raise SystemExit(f"near_duplicates: a picture of {picture.shape} has no sketch")
    return found.sketch


def photographs() -> Iterator[np.ndarray]:
    """Tiles of scikit-learn's two photographs at three scales; none of a scale overlaps another of it."""
    for photo, side in itertools.product(load_sample_images().images, (70, 106, 142)):
        for top in range(0, photo.shape[0] - side + 1, side):
            for left in range(0, photo.shape[1] - side + 1, side):
                yield np.ascontiguousarray(photo[top : top + side, left : left + side])


def textures(n: int) -> Iterator[np.ndarray]:
    """Noise of many smoothnesses, directions, contrasts and sizes; every third in colour."""
    generator = np.random.default_rng(1)
    for number in range(n):
        height, width = generator.integers(70, 200, 2)
        channels = [
            noise(generator, height, width, generator.uniform(0.5, 2.5)) for _ in range(1 + 2 * (number % 3 == 0))
        ]
        values = np.stack(channels, axis=-1) * generator.uniform(6, 60) + generator.uniform(80, 170)
        yield np.rint(values).clip(0, 255).astype(np.uint8)


def look_alikes(n: int) -> Iterator[np.ndarray]:
    """Pictures of one kind of thing, all but equal: bars on a plate that is darker at its rim, with faint grain of its
    own, a few dark spots, and a camera that stands never quite the same."""
    generator = np.random.default_rng(2)
    for _ in range(n):
        shift_y, shift_x, scale = generator.normal(0, 0.01, 3)
        y, x = np.mgrid[-1:1:160j, -1:1:160j]
        y, x = y * (1 + scale) + shift_y, x * (1 + scale) + shift_x
        plate = 150 - 40 * (x**4 + y**4) - 70 * (np.abs((x * 1.5) % 1 - 0.5) < 0.04) - 15 * ((y * 20) % 1 < 0.3)
        grain = noise(generator, 160, 160, 1.2) * generator.uniform(4, 12)
        spots = np.zeros_like(plate)
        for _ in range(generator.integers(0, 4)):
            top, left, size = *generator.uniform(-0.8, 0.8, 2), generator.uniform(0.03, 0.15)
            spots -= generator.uniform(20, 60) * np.exp(-((y - top) ** 2 + (x - left) ** 2) / size**2)
        bright = generator.normal(1, 0.08)
        values = (plate + grain + spots) * bright + generator.normal(0, 2, plate.shape)
        yield np.rint(values).clip(0, 255).astype(np.uint8)


def noise(generator: np.random.Generator, height: int, width: int, fall: float) -> np.ndarray:
    """[height, width] of mean 0 and deviation 1 whose amplitude falls with the frequency to the power of `fall`."""
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    turn = generator.uniform(0.6, 1.6)
    amplitude = 1 / np.maximum(np.hypot(down * turn, across / turn), 1 / max(height, width)) ** fall
    phases = np.exp(2j * np.pi * generator.random(amplitude.shape))
    values = np.fft.irfft2(amplitude * phases * generator.normal(1, 0.3, amplitude.shape), (height, width))
    return (values - values.mean()) / values.std()


def of_folder(folder: Path) -> Iterator[np.ndarray]:
    """Every picture below a folder that can be read and is large enough."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            try:
                values = decode_image(path, SPEC)
            except DataError:
                continue
            if min(values.shape[:2]) >= 64:
                yield values


def resize_randomly(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """To between half and one and a half of its size, but not below 64 pixels."""
    least = 64 / min(values.shape[:2])
    factor = max(least, generator.uniform(0.5, 1.5))
    size = round(values.shape[1] * factor), round(values.shape[0] * factor)
    return np.asarray(_image(values).resize(size, Image.Resampling.BICUBIC))


def as_jpeg(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Saved and read again."""
    data = io.BytesIO()
    _image(values).save(data, "JPEG", quality=75)
    return np.asarray(Image.open(data))


def crop_edges(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """2 % less at each of the four ends."""
    down, across = (max(1, round(0.02 * side)) for side in values.shape[:2])
    return np.ascontiguousarray(values[down:-down, across:-across])


def cropped_at_a_corner(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """2 % less at two ends that meet."""
    down, across = (max(1, round(0.02 * side)) for side in values.shape[:2])
    rows = slice(down, None) if generator.random() < 0.5 else slice(None, -down)
    columns = slice(across, None) if generator.random() < 0.5 else slice(None, -across)
    return np.ascontiguousarray(values[rows, columns])


def cropped_resized_jpeg(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """All three."""
    return as_jpeg(resize_randomly(crop_edges(values, generator), generator), generator)


def _image(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values)


def _share(found: list[bool]) -> float:
    return sum(found) / max(1, len(found))


COPIES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "resized": resize_randomly,
    "jpeg 75": as_jpeg,
    "crop 2 %": crop_edges,
    "corner 2 %": cropped_at_a_corner,
    "all three": cropped_resized_jpeg,
}

if __name__ == "__main__":
    main()
