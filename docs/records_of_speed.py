"""The tables of docs/figures.md that say how fast: rows of benchmarks/results/ as Markdown, none where nothing is."""

from __future__ import annotations

import statistics
from pathlib import Path

from tables import line, read, table


def files_to_csv(results: Path) -> list[str]:
    """One row a way and size of files, the fastest first; then how many times as fast ours is."""
    found = read(results / "end-to-end.json")
    taken: dict[tuple[str, str], list[float]] = {}
    count = {}
    for row in found.get("rows", ()):
        if row["seconds"] is not None:
            taken.setdefault((row["files"], row["way"]), []).append(row["seconds"])
            count[row["files"]] = row["count"]
    medians = {key: statistics.median(seconds) for key, seconds in taken.items()}
    lines = table("files", "way", "rounds", "seconds", "files/s")
    for size, way in sorted(medians, key=lambda key: (len(key[0]), key[0], medians[key])):
        seconds = medians[size, way]
        lines.append(line(size, way, len(taken[size, way]), f"{seconds:.1f}", f"{count[size] / seconds:.0f}"))
    compared = [
        line(size, name, f"{one['times']:.2f}", one["wanted"], format_verdict(one["met"]))
        for size, each in found.get("compared", {}).items()
        for name, one in each.items()
    ]
    if not compared:
        return []
    return [*lines, "", *table("files", "ours beside", "times as fast", "wanted", ""), *compared]


def cold_start(results: Path) -> list[str]:
    """CPU seconds of one picture by both engines, then their parts."""
    found = read(results / "cold-start.json")
    if not found:
        return []
    lines = table("`vitrail predict` of one picture", "CPU seconds, median", "from", "to", "goal", "")
    for name, one in (("by torch", found), ("`--engine onnx`", found["onnx"])):
        seconds = [f"{one[each]:.2f}" for each in ("cpu_seconds", "fastest", "slowest")]
        lines.append(line(name, *seconds, one["goal"], format_verdict(one["cpu_seconds"] <= one["goal"])))
    parts = [line(name, f"{seconds:.3f}") for name, seconds in found["parts"].items()]
    return [*lines, "", *table("part, by torch", "CPU seconds"), *parts]


def memory_of_steps(results: Path) -> list[str]:
    """What a step of ViT-B/16 holds, beside timm's; `compared` as peers_memory.py has it."""
    found = read(results / "peers-memory.json")
    if "compared" not in found:
        return []
    held = {(row["format"], row["way"]): row["memory"] for row in found["rows"]}
    formats = list(dict.fromkeys(number_format for number_format, _ in held))
    ways = list(dict.fromkeys(way for _, way in held))
    lines = table("largest memory of a step, batch 8, MB", *formats)
    for way in sorted(ways):
        lines.append(line(way, *(f"{held[each, way] / 1e6:,.0f}" for each in formats)))
    ratios = [
        line(name, *(f"{found['compared'][each][name]:.2f}" for each in formats))
        for name in found["compared"][formats[0]]
    ]
    return [*lines, "", *table("ratio", *formats), *ratios]


def levers(results: Path) -> list[str]:
    """One row a lever of speed."""
    lines = table("what", "model", "batch", "without, ms", "with, ms", "times as fast", "spread", "kept")
    for row in read(results / "levers-of-speed.json").get("rows", ()):
        times = (f"{row['unused_ms']:.3g}", f"{row['used_ms']:.3g}", f"{row['times']:.3f}", f"{row['spread']:.0%}")
        lines.append(line(row["lever"], row["model"], row["batch"], *times, "yes" if row["kept"] else "no"))
    return lines if len(lines) > 2 else []


def format_verdict(reached: bool) -> str:
    """A verdict as a word."""
    return "met" if reached else "missed"
