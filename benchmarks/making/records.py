"""What record scripts share: trainings as commands of their own, each run once, and a results file with a row for each.

A row that the results file has is kept; else a complete run folder is read, a run that was cut short is gone on with,
and what is missing is trained. Every figure comes from the files that the run itself wrote. To measure again, delete
rows and run folders.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "results"
VITRAIL = Path(sys.executable).with_name("vitrail")
LEVERS = Path(__file__).with_name("levers.py")
WALL = "wall-clock.json"
"""In a run folder: the seconds of each command that worked on it, from start to end."""
LONG = ("confusion", "per_class")
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for 95 % and 1, 2, ... degrees of freedom."""

Row = dict[str, Any]


Job = tuple[Mapping[str, object], Callable[[], Row]]
"""The key of a row, and what makes it."""


FOLDERS = re.compile(r'(?<=[ ="])/(?:[^/\s"]+/)*')
"""The absolute folder before a name."""


class Results:
    """A results file: rows by their keys, and what they add up to."""

    def __init__(self, name: str, folder: Path = RESULTS):
        self.path = folder / f"{name}.json"
        self.rows, self.lock = self._read(), Lock()

    def find(self, key: Mapping[str, object]) -> Row | None:
        """The row of this key, if there is one."""
        return next((row for row in self.rows if all(row.get(name) == key[name] for name in key)), None)

    def row(self, key: Mapping[str, object], make: Callable[[], Row]) -> Row:
        """The row of this key; if there is none, a new one, which is kept before anything else is begun."""
        if (there := self.find(key)) is not None:
            return there
        row = {**key, **make()}
        with self.lock:
            self.rows = [*self._read(), row]  # with those that another process has made meanwhile
            self.write({})
        return row

    def _read(self) -> list[Row]:
        there = json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        return list(there.get("rows", []))

    def side_by_side(self, jobs: Iterable[Job], stop_after: float = math.inf) -> Iterator[Row]:
        """The rows of all jobs, two being made at a time; after so many minutes no other is begun.

        For trainings of one thread whose length is fixed in steps: what they find does not depend on the speed.
        """
        until = time.perf_counter() + stop_after * 60

        def make_row(job: Job) -> Row | None:
            return self.row(*job) if self.find(job[0]) or time.perf_counter() < until else None

        with ThreadPoolExecutor(2) as pool:
            try:
                yield from (row for row in pool.map(make_row, jobs) if row is not None)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def write(self, facts: Mapping[str, object]) -> None:
        """Keep all rows, after what they add up to; in commands without the folders of this machine."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**facts, "rows": self.rows}, indent=1)
        lines = (FOLDERS.sub("", line) if '"command": ' in line else line for line in text.splitlines())
        text = "\n".join(lines)
        self.path.write_text(text + "\n", encoding="utf-8")


def train_command(*words: object) -> list[str]:
    """`vitrail train` with these words, through making/levers.py where `--lever NAME=NUMBER` is among them."""
    texts, program = [*map(str, words)], [str(VITRAIL)]
    if "--lever" in texts:
        at = texts.index("--lever")
        program = [sys.executable, str(LEVERS), texts[at + 1]]
        texts[at : at + 2] = []
    return [*program, "train", *texts]


def train_run(run: Path, *words: object, history: bool = False) -> Row:
    """Train into `run` by `vitrail train` with these words, or go on with it, unless it is complete; what it says.

    Args:
        history: keep the weights of every checkpoint, as links in RUN/history, for a curve afterwards.

    Raises:
        CalledProcessError: the training failed.
    """
    if (run / "report.json").is_file():
        return facts_of(run)
    command = train_command(*words, "--out", run)
    if (run / "plan.toml").is_file():
        command = [*command[: command.index("train") + 1], "--resume", str(run)]
    began = time.perf_counter()
    with subprocess.Popen(command) as training:
        while history and training.poll() is None:
            time.sleep(1)
            link_checkpoints(run)
        if training.wait():
            raise subprocess.CalledProcessError(training.returncode, training.args)
    walls = json.loads((run / WALL).read_text()) if (run / WALL).is_file() else []
    (run / WALL).write_text(json.dumps([*walls, round(time.perf_counter() - began, 1)]) + "\n")
    return facts_of(run)


def link_checkpoints(run: Path) -> None:
    """Keep the weights of the checkpoints that are there under RUN/history/STEP, without copying them."""
    for weights in sorted((run / "checkpoints").glob("step-*/*.safetensors")):
        kept = run / "history" / weights.parent.name / weights.name
        if weights.name == "optimizer.safetensors" or kept.exists():
            continue
        kept.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # just deleted by the training
            os.link(weights, kept)


def seconds_at(run: Path) -> Callable[[int], float]:
    """Seconds of training until a step: each row of metrics.jsonl stands for the steps since the one before it."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps, seconds = [0], [0.0]
    for row in rows:
        if "seconds" in row and row["step"] > steps[-1]:
            seconds.append(seconds[-1] + (row["step"] - steps[-1]) * row["seconds"])
            steps.append(row["step"])
    return lambda step: float(np.interp(step, steps, seconds))


def facts_of(run: Path) -> Row:
    """What a complete run folder says of itself: figures of the test pictures, sizes, seconds, machine."""
    facts = json.loads((run / "report.json").read_text(encoding="utf-8"))
    plan = tomllib.loads((run / "plan.toml").read_text(encoding="utf-8"))
    walls = json.loads((run / WALL).read_text()) if (run / WALL).is_file() else []
    return {
        **figures_of(run),
        **{name: facts[name] for name in ("steps", "images_seen", "model", "parameters")},
        "seconds": round(facts["seconds"], 1),
        "wall_seconds": round(sum(walls), 1),
        "number_format": plan["compute"]["precision"],
        "machine": json.loads((run / "environment.json").read_text(encoding="utf-8")),
        "commit": commit(),
    }


def figures_of(run: Path) -> Row:
    """The figures of the test pictures, without tables and intervals.

    The accuracy of each label is added to labels, and the figures of a single column stand with the others.
    """
    kept = _plain(json.loads((run / "metrics-test.json").read_text(encoding="utf-8")))
    for label in kept.get("per_label", ()):
        label["accuracy"] = label_accuracy(label)
    columns = kept.pop("per_column", [])
    return {**columns[0], **kept} if len(columns) == 1 else {**kept, **({"per_column": columns} if columns else {})}


def _plain(found: Any) -> Any:
    """Figures without long tables and intervals, at every depth."""
    if isinstance(found, list):
        return [_plain(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {name: _plain(value) for name, value in found.items() if name not in LONG and not name.endswith("interval")}


def label_accuracy(label: Mapping[str, float]) -> float:
    """Share of the known pictures that are answered rightly from 0.5 on."""
    right = label["sensitivity"] * label["positives"] + label["specificity"] * (label["n"] - label["positives"])
    return right / label["n"]


def commit() -> str:
    """Which state of the code this is, "-dirty" where a file but those of results differs; empty outside a checkout."""
    found = _git("describe", "--always", "--exclude=*")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)benchmarks/results")
    return f"{found}-dirty" if changed else found


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Mean and standard deviation (of the sample; None for a single value), and of how many."""
    found = list(values)
    deviation = statistics.stdev(found) if len(found) > 1 else None
    return {"mean": statistics.mean(found), "standard_deviation": deviation, "n": len(found)}


def paired_difference(ours: Iterable[float], theirs: Iterable[float]) -> dict[str, object]:
    """The mean difference of pairs and its 95 % interval by Student's t; None for a single pair."""
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    found = spread(differences)
    interval = None
    if len(differences) > 1:
        degrees = len(differences) - 1
        t = T95[degrees - 1] if degrees <= len(T95) else 1.96 + 2.4 / degrees
        half = t * float(found["standard_deviation"] or 0.0) / math.sqrt(len(differences))
        interval = [float(found["mean"] or 0.0) - half, float(found["mean"] or 0.0) + half]
    return {**found, "interval": interval}


def number(row: Mapping[str, object], name: str) -> float:
    """A figure of a row."""
    return float(str(row[name]))
