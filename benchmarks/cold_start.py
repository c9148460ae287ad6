"""CPU seconds of `vitrail predict` of one picture by a ViT-Ti bundle, from the shell to the row, and where they go.

    python benchmarks/cold_start.py                # about two minutes; nothing else should be running
    python benchmarks/cold_start.py --quick        # one start each, nothing written

The goals are 3.5 s of CPU time, and 1.2 s for the same model as an ONNX file (`--engine onnx`), which needs no torch.
Files have been read before, so that the disk plays no part. Beside the whole stand its parts (interpreter, imports,
reading the bundle, decoding, forward, and the rest: the end of the process and what else the verb does), and what each
imported library takes by itself, as `python -X importtime` counts it. Writes benchmarks/results/cold-start.json.
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

from vitrail.bench.measure import describe_machine

MODEL = "vit_tiny_patch16_224"
GOAL, ONNX_GOAL = 3.5, 1.2
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
        bundle = write_bundle(Path(folder) / "bundle", MODEL)
        picture = write_pictures(Path(folder) / "pictures", "640x427", 1) / "00000.jpg"
        whole = ["-m", "vitrail", "predict", str(bundle), str(picture), "--to", f"{folder}/answers.csv"]
        whole += ["--precision", options.number_format]
        graph = f"{folder}/model.onnx"
        cpu_seconds(["-m", "vitrail", "export", str(bundle), "--to", "onnx", "--out", graph])
        lean = ["-m", "vitrail", "predict", graph, str(picture), "--engine", "onnx", "--to", f"{folder}/again.csv"]
        for words in (whole, lean):
            cpu_seconds(words)  # reads every file once
        both = [(cpu_seconds(whole), cpu_seconds(lean)) for _ in range(repeats)]
        seconds, by_onnx = [one for one, _ in both], [other for _, other in both]
        parts = [json.loads(answer([str(PARTS), str(bundle), str(picture)])) for _ in range(repeats)]
        imports = import_seconds(whole)
    found = {
        "command": "python benchmarks/cold_start.py",
        "model": MODEL,
        "number_format": options.number_format,
        "goal": GOAL,
        "cpu_seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "repeats": repeats,
        "onnx": {
            "goal": ONNX_GOAL,
            "cpu_seconds": statistics.median(by_onnx),
            "fastest": min(by_onnx),
            "slowest": max(by_onnx),
        },
        "parts": summarize_parts(parts, statistics.median(seconds)),
        "imports": imports,
        "machine": describe_machine("cpu"),
    }
    tell(found)
    if not options.quick:
        (RESULTS / "cold-start.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def summarize_parts(parts: list[dict[str, float]], whole: float) -> dict[str, float]:
    """Medians of all parts, and what of the whole is in none of them."""
    found = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    return {**found, "the rest": whole - sum(found.values())}


def cpu_seconds(words: list[str]) -> float:
    """CPU seconds of a Python process, its threads together."""
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return total_cpu(before, os.times())


def answer(words: list[str]) -> str:
    """What a Python process prints."""
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout


def import_seconds(words: list[str]) -> dict[str, float]:
    """Seconds of importing each library, without what it imports of others; the largest first."""
    output = subprocess.run(
        [sys.executable, "-X", "importtime", *words], check=True, capture_output=True, text=True
    ).stderr
    found: Counter[str] = Counter()
    for line in output.splitlines():
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
    for name, each in (("by torch", found), ("by ONNX Runtime", found["onnx"])):
        assert isinstance(each, dict)
        span = f"{each['fastest']:.2f} to {each['slowest']:.2f}"
        said = "met" if each["cpu_seconds"] <= each["goal"] else "missed"
        print(f"{name}: {each['cpu_seconds']:.2f} s of CPU time, {span}; goal {each['goal']} s, {said}")
    for title in ("parts", "imports"):
        each = found[title]
        assert isinstance(each, dict)
        print(f"\n{title}")
        for name, seconds in each.items():
            print(f"  {name:<32} {seconds:6.3f} s")


if __name__ == "__main__":
    main()
