"""Load full-size files of seven families: seconds, memory relative to the file, difference against the reference.

    python benchmarks/load.py --t2t PATH-OF-T2T-ViT       # all seven
    python benchmarks/load.py --only dinov3-small-transformers

The files hold random numbers and are made by the libraries whose layouts they are (timm, transformers, torchvision and
a clone of yitu-opensource/T2T-ViT). Each is loaded in a process of its own, which has imported torch and vitrail and
has written and read a tiny model before its memory is counted; pages of the file that are mapped count like any other.
Linux only. Writes one benchmarks/results/load-NAME.json each.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from making import full_size

RESULTS = Path(__file__).parent / "results"
PICTURES = 2
TIMES_THE_FILE = 2.2
"""Peak memory that a load may take."""


def main() -> None:
    """Make, load and compare what was asked for; or, in the child process, load one file and measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one of the cases by its name")
    parser.add_argument("--t2t", type=Path, help="a clone of yitu-opensource/T2T-ViT")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON files")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--said", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, json.loads(options.said), options.out)))
        return
    full_size.declare_torchvision()
    known = full_size.cases(options.t2t)
    for name in [options.only] if options.only else known:
        if known[name].needs:
            print(f"{name}: left out, needs {known[name].needs}")
            continue
        row = case(known[name])
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"load-{name}.json").write_text(json.dumps({"case": name, **row}, indent=1) + "\n")
        print(
            f"{name}: {row['file_bytes'] / 1e6:,.0f} MB in {row['seconds']:.2f} s, peak {row['times_the_file']:.2f} "
            f"times the file, largest difference {row['largest_difference']:.2g} of {row['largest_answer']:.2g}"
        )


def case(asked: full_size.Case) -> dict[str, object]:
    """One file, made here and loaded in another process."""
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        path, reference = asked.make(folder)
        images = torch.randn(PICTURES, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        torch.save(images, folder / "images.pt")
        expected = reference(images)
        words = [sys.executable, __file__, "--measure", path, "--said", json.dumps(dict(asked.said)), "--out", folder]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        row = json.loads(done.stdout)
        answers = torch.load(folder / "answers.pt")
    gap = (answers - expected).abs().max().item()
    size = row["file_bytes"]
    return {
        **row,
        "times_the_file": row["peak_bytes"] / size,
        "largest_difference": gap,
        "largest_answer": expected.abs().max().item(),
        "machine": {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__},
    }


def measure(path: Path, said: dict[str, object], folder: Path) -> dict[str, object]:
    """In a process of its own: load, and what that took."""
    import vitrail
    from vitrail.services.conversion import add_extension, convert_model
    from vitrail.services.open_model import find_model

    with tempfile.TemporaryDirectory() as name:  # whatever is imported and allocated once, is so now
        model = vitrail.create("vit_mu_patch8_16")
        model(torch.zeros(1, 3, 16, 16))
        torch.cat([torch.empty(1, device="meta")])  # torch imports its compiler for this
        small = replace(find_model("vit_mu_patch8_16"), trained_model=model)
        for to in ("timm", "torchvision", "google-npz"):
            vitrail.load(convert_model(small, to, Path(name) / add_extension("small", to)).path, heads=2)
    files = [path] if path.is_file() else sorted(path.iterdir())
    warm(path)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    began = time.perf_counter()
    model = vitrail.load(path, **said)
    seconds = time.perf_counter() - began
    peak = memory("VmHWM") - before
    with torch.inference_mode():
        torch.save(model(torch.load(folder / "images.pt")), folder / "answers.pt")
    return {
        "seconds": seconds,
        "peak_bytes": peak,
        "file_bytes": sum(file.stat().st_size for file in files),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def warm(path: Path) -> None:
    """Read the file once, so that seconds are those of loading and not of the disk."""
    for file in [path] if path.is_file() else path.iterdir():
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass


def memory(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
