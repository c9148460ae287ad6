"""Our ViT beside those of timm, transformers, torchvision and vit-pytorch: answers and training steps a second.

    python benchmarks/peers.py                  # the whole table, at most 90 minutes on two cores, nothing else running
    python benchmarks/peers.py --only "S/16" --only bfloat16
    python benchmarks/peers.py --quick          # tiny shapes, to see that everything runs; nothing is written

Every contestant is a process of its own with a model of the same shape (parameters are compared), the same batch and
number format, and the same lines around it: for training forward, cross entropy, backward and torch's fused AdamW, for
answers inference mode. They work one at a time, in turn, round by round; a figure is the median over the rounds. Peers
run as they come and with their better settings: attention fused or not, in bfloat16 with autocast or with the weights
cast once. Beside the comparison and not in it stand "vitrail predict", which is that verb from prepared bytes, and
"vitrail loop", `vitrail train`'s whole step, which guards against bad steps. Memory is the highest point of the process
in two calls, less what it held after two such
calls of a tiny model. A contestant that dies keeps its row, with no figure and its last words. Beside every cell
stands the rate of the model's own matrix products alone, timed in the same rounds.

Rows that benchmarks/results/peers.json has are kept: delete a row to measure it again. docs/table_of_speed.py writes
the table of the README.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from making.records import RESULTS, Results, Row, commit

CONTESTANT = Path(__file__).parent / "making" / "contestant.py"
ROUNDS, SECONDS = 7, 1.0
GOALS = {"least": 0.97, "mean": 1.05}
OURS = "vitrail"
OWN = ("vitrail predict", "vitrail loop")


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
            tell(results.row(key, partial(measured, cell, options.threads, rounds, seconds)))
        results.write(summary(results.rows))
        print(json.dumps(summary(results.rows), indent=1))


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


def quick_cells() -> Iterator[Cell]:
    """Every kind of cell, tiny."""
    for mode in ("inference", "training"):
        for number_format in ("bfloat16", "float32"):
            yield Cell("quick", mode, number_format)


def contestants(cell: Cell) -> list[Contestant]:
    """Every library as it comes, and the settings that may suit it better."""
    found = [
        Contestant("vitrail", "vitrail"),
        Contestant("timm", "timm"),
        Contestant("timm, not fused", "timm", fused=False),
        Contestant("transformers", "transformers"),
        Contestant("transformers, eager", "transformers", fused=False),
        Contestant("torchvision", "torchvision"),
        Contestant("vit-pytorch", "vit-pytorch"),
    ]
    if cell.compiled:  # minutes each: those whose code torch can make one graph of, in their better way
        found = [one for one in found if one.name not in ("transformers, eager", "torchvision")]
    if cell.mode == "training":
        return [*found, Contestant("vitrail loop", "vitrail", own=True)]
    if not cell.compiled:
        found.append(Contestant("vitrail predict", "vitrail", own=True))
    if cell.format == "float32":
        return found
    cast = [one._replace(name=f"{one.name}, weights cast", cast=True) for one in found if not one.own]
    return [found[0], *cast] if cell.compiled else [*found, *cast]


def measured(cell: Cell, threads: int, rounds: int, seconds: float) -> Row:
    """Start all contestants of a cell, let each work in turn, and end them."""
    began, load_before = time.perf_counter(), os.getloadavg()[0]
    asked = {one.name: {**cell._asdict(), **one._asdict(), "threads": threads} for one in contestants(cell)}
    warm: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {name: [] for name in asked}
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
        for name, told in asked.items():
            running[name] = Running(told)
            answer = ask(name, "warm")
            if answer is not None:
                warm[name] = answer
        for number in range(rounds):
            for name in rotated(list(running), number):
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
    rows = [figures(name, times[name], warm.get(name, {}), reasons.get(name), batch, bound) for name in asked]
    return {
        **cell._asdict(), "batch": batch, "rounds": rounds, "seconds_a_round": seconds, "warm_up": "two calls",
        "limit_flops_per_second": rate, "contestants": rows, "machine": machine(), "commit": commit(),
        "load_before": load_before, "load_after": os.getloadavg()[0], "wall_seconds": time.perf_counter() - began,
        "excluded": "pictures are random numbers in memory, normalised already (vitrail predict and loop have bytes)",
    }  # fmt: skip


def rotated(names: list[str], by: int) -> list[str]:
    """The same names, another one first: whoever comes first is not always the same."""
    by %= max(1, len(names))
    return names[by:] + names[:by]


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


class Died(Exception):
    """A contestant's process has ended before it answered; the message says how."""


class Running:
    """A contestant's process."""

    def __init__(self, asked: dict[str, Any]):
        self.asked = asked
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - end() closes it
        self.process = subprocess.Popen(
            [sys.executable, str(CONTESTANT), json.dumps(asked)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def ask(self, words: str) -> dict[str, Any]:
        """One question and its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self.process.wait()
            self.errors.seek(0)
            last = (self.errors.read().strip().splitlines() or ["it said nothing"])[-1]
            raise Died(f"{words}: ended with {status}: {last[:300]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """Let it go, and wait until its memory is free."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.errors.close()


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


def alive(row: Row) -> list[dict[str, Any]]:
    """The contestants that have a figure."""
    return [one for one in row["contestants"] if one["pictures_per_second"] is not None]


def ours_of(row: Row) -> float | None:
    """Our better setting of those that the peers have, too."""
    found = (one["pictures_per_second"] for one in alive(row) if is_ours(one) and one["name"] not in OWN)
    return max(found, default=None)


def is_ours(one: dict[str, Any]) -> bool:
    """Whether a contestant is Vitrail."""
    return str(one["name"]).startswith(OURS)


def ratio(row: Row) -> float | None:
    """Ours over the best of the others; None where one side has no figure."""
    ours = ours_of(row)
    best = max((one["pictures_per_second"] for one in alive(row) if not is_ours(one)), default=None)
    return None if ours is None or best is None else float(ours / best)


def summary(rows: Sequence[Row]) -> dict[str, object]:
    """What the cells add up to, beside the goals."""
    ratios = {row["cell"]: ratio(row) for row in rows}
    found = {cell: value for cell, value in ratios.items() if value is not None}
    if not found:
        return {}
    return {
        "command": "python benchmarks/peers.py",
        "goals": GOALS,
        "least": min(found.values()),
        "geometric_mean": statistics.geometric_mean(found.values()),
        "ratios": ratios,
        "checks": checks(rows, found),
        "wall_seconds": sum(row.get("wall_seconds", 0.0) for row in rows),
    }


def checks(rows: Sequence[Row], ratios: dict[str, float]) -> list[dict[str, object]]:
    """The required figures: which are met, and by how much (found over wanted). None: not measured."""
    cells = {row["cell"]: {one["name"]: one for one in alive(row)} for row in rows}
    small = cells.get("Ti 32/4 training bfloat16 eager", {})
    times_timm = None
    if OURS in small and "timm" in small:
        times_timm = small[OURS]["pictures_per_second"] / small["timm"]["pictures_per_second"]
    wanted = [
        ("least cell over the best peer", min(ratios.values(), default=None), GOALS["least"]),
        ("geometric mean of the cells", statistics.geometric_mean(ratios.values()) if ratios else None, GOALS["mean"]),
        ("Ti 32/4 bfloat16 training over timm's default", times_timm, 1.5),
        ("utilisation of S/16 bfloat16 training",
         cells.get("S/16 training bfloat16 eager", {}).get(OURS, {}).get("utilisation"), 0.75),
    ]  # fmt: skip
    return [
        {"what": what, "found": found, "wanted": least, "met": None if found is None else found >= least,
         "over_wanted": None if found is None else found / least}
        for what, found, least in wanted
    ]  # fmt: skip


def machine() -> dict[str, object]:
    """What the figures depend on, with the versions of the peers."""
    from importlib.metadata import version

    from vitrail.bench.machine import facts

    peers = ("timm", "transformers", "torchvision", "vit-pytorch")
    return {**facts("cpu"), "peers": {name: version(name) for name in peers}}


if __name__ == "__main__":
    main()
