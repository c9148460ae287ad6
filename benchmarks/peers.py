"""Our ViT beside those of timm, transformers, torchvision and vit-pytorch: answers and training steps a second.

    python benchmarks/peers.py                  # the whole table, at most 90 minutes on two cores, nothing else running
    python benchmarks/peers.py --only "S/16" --only bfloat16
    python benchmarks/peers.py --quick          # tiny shapes, to see that everything runs; nothing is written

Every contestant is a process of its own with a model of the same shape (rows say its parameters), the same batch and
number format, and the same lines around it: for training forward, cross entropy, backward and torch's fused AdamW, for
answers inference mode. They work one at a time, in another order each round; a figure is the median over the rounds.
Peers run with their better settings: attention fused or not, in bfloat16 with autocast or with the weights cast once,
and freed memory kept by the C library, which `vitrail` sets by itself and anybody can: without it a figure is the luck
of the heap (EXPERIMENTS.md). "timm" alone is timm as it comes. Beside the comparison and not in it stand "vitrail
predict", which is that verb from prepared bytes, and "vitrail loop", `vitrail train`'s whole step, which guards against
bad steps. Memory is the highest point of the process in two calls, less what it held after two such calls of a tiny
model (peers_memory.py has the required comparison). A contestant that dies keeps its row, with no figure and its last
words. Beside every cell stands the rate of the model's own matrix products alone, timed in the same rounds.

Rows that benchmarks/results/peers.json has are kept: delete a row to measure it again. docs/table_of_speed.py writes
the table of the README.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from making.children import Died, Running
from making.records import RESULTS, Results, Row, commit
from making.standings import alive, ours_of, summary

ROUNDS, SECONDS = 5, 1.0


class Cell(NamedTuple):
    """A shape, what is done with it, and how."""

    shape: str
    mode: str
    format: str
    compiled: bool = False

    @property
    def name(self) -> str:
        """As `--only` finds it."""
        return f"{self.shape} {self.mode} {self.format} {'compiled' if self.compiled else 'eager'}"


class Contestant(NamedTuple):
    """A library with a setting."""

    name: str
    library: str
    fused: bool = True
    cast: bool = False
    keep: bool = True
    """With `runtime.keep_memory`: the C library does not give back at once what is freed."""
    own: bool = False
    """With Vitrail's own lines around the model."""


def main() -> None:
    """Measure what is missing, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, two rounds, nothing kept")
    parser.add_argument("--only", action="append", default=[], help="cells whose name holds this; several: all of them")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=90.0, help="no cell is begun after so long")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as nowhere:
        results = Results("peers", Path(nowhere) if options.quick else RESULTS)
        for cell in quick_cells() if options.quick else cells():
            if not all(word in cell.name for word in options.only):
                continue
            if time.perf_counter() - began > 60 * options.minutes:
                print(f"{options.minutes:g} minutes are over. The same command goes on with {cell.name}.")
                break
            key = {"cell": cell.name, "threads": options.threads}
            rounds, seconds = (2, 0.0) if options.quick else (ROUNDS, SECONDS)
            tell(results.row(key, partial(measure_cell, cell, options.threads, rounds, seconds)))
        results.rows.sort(key=place)  # those measured again stand where they stood
        here = [row for row in results.rows if row["threads"] == options.threads]
        found = summary(here, None if options.quick else len(list(cells())))
        results.write(found)
        print(json.dumps(found, indent=1))


def cells() -> Iterator[Cell]:
    """The table, what is quick first."""
    for shape in ("Ti 32/4", "Ti/16", "S/16", "B/16"):
        for mode in ("inference", "training"):
            for number_format in ("bfloat16", "float32"):
                yield Cell(shape, mode, number_format)
    for number_format in ("bfloat16", "float32"):
        yield Cell("DINOv2-S/14 518", "inference", number_format)
    for shape in ("Ti 32/4", "S/16"):
        for mode in ("inference", "training"):
            yield Cell(shape, mode, "bfloat16", compiled=True)


def place(row: Row) -> tuple[int, int]:
    """Where it stands among the rows: by threads, then as `cells` has them."""
    names = [cell.name for cell in cells()]
    return row["threads"], names.index(row["cell"]) if row["cell"] in names else len(names)


def quick_cells() -> Iterator[Cell]:
    """Every kind of cell, tiny."""
    for mode in ("inference", "training"):
        for number_format in ("bfloat16", "float32"):
            yield Cell("quick", mode, number_format)


def contestants(cell: Cell) -> list[Contestant]:
    """timm as it comes, and every library with the settings that may suit it better."""
    found = [
        Contestant("vitrail", "vitrail"),
        Contestant("timm", "timm", keep=False),
        Contestant("timm, memory kept", "timm"),
        Contestant("timm, not fused, memory kept", "timm", fused=False),
        Contestant("transformers, memory kept", "transformers"),
        Contestant("transformers, eager, memory kept", "transformers", fused=False),
        Contestant("torchvision, memory kept", "torchvision"),
        Contestant("vit-pytorch, memory kept", "vit-pytorch"),
    ]
    if cell.compiled:  # minutes each: those whose code torch can make one graph of, in their better way
        found = [one for one in found if "eager" not in one.name and one.library != "torchvision"]
    if cell.shape == "B/16":  # nine of them at once would need more memory than two cores usually have
        found = [one for one in found if "eager" not in one.name]
    if cell.mode == "training":
        return [*found, Contestant("vitrail loop", "vitrail", own=True)]
    if not cell.compiled:
        found.append(Contestant("vitrail predict", "vitrail", own=True))
    if cell.format == "float32":
        return found
    cast = [one._replace(name=f"{one.name}, weights cast", cast=True) for one in found if one.keep and not one.own]
    return [found[0], *cast] if cell.compiled else [*found, *cast]


def measure_cell(cell: Cell, threads: int, rounds: int, seconds: float) -> Row:
    """Start all contestants of a cell, let each work in turn, and end them."""
    began, load_before = time.perf_counter(), os.getloadavg()[0]
    contestants_by_name = {
        one.name: {**cell._asdict(), **one._asdict(), "threads": threads} for one in contestants(cell)
    }
    warm: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {name: [] for name in contestants_by_name}
    reasons: dict[str, str] = {}
    limits: list[dict[str, Any]] = []
    running: dict[str, Running] = {}

    def ask(name: str, words: str) -> dict[str, Any] | None:
        try:
            return running[name].ask(words)
        except Died as death:
            reasons[name] = str(death)
            running.pop(name).end()
            return None

    try:
        for name, settings in contestants_by_name.items():
            running[name] = Running(settings)
            answer = ask(name, "warm")
            if answer is not None:
                warm[name] = answer
        for number in range(rounds):
            for name in random.Random(number).sample(list(running), len(running)):
                answer = ask(name, f"time {seconds}")
                if answer is not None:
                    times[name].append(float(answer["seconds"]))
            limits += [found for name in list(running)[:1] if (found := ask(name, f"limit {seconds}")) is not None]
    finally:
        for child in running.values():
            child.end()
    rate = statistics.median(found["rate"] for found in limits) if limits else None
    bound = (limits[0]["flops"], rate) if rate is not None else None
    batch = warm_batch(cell)
    rows = [
        figures(name, times[name], warm.get(name, {}), reasons.get(name), batch, bound) for name in contestants_by_name
    ]
    return {
        **cell._asdict(), "batch": batch, "rounds": rounds, "seconds_a_round": seconds, "warm_up": "two calls",
        "limit_flops_per_second": rate, "contestants": rows, "machine": machine(), "commit": commit(),
        "load_before": load_before, "load_after": os.getloadavg()[0], "wall_seconds": time.perf_counter() - began,
        "excluded": "pictures are random numbers in memory, normalised already (vitrail predict and loop have bytes)",
    }  # fmt: skip


def figures(
    name: str, taken: list[float], warm: dict[str, Any], reason: str | None, batch: int,
    bound: tuple[float, float] | None,
) -> dict[str, Any]:  # fmt: skip
    """A contestant's row; one that has died has None for its speed, and the reason."""
    row = {"name": name, "parameters": warm.get("parameters"), "memory": warm.get("memory")}
    if reason is not None or not taken:
        return {**row, "pictures_per_second": None, "seconds": None, "utilisation": None, "reason": reason}
    middle = statistics.median(taken)
    return {
        **row,
        "pictures_per_second": batch / middle,
        "seconds": {"median": middle, "fastest": min(taken), "slowest": max(taken)},
        "utilisation": None if bound is None else bound[0] / middle / bound[1],
    }


def warm_batch(cell: Cell) -> int:
    """Pictures of a call."""
    from making.contestant import SHAPES

    return SHAPES[cell.shape].batch


def tell(row: Row) -> None:
    """A cell for people."""
    limit = (row["limit_flops_per_second"] or 0.0) / 1e9
    print(f"\n{row['cell']}, batch {row['batch']}: {limit:,.0f} GFLOP/s in its own products")
    ours = ours_of(row)
    for one in row["contestants"]:
        if one["pictures_per_second"] is None:
            print(f"  {one['name']:<34} no figure: {one['reason']}")
    for one in sorted(alive(row), key=lambda one: -one["pictures_per_second"]):
        against = "" if ours is None else f"  ours is {ours / one['pictures_per_second']:.2f} times as fast"
        print(
            f"  {one['name']:<34} {one['pictures_per_second']:>9,.1f} pictures/s  "
            f"{one['utilisation'] or 0.0:>4.0%} of limit  {one['memory'] / 1e6:>6,.0f} MB{against}",
            flush=True,
        )


def machine() -> dict[str, object]:
    """What the figures depend on, with the versions of the peers."""
    from importlib.metadata import version

    from vitrail.bench.measure import describe_machine

    peers = ("timm", "transformers", "torchvision", "vit-pytorch")
    return {**describe_machine("cpu"), "peers": {name: version(name) for name in peers}}


if __name__ == "__main__":
    main()
