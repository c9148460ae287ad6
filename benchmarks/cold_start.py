"""CPU seconds of `vitrail predict` of one picture by a ViT-Ti bundle, from the shell to the row, and where they go.

    python benchmarks/cold_start.py                # about two minutes; nothing else should be running
    python benchmarks/cold_start.py --quick        # one start each, nothing written

The goal is 3.5 s of CPU time. Files have been read before, so that the disk plays no part. Beside the whole stand its
parts (interpreter, imports, reading the bundle, decoding, forward), and what each imported library takes by itself, as
`python -X importtime` counts it. Writes benchmarks/results/cold-start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from making.records import RESULTS
from making.speed_files import total_cpu, write_bundle, write_pictures

from vitrail.bench.machine import facts

MODEL = "vit_tiny_patch16_224"
GOAL = 3.5
REPEATS = 7
PARTS = Path(__file__).parent / "making" / "cold_parts.py"


def main() -> None:
    """Start it again and again, then look inside."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one start each, nothing written")
    parser.add_argument("--number-format", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    repeats = 1 if options.quick else REPEATS
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_bundle(Path(folder) / "bundle", MODEL, options.number_format)
        picture = write_pictures(Path(folder) / "pictures", "640x427", 1) / "00000.jpg"
        whole = ["-m", "vitrail", "predict", str(bundle), str(picture), "--to", f"{folder}/answers.csv"]
        cpu_seconds(whole)  # reads every file once
        seconds = [cpu_seconds(whole) for _ in range(repeats)]
        parts = [json.loads(answer([str(PARTS), str(bundle), str(picture)])) for _ in range(repeats)]
        imports = imported(whole)
    found = {
        "command": "python benchmarks/cold_start.py",
        "model": MODEL,
        "number_format": options.number_format,
        "goal": GOAL,
        "cpu_seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "repeats": repeats,
        "parts": {name: statistics.median(part[name] for part in parts) for name in parts[0]},
        "imports": imports,
        "machine": facts("cpu"),
    }
    tell(found)
    if not options.quick:
        (RESULTS / "cold-start.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def cpu_seconds(words: list[str]) -> float:
    """CPU seconds of a Python process, its threads together."""
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return total_cpu(before, os.times())


def answer(words: list[str]) -> str:
    """What a Python process prints."""
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout


def imported(words: list[str]) -> dict[str, float]:
    """Seconds of importing each library, without what it imports of others; the largest first."""
    told = subprocess.run(
        [sys.executable, "-X", "importtime", *words], check=True, capture_output=True, text=True
    ).stderr
    found: Counter[str] = Counter()
    for line in told.splitlines():
        if not line.startswith("import time:") or "self [us]" in line:
            continue
        own, _, name = line.removeprefix("import time:").split("|")
        found[group(name.strip())] += int(own)
    return {name: round(micros / 1e6, 3) for name, micros in found.most_common(20)}


def group(module: str) -> str:
    """The library that a module belongs to; the many of Python's own are one."""
    top = module.partition(".")[0]
    return "Python's own" if top in sys.stdlib_module_names else top


def tell(found: dict[str, object]) -> None:
    """For people."""
    print(f"{found['cpu_seconds']:.2f} s of CPU time, {found['fastest']:.2f} to {found['slowest']:.2f}; goal {GOAL} s")
    for title in ("parts", "imports"):
        listed = found[title]
        assert isinstance(listed, dict)
        print(f"\n{title}")
        for name, seconds in listed.items():
            print(f"  {name:<32} {seconds:6.3f} s")


if __name__ == "__main__":
    main()
