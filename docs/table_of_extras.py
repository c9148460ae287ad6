"""Write the table of docs/installing.md: what the core and each extra bring along, in packages, MiB and seconds.

    python docs/table_of_extras.py             # from the stored measurements
    python docs/table_of_extras.py --measure   # installs everything into an empty environment: minutes, and a network

An extra is installed beside the core, counted, and taken away again before the next. pip's cache is not used, so that
seconds include the fetching. The measurements are stored in benchmarks/results/installing.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markers import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "installing.md"
STORED = ROOT / "benchmarks" / "results" / "installing.json"
CORE = ""
BRINGS = {
    CORE: "training, checking, figures, answers, explanations, reports, files of other libraries",
    "serve": "`vitrail serve` and its page",
    "export": "`vitrail export --to onnx` and answers from such files",
    "openvino": "`vitrail export --to openvino` and answers from such files",
    "medical": "DICOM films",
    "data": "Hugging Face data sets and Parquet tables",
    "track": "`--track.report_to tensorboard`, the curves of runs side by side",
    "ray": "`vitrail predict --engine ray`, trainings and servers on a cluster",
}
"""What a person gets by each; the core has no name."""


def main() -> None:
    """Measure if asked, then replace what stands between the markers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        with tempfile.TemporaryDirectory() as folder:
            STORED.write_text(json.dumps(measure_extras(Path(folder)), indent=1) + "\n", encoding="utf-8")
    fill(PAGE, "extras", table(json.loads(STORED.read_text(encoding="utf-8"))))


def table(found: Mapping[str, Any]) -> str:
    """One row for the core and for each extra, and where it was measured."""
    lines = ["| extra | brings | packages | MiB | seconds |", "|---|---|---:|---:|---:|"]
    for row in found["rows"]:
        name = f"`{row['extra']}`" if row["extra"] else "(none)"
        lines.append(f"| {name} | {BRINGS[row['extra']]} | {row['packages']} | {row['mebibytes']} | {row['seconds']} |")
    where = f"{found['date']}, {found['system']}, Python {found['python']}, torch {found['torch']}."
    return "\n".join([*lines, "", where])


def measure_extras(folder: Path) -> dict[str, Any]:
    """Install the core into an empty environment in `folder`, then every extra beside it."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python, rows = folder / "bin" / "python", []
    for extra in BRINGS:
        before, size = _packages(python), _size(folder)
        began = time.perf_counter()
        _pip(python, "install", "--no-cache-dir", "-c", ROOT / "constraints.txt", f"{ROOT}[{extra}]" if extra else ROOT)
        seconds = round(time.perf_counter() - began)
        added = sorted(_packages(python) - before)
        mebibytes = round((_size(folder) - size) / 2**20)
        rows.append({"extra": extra, "packages": len(added), "mebibytes": mebibytes, "seconds": seconds})
        print(f"{extra or 'core'}: {len(added)} packages, {mebibytes} MiB, {seconds} s", flush=True)
        if extra:
            _pip(python, "uninstall", "--yes", *added)
    version = parse_pip_report(python, "-c", "import torch; print(torch.__version__)")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version,
        "rows": rows,
    }


def _packages(python: Path) -> set[str]:
    return {one["name"] for one in json.loads(parse_pip_report(python, "-m", "pip", "list", "--format", "json"))}


def _size(folder: Path) -> int:
    """Bytes of all files, compiled caches left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.lstat().st_size for path in files)


def _pip(python: Path, *words: str | Path) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


def parse_pip_report(python: Path, *words: str) -> str:
    done = subprocess.run([python, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
