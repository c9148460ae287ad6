"""False alarms of `vitrail watch` in simulated months without a change, and the days until it notices one.

    python benchmarks/watch.py [--elpv ELPV --dinov2 DINOV2]    # ELPV, DINOV2: as benchmarks/elpv.py

A small model is trained on Fashion-MNIST without the class Bag; of ELPV a probe of DINOv2-S/14 at 70 pixels is fitted
to 600 polycrystalline solar cells, sound or defective, and monocrystalline ones are the new class. Its scores and
features are computed once for the test pictures of every condition: as they are, darker, blurred, of another camera
(gamma, contrast, noise), and those of the class that the training had not. Months are drawn from these without
replacement: the reference, then days of pictures, so that a month without a change has none.

Rows `null` have 1,000 months of 30 days; with copies every picture comes five times, as a group. Rows `drift` have ten
days without a change and thirty with it: on all pictures, or on a tenth of them (new class), or with twice the share of
one class (prevalence). Rows that are there are kept. Writes benchmarks/results/watch.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from elpv import read_cells
from making.records import Results, Row, commit
from PIL import Image
from scipy.ndimage import gaussian_filter

import vitrail
from vitrail.data.open import open_source
from vitrail.evaluate.drift import ScoredImages, watch_days
from vitrail.evaluate.predictions import ClassificationPredictions
from vitrail.evaluate.tta import TtaViews
from vitrail.predict.predictor import Predictor

MONTHS, REPEATS = 1000, 50
DAYS_BEFORE, DAYS_AFTER = 10, 30
PROMISE = 0.1
NAMES = {"fashion-mnist": "Fashion-MNIST", "elpv": "ELPV"}
CONDITIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "clean": lambda images: images,
    "darkening": lambda images: images * 0.8,
    "blur": lambda images: gaussian_filter(images, (0, images.shape[1] / 56, images.shape[1] / 56)),
    "camera": lambda images: (
        255 * (0.06 + 0.88 * (images / 255) ** 0.9) + np.random.default_rng(0).normal(0, 6, images.shape)
    ),
}
"""float32 [n, H, W] of 0..255 -> the same under this condition."""


class Pool(NamedTuple):
    """Scores of every condition, and the classes of the test pictures."""

    names: tuple[str, ...]
    scored: dict[str, ScoredImages]
    """By condition; new class has pictures of its own."""
    classes: np.ndarray
    reference: int
    """Pictures of a reference; the others are for the stream."""


def main() -> None:
    """Train, score the pools, simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elpv", type=Path, help="ELPV's folder with labels.csv and images/")
    parser.add_argument("--dinov2", type=Path, help="what benchmarks/making/real_dinov2.py made")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = Results("watch")
    simulate(results, "fashion-mnist", (10, 30, 100), 1, partial(make_fashion_pool, options.folder))
    if options.elpv is None or options.dinov2 is None:
        print("elpv: left out, needs --elpv and --dinov2; see --help")
    else:
        simulate(results, "elpv", (10,), 5, partial(make_elpv_pool, options.folder, options.elpv, options.dinov2))
    results.write({})
    results.path.with_suffix(".md").write_text(describe(results.rows), encoding="utf-8")


def simulate(
    results: Results, source: str, days: tuple[int, ...], most_copies: int, make_pool: Callable[[], Pool]
) -> None:
    """Every row of a source that is not there; its model and scores are made for the first of them."""
    pools: list[Pool] = []

    def pool() -> Pool:
        if not pools:
            pools.append(make_pool())
        return pools[0]

    for per_day, promise, copies in dict.fromkeys(
        ((days[0], PROMISE, 1), (days[-1], PROMISE, 1), (days[0], 1.0, 1), (days[0], PROMISE, most_copies))
    ):
        key: Row = {"source": source, "kind": "null", "per_day": per_day, "promise": promise}
        key |= {"copies": copies} if copies > 1 else {}
        make = lambda a=per_day, b=promise, c=copies: simulate_null(pool(), a, b, c)  # noqa: E731
        print(results.row(key, make), flush=True)
    for per_day in days:
        for drift in ("darkening", "blur", "camera", "new class", "prevalence"):
            key = {"source": source, "kind": "drift", "drift": drift, "per_day": per_day}
            make = lambda a=drift, b=per_day: simulate_drift(pool(), a, b)  # noqa: E731
            print(results.row(key, make), flush=True)


def describe(rows: list[Row]) -> str:
    """Both tables, for docs/watch.md."""
    lines = [
        "| pictures | a day | promised in a month | false alarms in a month | months with one |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        if row["kind"] != "drift":
            alarms = f"{row['alarms_in_a_month']:.3f} | {row['months_with_an_alarm']:.1%}"
            five = ", each five times, as groups" if row.get("copies") else ""
            lines.append(f"| {NAMES[row['source']]} | {row['per_day']}{five} | {row['promise']:g} | {alarms} |")
    lines += ["", "| pictures | change | a day | days until noticed: 10 %, median, 90 % of the changes | in 30 days |"]
    lines.append("|---|---|---|---|---:|")
    for row in rows:
        if row["kind"] == "drift":
            days = ", ".join("more than 30" if one is None else str(one) for one in row["days_until_noticed"])
            what = f"{NAMES[row['source']]} | {row['drift']} | {row['per_day']}"
            lines.append(f"| {what} | {days} | {row['noticed_in_30_days']:.0%} |")
    return "\n".join(lines) + "\n"


# -- Pools.


def make_fashion_pool(folder: Path) -> Pool:
    """A model of nine classes of Fashion-MNIST, and its scores of 10,000 test pictures."""
    source = open_source("fashion-mnist")
    images, targets, names = np.asarray(source.images), source.targets, np.array(source.classes, object)
    known = targets != source.classes.index("Bag")
    train = np.intersect1d(source.splits["train"], np.flatnonzero(known))[:20_000]
    test = source.splits["test"]
    run = fit(folder / "watch-fashion-mnist", images[train], names[targets[train]], 800, "vit_nano_patch4_28")
    old, new = test[known[test]], test[~known[test]]
    return score_pool(run, images[old], images[new], targets[old], 4000)


def make_elpv_pool(folder: Path, elpv: Path, dinov2: Path) -> Pool:
    """A probe of polycrystalline cells, and its scores of 900 others; 200 monocrystalline cells are the new class."""
    cells = read_cells(elpv / "labels.csv")
    order = np.random.default_rng(0).permutation(len(cells)).tolist()
    poly, mono = ([row for row in order if cells[row][2] == kind] for kind in ("poly", "mono"))
    defective = np.array([chance > 0.5 for _, chance, _ in cells])

    def read(rows: list[int]) -> np.ndarray:
        return np.stack([np.asarray(Image.open(elpv / cells[row][0]).convert("L").resize((70, 70))) for row in rows])

    train, old, new = poly[:600], poly[600:1500], mono[:200]
    place = folder / "watch-elpv"
    if not (place / "report.json").is_file():
        settings = {"compute.threads": 1, "data.test_fraction": 0.05, "finetune.method": "probe"}
        names = np.array(["sound", "defective"], object)[defective[train].astype(int)]
        vitrail.fit((read(train), names), weights=dinov2, image_size=70, device="cpu", out=place, settings=settings)
    return score_pool(vitrail.open(place), read(old), read(new), defective[old].astype(np.int64), 450)


def fit(folder: Path, images: np.ndarray, names: np.ndarray, steps: int, model: str) -> vitrail.Run:
    """Train a run, or open it if it is there."""
    if (folder / "report.json").is_file():
        return vitrail.open(folder)
    settings = {"compute.threads": 1, "data.test_fraction": 0.05}  # the pool is held out from all of it
    return vitrail.fit((images, names), model=model, steps=steps, device="cpu", out=folder, settings=settings)


def score_pool(run: vitrail.Run, old: np.ndarray, new: np.ndarray, classes: np.ndarray, reference: int) -> Pool:
    """The scores of old pictures under every condition and of new ones; they are kept in the run folder."""
    member = run.predictor.single_member()
    predictor = Predictor([replace(member, settings=replace(member.settings, views=TtaViews()))])  # one view is quick
    scored = {}
    for name, change in {**CONDITIONS, "new class": CONDITIONS["clean"]}.items():
        file = run.path / f"scores-{name.replace(' ', '-')}.npz"
        if not file.is_file():
            images = change((new if name == "new class" else old).astype(np.float32))
            table = predictor.predict(list(images.clip(0, 255).round().astype(np.uint8)))
            assert isinstance(table, ClassificationPredictions) and table.distances is not None
            np.savez(file, distances=table.distances, scores=table.probabilities, abstained=table.abstained)
        stored = np.load(file)
        n = len(stored["scores"])
        scored[name] = ScoredImages(
            ids=("",) * n, times=np.zeros(n, "datetime64[s]"), groups=None, distances=stored["distances"],
            scores=stored["scores"].astype(np.float64), abstained=stored["abstained"],
        )  # fmt: skip
    return Pool(predictor.classes, scored, classes, reference)


# -- Months.


def dated(images: ScoredImages, days: np.ndarray, month: int, groups: np.ndarray | None = None) -> ScoredImages:
    """The images with a day each, and names that differ from month to month, by which ties are broken."""
    times = np.datetime64("2026-01-01T12:00:00") + days.astype("timedelta64[D]")
    return ScoredImages(
        ids=tuple(f"{month}-{row}" for row in range(len(images))), times=times.astype("datetime64[s]"), groups=groups,
        distances=images.distances, scores=images.scores, abstained=images.abstained,
    )  # fmt: skip


def simulate_null(pool: Pool, per_day: int, promise: float, copies: int) -> Row:
    """Months without a change: alarms in each."""
    clean, alarms = pool.scored["clean"], []
    for month in range(MONTHS):
        rows = np.random.default_rng((1, month)).permutation(len(clean))[: pool.reference + 30 * per_day]
        reference = clean.take(rows[: pool.reference])
        own, numbers = rows[pool.reference :].repeat(copies), np.arange(30 * per_day).repeat(copies)
        stream = dated(clean.take(own), numbers // per_day, month, None if copies == 1 else numbers.astype(str))
        days = watch_days("classification", pool.names, reference, stream, promise)[1]
        alarms.append(sum(len(day.alarms) for day in days))
    found = np.array(alarms)
    return {
        "months": MONTHS,
        "alarms_in_a_month": float(found.mean()),
        "months_with_an_alarm": float((found > 0).mean()),
        "reference": pool.reference,
        "commit": commit(),
    }


def simulate_drift(pool: Pool, drift: str, per_day: int) -> Row:
    """Days from a change until the first alarm; before it a false one is counted, and the test begins anew."""
    delays, false, measures = [], 0, dict[str, int]()
    days = DAYS_BEFORE + DAYS_AFTER
    for repeat in range(REPEATS):
        generator = np.random.default_rng((2, repeat))
        rows = generator.permutation(len(pool.classes))
        before, after, rest = np.split(
            rows[pool.reference :], [DAYS_BEFORE * per_day, min(days * per_day, len(rows) - pool.reference)]
        )
        numbers = np.arange(len(before) + len(after)) // per_day
        now = changed(pool, drift, after, rest, generator)
        first, clean = [pool.scored["clean"].take(some) for some in (rows[: pool.reference], before)]
        stream = dated(join(clean, now), numbers, repeat)
        found = watch_days("classification", pool.names, first, stream, PROMISE)[1]
        false += any(day.alarms for day in found[:DAYS_BEFORE])
        place = next((place for place, day in enumerate(found[DAYS_BEFORE:], 1) if day.alarms), None)
        delays.append(np.inf if place is None else place)
        for alarm in found[DAYS_BEFORE + place - 1].alarms if place else ():
            measures[alarm.measure] = measures.get(alarm.measure, 0) + 1
    quantiles = np.quantile(delays, [0.1, 0.5, 0.9], method="inverted_cdf")
    return {
        "repeats": REPEATS,
        "days_until_noticed": [None if np.isinf(one) else int(one) for one in quantiles],
        "noticed_in_7_days": float(np.mean(np.array(delays) <= 7)),
        "noticed_in_30_days": float(np.isfinite(delays).mean()),
        "false_alarms_before": false / REPEATS,
        "first_measures": dict(sorted(measures.items(), key=lambda pair: -pair[1])[:3]),
        "commit": commit(),
    }


def changed(
    pool: Pool, drift: str, rows: np.ndarray, others: np.ndarray, generator: np.random.Generator
) -> ScoredImages:
    """Pictures after the change: these rows under another condition, or partly others instead."""
    clean = pool.scored["clean"]
    if drift in CONDITIONS:
        return pool.scored[drift].take(rows)
    if drift == "new class":
        new = pool.scored["new class"]
        replaced = np.flatnonzero(generator.random(len(rows)) < 0.1)[: len(new)]
        parts = join(clean.take(rows), new.take(generator.permutation(len(new))[: len(replaced)]))
        order = np.arange(len(rows))
        order[replaced] = len(rows) + np.arange(len(replaced))
        return parts.take(order)
    grown = pool.classes == pool.classes.max()
    share = 2 * grown.mean()
    weights = np.where(grown, share / grown.sum(), (1 - share) / (~grown).sum())
    everything = np.concatenate([rows, others])
    chosen = generator.choice(everything, len(rows), p=weights[everything] / weights[everything].sum())
    return clean.take(chosen)


def join(one: ScoredImages, other: ScoredImages) -> ScoredImages:
    """Both one after the other."""
    assert one.distances is not None and other.distances is not None
    return ScoredImages(
        ids=one.ids + other.ids, times=np.concatenate([one.times, other.times]), groups=None,
        distances=np.concatenate([one.distances, other.distances]),
        scores=np.concatenate([one.scores, other.scores]), abstained=np.concatenate([one.abstained, other.abstained]),
    )  # fmt: skip


if __name__ == "__main__":
    main()
