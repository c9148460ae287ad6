"""Minutes asked for beside minutes taken, on a machine that is quiet, and that two other processes keep busy meanwhile.

    python benchmarks/minutes.py                                  # about 50 minutes, nothing else running
    python benchmarks/minutes.py --minutes 0.5 --sources digits   # a trial of some

Each training is a command of its own. The two other processes run throughout, from before the plan is made, or in the
first or the middle third of the seconds of the training. The goal is within 5 %, at one minute within 10 %. Writes
benchmarks/results/minutes.json and a table in Markdown beside it; rows that are there are kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread

from making.records import RESULTS, Results, Row, train_run

LOADS: dict[str, tuple[float, float] | None] = {
    "quiet": None,
    "busy throughout": (0.0, 1.0),
    "busy in the first third": (0.0, 1 / 3),
    "busy in the middle third": (1 / 3, 2 / 3),
}
"""The fractions of the seconds of the training between which other processes run."""
PROCESSES = 2
BUSY = "while True: pass"


def main() -> None:
    """Train what is missing, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--sources", nargs="+", default=["digits", "fashion-mnist"])
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = Results("minutes")
    for source in options.sources:
        for minutes in options.minutes:
            for load in options.loads:
                key = {"source": source, "minutes": minutes, "load": load, "seed": options.seed}
                name = f"minutes-{source}-{minutes:g}-{load.replace(' ', '-')}-{options.seed}"
                row = results.row(key, partial(train_under_load, options.folder / name, key))
                print(f"{source}, {minutes:g} minutes, {load}: {row['seconds']:.1f} s", flush=True)
    results.write({"largest_deviation": max((abs(deviation(row)) for row in results.rows), default=0.0)})
    (RESULTS / "minutes.md").write_text(table(results.rows), encoding="utf-8")
    print(table(results.rows))


def train_under_load(run: Path, key: Row) -> Row:
    """What a training with minutes says of itself, while other processes run as its load says."""
    with busy_machine(run, 60 * key["minutes"], LOADS[key["load"]]):
        return train_run(run, key["source"], "--minutes", key["minutes"], "--seed", key["seed"])


@contextmanager
def busy_machine(run: Path, seconds: float, part: tuple[float, float] | None) -> Iterator[None]:
    """Within this block other processes run in a part of the seconds of a training, counted from its first row."""
    over = Event()

    def keep_busy(begin: float, end: float) -> None:
        if (begin, end) != (0.0, 1.0):
            while not (run / "metrics.jsonl").is_file() and not over.wait(0.05):
                pass
            over.wait(begin * seconds)
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(PROCESSES)]
        over.wait((end - begin) * seconds if end < 1 else None)
        for other in others:
            other.kill()
            other.wait()

    thread = Thread(target=keep_busy, args=part or (0.0, 0.0))
    if part is not None:
        thread.start()
        time.sleep(1)
    try:
        yield
    finally:
        over.set()
        if part is not None:
            thread.join()


def deviation(row: Row) -> float:
    """How far a training is from the seconds that were asked for, as a fraction of them."""
    return float(row["seconds"]) / (60 * float(row["minutes"])) - 1


def table(rows: list[Row]) -> str:
    """Asked and taken in Markdown."""
    head = ("trained on", "load", "seconds asked", "taken", "off", "steps", "test accuracy")
    lines = [f"| {' | '.join(head)} |", "|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        asked, taken = 60 * row["minutes"], f"{row['seconds']:.1f} | {deviation(row):+.1%}"
        lines.append(
            f"| {row['source']} | {row['load']} | {asked:.0f} | {taken} | {row['steps']:,} | {row['accuracy']:.2%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
