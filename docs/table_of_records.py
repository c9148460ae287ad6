"""Write the tables of docs/figures.md from benchmarks/results/: what was measured, under which conditions."""

from __future__ import annotations

from pathlib import Path

import records_of_speed
from markers import fill
from tables import Found, line, read, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "figures.md"
RESULTS = ROOT / "benchmarks" / "results"
SEEDS = "± is the standard deviation over seeds; a row of one seed has none."
FOLDS = "± is the standard deviation over folds, of all seeds together."
PAIRED = "Intervals are 95 % of the differences paired by seed (Student's t)."


def main() -> None:
    """Replace what stands between the markers."""
    fill(PAGE, "records", page(RESULTS))


def page(results: Path) -> str:
    """Every section with results, in the order in which a reader asks; last a line with the commands of the others."""
    tables = (
        ("Fashion-MNIST from scratch", "fashion_mnist.py", "fashion-mnist-*min.json", fashion(results), SEEDS),
        (
            "Beside timm's ViT of the same shape",
            "fashion_mnist_peer.py",
            "peer-fashion-mnist-*min.json",
            peer(results),
            "",
        ),
        ("Digits in five folds", "digits_folds.py", "digits-5-folds.json", digits(results), FOLDS),
        ("Solar cells in five folds (ELPV)", "elpv.py ELPV DINOV2", "elpv.json", elpv(results), FOLDS),
        ("From a checkpoint", "transfer.py DINOV2 ELPV", "transfer.json", transfer(results), SEEDS),
        ("Class weights where classes are uneven", "imbalance.py", "imbalance.json", imbalance(results), PAIRED),
        (
            "What each lever is worth",
            "ablation.py",
            "ablation-*min.json",
            written_tables(results, "ablation-*.md"),
            PAIRED,
        ),
        (
            "The plan that picks itself, beside six by hand",
            "plans.py --elpv ELPV",
            "plans.json",
            written_tables(results, "plans.md"),
            "",
        ),
        (
            "Minutes asked for, and taken",
            "minutes.py",
            "minutes.json",
            written_tables(results, "minutes.md"),
            "Other work, of the scheduler's idle class, ran beside all rows; busy: two processes on both cores.",
        ),
        (
            "What a dry run promises, and what the run takes",
            "predictions.py",
            "predictions.json",
            written_tables(results, "predictions.md"),
            "",
        ),
        (
            "Exported files beside PyTorch, in pictures a second",
            "exporting.py --run RUN",
            "exporting-*.json",
            exporting(results),
            "",
        ),
        (
            "The server beside its model and others",
            "serving.py",
            "serving.json",
            written_tables(results, "serving.md"),
            "",
        ),
        (
            "From JPEG files to a CSV of answers, beside others",
            "files_to_csv.py",
            "end-to-end.json",
            records_of_speed.files_to_csv(results),
            "ViT-Ti/16, whole processes; medians.",
        ),
        (
            "The start of a command",
            "cold_start.py",
            "cold-start.json",
            records_of_speed.cold_start(results),
            "",
        ),
        (
            "Memory of a training step beside timm",
            "peers_memory.py",
            "peers-memory.json",
            records_of_speed.memory_of_steps(results),
            "ViT-B/16; weights, gradients and moments are 1,385 MB of each.",
        ),
        (
            "Cost foretold by `inspect --cost`, and taken",
            "cost_model.py",
            "cost-model.json",
            written_tables(results, "cost-model.md"),
            "",
        ),
        (
            "What each lever of speed is worth",
            "levers_of_speed.py",
            "levers-of-speed.json",
            records_of_speed.levers(results),
            "Medians of interleaved rounds; a lever within the spread has shown nothing.",
        ),
    )
    parts = [
        section(title, script, [read(path) for path in sorted(results.glob(files))], lines, spread)
        for title, script, files, lines, spread in tables
        if lines
    ]
    missing = [f"{title} (`python benchmarks/{script}`)" for title, script, _, lines, _ in tables if not lines]
    if missing:
        parts.append(f"No finished results yet: {'; '.join(missing)}.")
    return "\n\n".join(parts)


def section(title: str, script: str, found: list[Found], lines: list[str], spread: str) -> str:
    """A heading, the command, under which conditions it ran, and the table."""
    said = " ".join(filter(None, (conditions(found), spread)))
    return "\n".join((f"## {title}", f"`python benchmarks/{script}`", "", said, "", *lines))


def conditions(found: list[Found]) -> str:
    """One line of what the results files say: processor, threads, number format, torch, seeds, folds.

    What differs between rows stands with all its values; what no file has is left out, but for the processor, whose
    absence is told.
    """
    facts = [*found, *(row for one in found for row in one.get("rows", ()))]
    machines = [one.get("machine", {}) for one in facts]
    known = [machine if isinstance(machine, dict) else {"cpu": machine} for machine in machines]
    versions = [machine.get("versions", {}) for machine in known]
    processors = distinct([*known, *facts], "cpu", "processor")
    threads, formats = distinct(known, "threads"), distinct(facts, "number_format")
    parts = [
        f"processor {' and '.join(processors)}" if processors else "the results file does not name the processor",
        *(f"instructions {name}" for name in distinct(known, "cpu_capability")),
        *([f"{' or '.join(threads)} threads"] if threads else []),
        *([f"{cores} cores" for cores in distinct(facts, "cores")]),
        *([" and ".join(formats)] if formats else []),
        *(f"torch {name}" for name in distinct([*versions, *known], "torch")),
        *(
            f"{name}{'s' * (len(values) > 1)} {', '.join(values)}"
            for name in ("seed", "fold")
            if (values := distinct(rows_of(found), name))
        ),
    ]
    line = ", ".join(parts)
    return f"{line[0].upper()}{line[1:]}."


def rows_of(found: list[Found]) -> list[Found]:
    """The rows of several results files."""
    return [row for one in found for row in one.get("rows", ())]


def distinct(facts: list[Found], *names: str) -> list[str]:
    """What stands under any of the names, each value once, sorted."""
    return sorted({str(one[name]) for one in facts for name in names if one.get(name) not in (None, "")})


def fashion(results: Path) -> list[str]:
    """One row a budget."""
    lines = table("minutes", "official test accuracy", "seeds", "parameters", "seconds of training")
    for path in sorted(results.glob("fashion-mnist-*min.json"), key=minutes_of):
        found = read(path)
        rows = found["rows"]
        accuracy = plus_minus({"mean": found["mean_accuracy"], "standard_deviation": found["standard_deviation"]})
        seconds = sum(row["seconds"] for row in rows) / len(rows)
        lines.append(line(f"{minutes_of(path):g}", accuracy, len(rows), f"{rows[0]['parameters']:,}", f"{seconds:.0f}"))
    return lines if len(lines) > 2 else []


def peer(results: Path) -> list[str]:
    """One row a comparison."""
    lines = table(
        "minutes", "ours", "peer", "ours in fewer minutes", "its share of the peer's seconds", "ours on its way"
    )
    for path in sorted(results.glob("peer-fashion-mnist-*min.json"), key=minutes_of):
        found = read(path)
        if "share" not in found:
            continue
        way = "never as good" if found["share"] is None else f"as good after {found['share']:.0%}"
        short = f"{found['short']:.2%} after {found['short_seconds']:.0f} s"
        cells = (f"{minutes_of(path):g}", f"{found['ours']:.2%}", f"{found['peer']:.2%}", short)
        lines.append(line(*cells, f"{found['short_share']:.0%}", way))
    return lines if len(lines) > 2 else []


def digits(results: Path) -> list[str]:
    """One row a budget."""
    lines = table("minutes a fold", "accuracy of the folds", "folds", "longest fold, all in all")
    for one in read(results / "digits-5-folds.json").get("summary", ()):
        folds, longest = one["folds"], f"{one['longest_seconds']:.0f} s"
        lines.append(line(f"{one['minutes']:g}", plus_minus(folds), folds["n"], longest))
    return lines if len(lines) > 2 else []


def elpv(results: Path) -> list[str]:
    """One row a way; figures that a way has not got stay empty."""
    lines = table("way", "minutes", "accuracy", "AUROC", "balanced accuracy", "other", "folds", "longest fold")
    for one in read(results / "elpv.json").get("summary", ()):
        cells = [plus_minus(one[name]) if name in one else "" for name in ("accuracy", "auroc", "balanced_accuracy")]
        other = [f"{name} {plus_minus(value)}" for name, value in one.items() if name.startswith("accuracy of")]
        other += [
            f"{name} {one[name]['mean']:.3f}"
            for name in ("quadratic_kappa", "mae", "constant_mae", "r2")
            if name in one
        ]
        longest = f"{one['longest_seconds']:.0f} s"
        lines.append(line(one["way"], f"{one['minutes']:g}", *cells, ", ".join(other), one["folds"], longest))
    return lines if len(lines) > 2 else []


def transfer(results: Path) -> list[str]:
    """One row a start, data and way; what the plan does by itself is WiSE-FT, of lp-ft and the probe."""
    lines = table("start", "data", "way", "accuracy", "seeds")
    for one in read(results / "transfer.json").get("summary", ()):
        accuracy, way = one["accuracy"], "automatic: WiSE" if one["way"] == "automatic" else one["way"]
        lines.append(line(one["start"], one["data"], way, plus_minus(accuracy), accuracy["n"]))
    return lines if len(lines) > 2 else []


def imbalance(results: Path) -> list[str]:
    """One row a comparison with no weights."""
    lines = table("largest class", "largest / smallest", "weights", "figure", "difference to none", "95 % interval")
    for one in read(results / "imbalance.json").get("comparisons", ()):
        low, high = one["interval"] or (float("nan"), float("nan"))
        cells = (one["largest"], f"{one['ratio']:g}", one["weights"], one["figure"].replace("_", " "))
        lines.append(line(*cells, f"{100 * one['mean']:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"))
    return lines if len(lines) > 2 else []


def exporting(results: Path) -> list[str]:
    """One row a size, then how a trained run's smaller files agree with it; a table for each kind of processor."""
    lines: list[str] = []
    for path in sorted(results.glob("exporting-*.json")):
        found = read(path)
        machine, rates = found["machine"], found["pictures_per_second"]
        ways = list(next(iter(rates.values())))
        lines += ["", *table(f"{machine['processor']}, {machine['threads']} threads", *ways)]
        for size, one in rates.items():
            compared = (f"{one[way]:,.1f} ({one[way] / one[ways[0]]:.2f})" for way in ways)
            lines.append(line(size, *compared))
        lines += ["", *table("a trained run", "pictures", "same decision", "scores differ by at most", "pictures/s")]
        for name, one in found.get("agreement", {}).items():
            if isinstance(one, dict):
                speeds = ", ".join(f"{way} {rate:,.1f}" for way, rate in one["pictures_per_second"].items())
                difference = f"{one['largest_difference']:.2g}"
                lines.append(line(name, one["pictures"], f"{one['same']:.2%}", difference, speeds))
    return lines[1:]


def written_tables(results: Path, pattern: str) -> list[str]:
    """Tables that their scripts have written, those of several files under the file's name."""
    paths = sorted(results.glob(pattern))
    lines: list[str] = []
    for path in paths:
        lines += [f"{path.stem}:", ""] * (len(paths) > 1)
        lines += [*path.read_text(encoding="utf-8").splitlines(), *[""] * (path != paths[-1])]
    return lines


def minutes_of(path: Path) -> float:
    """The budget that a results file is called after."""
    return float(path.stem.rpartition("-")[2].removesuffix("min"))


def plus_minus(found: Found) -> str:
    """A mean with its standard deviation, in percent."""
    spread = found["standard_deviation"]
    return f"{found['mean']:.2%}" + (f" ± {spread:.2%}" if spread is not None else "")


if __name__ == "__main__":
    main()
