"""Does the default map point at planted evidence whatever head reads the model, and nowhere if nothing was learnt?

    python benchmarks/planted_heads.py                    # twelve trainings of 450 steps, one of 2,000, two at a time
    python benchmarks/planted_heads.py --heads mean class
    python benchmarks/planted_heads.py --heads            # shuffled labels alone

Goals X3 and X7: on pictures of which the glyph that makes the class is known, models of three blocks are trained with
every kind of head, with registers, and with every kind of position; on 200 held-out pictures the share of maps whose
largest patch lies on the glyph (pointing) should be 95 %. Others learn labels that were shuffled among the training
pictures, one of them for four times as long: their maps of the true class should point no better than chance, and lie
on the glyph no more than on the decoy, which has as many bright pixels. Steps are fixed, one thread each, so
speed changes nothing. Rows that are there are kept. Writes benchmarks/results/planted-heads.json and, of the shuffled
labels, planted-shuffled.json, each with a table beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from making.records import RESULTS, Job, Results, Row, train_run

from vitrail.data.source import Source
from vitrail.data.sources.synthetic import CLASSES, open_synthetic
from vitrail.explain.faithfulness.benchmark import LocalizationResult, MeanEstimate
from vitrail.explain.methods import default_method
from vitrail.model.vit import ViT
from vitrail.predict.predictor import Predictor
from vitrail.services.evaluation import LabelledImages, load_held_out
from vitrail.services.map_faithfulness import get_map_function, measure_faithfulness

CLASS = ("--model.class_token", "true")
HEADS: dict[str, tuple[object, ...]] = {
    "mean": ("--model.pool", "mean"),
    "class": (*CLASS, "--model.pool", "class"),
    "class+mean": (*CLASS, "--model.pool", "class+mean"),
    "attention": ("--model.pool", "attention"),
    "two heads (DeiT)": (
        *(*CLASS, "--model.pool", "class", "--model.distillation_token", "true"),
        *("--model.distillation_head", "true", "--model.pooled_norm", "false"),
    ),
    "mean, 4 registers": ("--model.pool", "mean", "--model.registers", 4),
    "class+mean, no rotation": (*CLASS, "--model.pool", "class+mean", "--model.rotary", "none"),
    "class+mean, no table": (*CLASS, "--model.pool", "class+mean", "--model.positions", "none"),
    "class, relative positions": (*(*CLASS, "--model.pool", "class", "--model.rotary", "none", "--model.relative", 2),),
}
STEPS = 450
SHUFFLED = ((STEPS, 0), (STEPS, 1), (STEPS, 2), (2_000, 0))
"""Steps and seeds of the trainings of class+mean on labels that say nothing."""
USUAL = ("--model.depth", 3, "--compute.precision", "float32", "--compute.threads", 1)
PICTURES = 200


def main() -> None:
    """Train what is missing, measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the trainings with every kind of head")
    parser.add_argument("--heads", nargs="*", choices=tuple(HEADS), default=list(HEADS))
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    options = parser.parse_args()
    seed = options.seed
    heads: list[Job] = [
        ({"head": head, "seed": seed}, partial(one, options.folder, head, seed)) for head in options.heads
    ]
    shuffles: list[Job] = [
        ({"asked": steps, "seed": seed}, partial(train_on_shuffled_labels, options.folder, steps, seed))
        for steps, seed in SHUFFLED
    ]
    for name, jobs, columns in (("planted-heads", heads, OF_HEADS), ("planted-shuffled", shuffles, OF_DEALS)):
        results = Results(name)
        for row in results.side_by_side(jobs):
            print(f"{name}: {row}", flush=True)
        results.write({})
        (RESULTS / f"{name}.md").write_text(table(columns, results.rows), encoding="utf-8")
        print(table(columns, results.rows))


def one(folder: Path, head: str, seed: int) -> Row:
    """Train one model and measure its default maps on pictures that it has not seen."""
    name = "".join(sign if sign.isalnum() else "-" for sign in head)
    run = folder / f"planted-heads-{name}-seed{seed}"
    row = train_run(run, "planted", *HEADS[head], *USUAL, "--steps", STEPS, "--seed", seed)
    method, at = locate_maps(Predictor.open(run), open_synthetic())
    return {
        "method": method,
        "accuracy": row["accuracy"],
        **pointing_accuracy(at),
        "in_box": at.in_box.value,
        "chance_box": at.chance_box,
        "steps": row["steps"],
        "commit": row["commit"],
    }


def train_on_shuffled_labels(folder: Path, steps: int, seed: int) -> Row:
    """The same of a model that has learnt labels which were dealt out anew."""
    planted = open_synthetic()
    source = shuffle_labels(planted, folder / f"planted-shuffled-seed{seed}.npz", seed)
    run = folder / f"planted-shuffled-{steps}-seed{seed}"
    row = train_run(run, source, *HEADS["class+mean"], *USUAL, "--steps", steps, "--seed", seed)
    predictor = Predictor.open(run)
    _, at = locate_maps(predictor, planted)
    return {
        "learnt": train_accuracy(predictor, load_held_out(run, "train")),
        "accuracy": row["accuracy"],
        **pointing_accuracy(at),
        "on_glyph": at.in_mask.value,
        "on_glyph_interval": ends(at.in_mask),
        "on_decoy": at.on_decoy.value,
        "on_decoy_interval": ends(at.on_decoy),
        "chance_ink": at.chance_mask,
        "commit": row["commit"],
    }


def locate_maps(predictor: Predictor, planted: Source) -> tuple[str, LocalizationResult]:
    """The default method, and where its maps of held-out pictures lie."""
    model = predictor.single_member().model
    assert isinstance(model, ViT)
    method = default_method(model.config)
    held = LabelledImages(planted, planted.splits["test"], "test")
    truth = measure_faithfulness(predictor, held, {method: get_map_function(method)}, PICTURES, num_randomized=0)
    at = next(row.located for row in truth.rows if row.method == method)
    assert at is not None
    return method, at


def train_accuracy(predictor: Predictor, given: LabelledImages) -> float:
    """Share of the pictures learnt from whose label, true or dealt out, is answered."""
    said = predictor.predict([given.source.images[row] for row in given.rows.tolist()]).indices
    return float((said == given.source.targets[given.rows]).mean())


def pointing_accuracy(at: LocalizationResult) -> Row:
    """How often the largest patch lies on the glyph."""
    chance = at.chance_pointing
    found: Row = {"pointing": at.pointing.value, "pointing_interval": ends(at.pointing), "chance_pointing": chance}
    return {"pictures": PICTURES, **found}


def ends(found: MeanEstimate) -> list[float]:
    """Both ends of the 95 % interval."""
    return [found.interval.low, found.interval.high]


def shuffle_labels(planted: Source, path: Path, seed: int) -> Path:
    """The same pictures in the same splits; the labels of those that are learnt from are dealt out anew."""
    arrays: dict[str, np.ndarray] = {"classes": np.array(CLASSES)}
    for split, rows in planted.splits.items():
        targets = np.array(planted.targets[rows])
        if split != "test":
            np.random.default_rng(seed).shuffle(targets)
        arrays |= {f"x_{split}": planted.images[rows], f"y_{split}": targets}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def table(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> str:
    """One line a row, words on the left and numbers on the right."""
    lines = ["|".join(["", *(f" {title} " for title in columns), ""])]
    lines += ["|".join(["", "---", *["---:"] * (len(columns) - 1), ""])]
    lines += ["|".join(["", *(f" {cell(row)} " for cell in columns.values()), ""]) for row in rows]
    return "\n".join(lines) + "\n"


def format_share(row: Row, name: str) -> str:
    """A share with its interval."""
    return f"{row[name]:.1%} ({' to '.join(f'{end:.1%}' for end in row[f'{name}_interval'])})"


OF_HEADS: dict[str, Callable[[Row], str]] = {
    "head": lambda row: row["head"],
    "seed": lambda row: str(row["seed"]),
    "right": lambda row: f"{row['accuracy']:.1%}",
    "pointing (95 %)": lambda row: format_share(row, "pointing"),
    "by chance": lambda row: f"{row['chance_pointing']:.1%}",
    "in the glyph's box": lambda row: f"{row['in_box']:.1%} ({row['chance_box']:.1%} by chance)",
}
OF_DEALS: dict[str, Callable[[Row], str]] = {
    "steps": lambda row: f"{row['asked']:,}",
    "seed": lambda row: str(row["seed"]),
    "labels learnt": lambda row: f"{row['learnt']:.1%}",
    "right": lambda row: f"{row['accuracy']:.1%}",
    "pointing (95 %)": lambda row: format_share(row, "pointing"),
    "by chance": lambda row: f"{row['chance_pointing']:.1%}",
    "on the glyph's ink": lambda row: format_share(row, "on_glyph"),
    "on the decoy's": lambda row: format_share(row, "on_decoy"),
}


if __name__ == "__main__":
    main()
