"""From nothing to an answer: train on scikit-learn's digits for about a minute, then ask about one picture.

`make demo` runs this. It needs no network and writes runs/demo (or runs/demo-2, ... if that is taken).
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

VITRAIL = Path(sys.executable).with_name("vitrail")


def main() -> None:
    """Run the two commands that a person would type, and show them."""
    run = fresh(Path("runs"), "demo")
    say("train", "digits", "--steps", "600", "--out", run)
    picture = write_held_out_digit(run)
    say("predict", run, picture)
    print(f"\nThe report, for any browser: {run / 'report.html'}")


def fresh(folder: Path, name: str) -> Path:
    """The first of name, name-2, name-3, ... that does not exist in the folder."""
    number = 1
    while (path := folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


def write_held_out_digit(run: Path) -> Path:
    """The first digit that the run kept for its test, as a PNG of 8 x 8 pixels, its 16 greys stretched to 0..255."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    with (run / "predictions" / "test.csv").open(newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    pixels = np.asarray(load_digits(return_X_y=True)[0])  # [n, 64], 0..16
    grey = pixels[int(row["id"].rpartition("/")[2])].reshape(8, 8)
    path = run / f"a-{row['target']}-never-trained-on.png"
    Image.fromarray((grey * 255 / 16).round().astype("uint8")).save(path)
    return path


def say(*words: str | Path) -> None:
    """Show a command and run it; its failure is ours."""
    print("\n$ vitrail", *words, flush=True)
    done = subprocess.run([VITRAIL, *words], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
