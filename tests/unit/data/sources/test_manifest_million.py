"""A manifest of a million rows in a process of its own, whose memory and seconds are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROWS, FOLDER = 1_000_000, 10_000
SECONDS, MEBIBYTES = 30, 1430  # of the processor; 1.5 GB, torch included

MEASURE = """
import json, sys, time
from memory import peak
import numpy as np, torch
from vitrail.data.open import open_source
from vitrail.data.settings import DataSettings
from vitrail.data.sources import manifest as locate

def listing(folder):
    start = int(folder.rpartition("/")[2]) * {folder}
    return {{f"{{row:07d}}.jpg" for row in range(start, start + {folder})}}, set()

locate.list_folder_names = listing  # a million files take too long to make and remove: the benchmark does
began = time.process_time()
source = open_source(sys.argv[1], DataSettings(group="patient"))
seconds = time.process_time() - began
highest = peak()
middle = len(source) // 2
print(json.dumps({{
    "seconds": seconds, "peak": highest, "rows": len(source), "classes": len(source.classes), "notes": source.notes,
    "groups": len(np.unique(source.groups)), "id": source.ids[middle],
    "group": source.groups[middle], "target": int(source.targets[middle]),
    "note": source.metadata["remark"][middle],
}}))
"""


@pytest.mark.slow
def test_D15_a_million_rows_are_indexed_in_thirty_seconds_and_one_and_a_half_gigabytes(tmp_path: Path):
    with (tmp_path / "films.csv").open("w", encoding="utf-8") as file:
        file.write("path,label,patient,remark\n")
        for row in range(ROWS):
            file.write(f"pictures/{row // FOLDER}/{row:07d}.jpg,{row % 1000},p{row // 4},remark {row}\n")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(folder=FOLDER), str(tmp_path / "films.csv")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], found["classes"], found["groups"], found["notes"]) == (ROWS, 1000, ROWS // 4, [])
    assert (found["id"], found["group"]) == ("pictures/50/0500000.jpg", "p125000")
    assert (found["target"], found["note"]) == (0, "remark 500000")
    assert 200 < found["peak"] < MEBIBYTES and found["seconds"] < SECONDS, found
